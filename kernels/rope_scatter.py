"""Gather and scatter of packet K/V between a packet and the cache, with rotary positions where needed (ALGORITHM step 3a).

``scatter_kv`` takes un-rotated keys and values of the packet's rows as the projections give them, rotates the keys (half-split convention,
in float32) and writes rotated keys, values and, where the cache keeps them, un-rotated keys in place. A negative position is padding of a
fixed-size packet: it is not written, and ``gather_kv`` gives zeros for it. Positions must not repeat.
"""

import torch

from ._dispatch import constexpr, jit, launch, narrow, next_pow2, tl, use_triton


def rotate_torch(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions of x [..., r, hd] with tables [r, hd], computed in float32, in x's dtype."""
    y = x.to(torch.float32)
    a, b = y.chunk(2, -1)
    return torch.addcmul(y * cos, torch.cat((-b, a), -1), sin).to(x.dtype)


def scatter_torch(k_cache, v_cache, raw_k, v, positions, cos, sin, raw_cache, padded):
    """The PyTorch reference of ``scatter_kv``."""
    if padded:
        keep = (positions >= 0).nonzero().squeeze(-1)
        raw_k, v, positions = raw_k.index_select(1, keep), v.index_select(1, keep), positions.index_select(0, keep)
        cos, sin = cos.index_select(0, keep), sin.index_select(0, keep)
    k_cache.index_copy_(1, positions, rotate_torch(raw_k, cos, sin).to(k_cache.dtype))
    v_cache.index_copy_(1, positions, v.to(v_cache.dtype))
    if raw_cache is not None:
        raw_cache.index_copy_(1, positions, raw_k.to(raw_cache.dtype))


@jit
def scatter_kernel(k_ptr, v_ptr, raw_ptr, new_k_ptr, new_v_ptr, pos_ptr, cos_ptr, sin_ptr, KV, HD,
                   c_head, c_row, k_head, k_row, v_head, v_row, t_row, HAS_RAW: constexpr, BLOCK_H: constexpr, BLOCK_D: constexpr):
    """One program: one packet row, all key heads."""
    m = tl.program_id(0).to(tl.int64)
    position = tl.load(pos_ptr + m).to(tl.int64)
    if position >= 0:
        half = HD // 2
        head = tl.arange(0, BLOCK_H)[:, None]
        channel = tl.arange(0, BLOCK_D)[None, :]
        mask = (head < KV) & (channel < half)
        a = tl.load(new_k_ptr + head * k_head + m * k_row + channel, mask=mask, other=0.0)
        b = tl.load(new_k_ptr + head * k_head + m * k_row + half + channel, mask=mask, other=0.0)
        low = head * c_head + position * c_row + channel
        if HAS_RAW:
            tl.store(raw_ptr + low, a, mask=mask)
            tl.store(raw_ptr + low + half, b, mask=mask)
        a = a.to(tl.float32)
        b = b.to(tl.float32)
        inside = channel < half
        cos_a = tl.load(cos_ptr + m * t_row + channel, mask=inside, other=0.0)
        sin_a = tl.load(sin_ptr + m * t_row + channel, mask=inside, other=0.0)
        cos_b = tl.load(cos_ptr + m * t_row + half + channel, mask=inside, other=0.0)
        sin_b = tl.load(sin_ptr + m * t_row + half + channel, mask=inside, other=0.0)
        tl.store(k_ptr + low, narrow(a * cos_a - b * sin_a, k_ptr.dtype.element_ty), mask=mask)
        tl.store(k_ptr + low + half, narrow(b * cos_b + a * sin_b, k_ptr.dtype.element_ty), mask=mask)
        va = tl.load(new_v_ptr + head * v_head + m * v_row + channel, mask=mask, other=0.0)
        vb = tl.load(new_v_ptr + head * v_head + m * v_row + half + channel, mask=mask, other=0.0)
        tl.store(v_ptr + low, va, mask=mask)
        tl.store(v_ptr + low + half, vb, mask=mask)


@jit
def gather_kernel(k_ptr, v_ptr, out_k_ptr, out_v_ptr, pos_ptr, KV, HD, M, c_head, c_row, BLOCK_H: constexpr, BLOCK_D: constexpr):
    """One program: one packet row, all key heads."""
    m = tl.program_id(0).to(tl.int64)
    position = tl.load(pos_ptr + m).to(tl.int64)
    head = tl.arange(0, BLOCK_H)[:, None]
    channel = tl.arange(0, BLOCK_D)[None, :]
    mask = (head < KV) & (channel < HD)
    source = head * c_head + tl.maximum(position, 0) * c_row + channel
    target = (head * M + m) * HD + channel
    real = mask & (position >= 0)
    tl.store(out_k_ptr + target, tl.load(k_ptr + source, mask=real, other=0.0), mask=mask)
    tl.store(out_v_ptr + target, tl.load(v_ptr + source, mask=real, other=0.0), mask=mask)


def scatter_kv(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    raw_k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    raw_cache: torch.Tensor | None = None,
    padded: bool = False,
    path: str | None = None,
) -> None:
    """Write a packet into one layer's cache, in place.

    Caches [kv, L, hd] (alike in strides, last dimension contiguous); raw_k and v [kv, m, hd], any strides over kv and m; positions int64
    [m] in [0, L); cos and sin float32 [m, hd]. ``padded``: negative positions may occur (the PyTorch path looks for them only then).
    """
    if raw_k.shape != v.shape or raw_k.shape != (k_cache.shape[0], positions.shape[0], k_cache.shape[2]) or cos.shape != raw_k.shape[1:]:
        raise ValueError(
            f"scatter_kv: cache is {tuple(k_cache.shape)}, keys {tuple(raw_k.shape)}, values {tuple(v.shape)}, positions {tuple(positions.shape)}, "
            f"cos {tuple(cos.shape)}; they must be [kv, L, hd], [kv, m, hd] twice, [m] and [m, hd]."
        )
    if not use_triton(path, k_cache, v_cache, raw_k, v, positions, cos, sin, raw_cache):
        scatter_torch(k_cache, v_cache, raw_k, v, positions, cos, sin, raw_cache, padded)
        return
    _require_layout(k_cache, v_cache, raw_cache)
    kv, m, hd = raw_k.shape
    raw_k = raw_k if raw_k.stride(2) == 1 else raw_k.contiguous()
    v = v if v.stride(2) == 1 else v.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    if m:
        launch(
            scatter_kernel, (m,),
            k_cache, v_cache, k_cache if raw_cache is None else raw_cache, raw_k, v, positions, cos, sin, kv, hd,
            k_cache.stride(0), k_cache.stride(1), raw_k.stride(0), raw_k.stride(1), v.stride(0), v.stride(1), hd,
            HAS_RAW=raw_cache is not None, BLOCK_H=next_pow2(kv), BLOCK_D=next_pow2(hd // 2),
        )


def gather_kv(
    k_cache: torch.Tensor, v_cache: torch.Tensor, positions: torch.Tensor, *, path: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V [kv, m, hd] of positions int64 [m] out of caches [kv, L, hd]; zeros where a position is negative."""
    if k_cache.shape != v_cache.shape or k_cache.ndim != 3 or positions.ndim != 1:
        raise ValueError(
            f"gather_kv: caches are {tuple(k_cache.shape)} and {tuple(v_cache.shape)}, positions {tuple(positions.shape)}; "
            "they must be [kv, L, hd] twice and [m]."
        )
    if not use_triton(path, k_cache, v_cache, positions):
        at = positions.clamp(min=0)
        padding = (positions < 0).unsqueeze(-1)
        return k_cache.index_select(1, at).masked_fill_(padding, 0.0), v_cache.index_select(1, at).masked_fill_(padding, 0.0)
    _require_layout(k_cache, v_cache, None)
    kv, _, hd = k_cache.shape
    m = positions.shape[0]
    out = torch.empty(2, kv, m, hd, dtype=k_cache.dtype, device=k_cache.device)
    if m:
        launch(
            gather_kernel, (m,),
            k_cache, v_cache, out[0], out[1], positions, kv, hd, m, k_cache.stride(0), k_cache.stride(1),
            BLOCK_H=next_pow2(kv), BLOCK_D=next_pow2(hd),
        )
    return out[0], out[1]


def _require_layout(k_cache, v_cache, raw_cache) -> None:
    alike = all(c is None or (c.shape == k_cache.shape and c.stride() == k_cache.stride() and c.dtype == k_cache.dtype) for c in (v_cache, raw_cache))
    if not alike or k_cache.stride(2) != 1 or k_cache.shape[2] % 2:
        raise ValueError(
            f"caches of shape {tuple(k_cache.shape)}, strides {k_cache.stride()} and {v_cache.stride()}: shape, strides and dtype must be equal, "
            "the last dimension contiguous and even."
        )

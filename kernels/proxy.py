"""Proxy attention of the centroids with its drift (paper section 4.1, Equation 4; ALGORITHM steps 3c and 3d).

P = softmax(q k^T / sqrt(hd)) over all keys, per head, and D_c = mean over heads of KL(P[c] || before[c]), clamped at 0, in one pass over
the keys: the scores are written where P will stand, with a running maximum and sum for each slice of keys; a second kernel turns them into
P in place and sums the divergence. P (which the next refresh compares with) is the only L-wide thing written.

Probabilities are float32 and clamped below at 1e-12 inside the divergence, log(p) - log(p') is computed as log(p / p'), so KL(p, p) is
exactly 0. Sums are taken in a fixed order: the same inputs give the same bits. Neither side is rotated here; give rotated queries and keys
where wanted (``drift.py`` does, for the block's final-layer attention, with the same kernels).
"""

import torch

from ._dispatch import INTERPRET, constexpr, jit, launch, next_pow2, tl, use_triton

FLOOR = 1e-12
_SPLIT = 64  # keys for one program of the scores
_FINISH = 512  # keys for one program that turns scores into probabilities

# ---- PyTorch ------------------------------------------------------------------------------------------------------------------------


def attention_torch(queries: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    """P [H, r, L] float32 of queries [H, r, hd] over keys [kv, L, hd]; heads of a group share keys."""
    heads, rows, size = queries.shape
    grouped = queries.reshape(keys.shape[0], -1, size).to(torch.float32)
    scores = torch.matmul(grouped, keys.to(torch.float32).transpose(-1, -2)).mul_(scale)
    return torch.softmax(scores, -1).view(heads, rows, keys.shape[1])


def kl_torch(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """mean over heads of KL(now || before), clamped at 0: [H, r, L], [H, r, L] -> [r]."""
    p, ratio = now.clamp(min=FLOOR), before.clamp(min=FLOOR)
    torch.div(p, ratio, out=ratio).log_()
    return torch.linalg.vecdot(ratio, p).mean(0).clamp_(min=0.0)


# ---- Triton -------------------------------------------------------------------------------------------------------------------------


@jit
def scores_kernel(q_ptr, k_ptr, out_ptr, max_ptr, sum_ptr, scale, L, ROWS, R, HD, S, q_head, q_row, k_head, k_row,
                  PRECISION: constexpr, BLOCK_R: constexpr, BLOCK_L: constexpr, BLOCK_D: constexpr):
    """One program: BLOCK_R of the ROWS = group * R query rows that share a key head, against BLOCK_L keys."""
    kv = tl.program_id(0)
    split = tl.program_id(1)
    row = tl.program_id(2) * BLOCK_R + tl.arange(0, BLOCK_R)
    head = kv * (ROWS // R) + row // R
    key = split * BLOCK_L + tl.arange(0, BLOCK_L)
    q_base = q_ptr + head.to(tl.int64) * q_head + (row % R) * q_row
    k_base = k_ptr + kv.to(tl.int64) * k_head + key.to(tl.int64) * k_row
    acc = tl.zeros((BLOCK_R, BLOCK_L), dtype=tl.float32)
    for start in range(0, HD, BLOCK_D):
        channel = start + tl.arange(0, BLOCK_D)
        q = tl.load(q_base[:, None] + channel[None, :], mask=(row < ROWS)[:, None] & (channel < HD)[None, :], other=0.0).to(tl.float32)
        k = tl.load(k_base[None, :] + channel[:, None], mask=(key < L)[None, :] & (channel < HD)[:, None], other=0.0).to(tl.float32)
        acc = tl.dot(q, k, acc, input_precision=PRECISION)
    acc = tl.where((key < L)[None, :], acc * scale, float("-inf"))
    top = tl.max(acc, axis=1)
    total = tl.sum(tl.exp(acc - top[:, None]), axis=1)
    flat = kv.to(tl.int64) * ROWS + row
    inside = row < ROWS
    tl.store(out_ptr + flat[:, None] * L + key[None, :], acc, mask=inside[:, None] & (key < L)[None, :])
    tl.store(max_ptr + flat * S + split, top, mask=inside)
    tl.store(sum_ptr + flat * S + split, total, mask=inside)


@jit
def finish_kernel(p_ptr, before_ptr, max_ptr, sum_ptr, kl_ptr, L, S, F, HAS_BEFORE: constexpr, BLOCK_S: constexpr, BLOCK_L: constexpr):
    """One program: one row and slice of keys; scores become probabilities in place, and its part of the row's divergence is summed."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    part = tl.arange(0, BLOCK_S)
    tops = tl.load(max_ptr + row * S + part, mask=part < S, other=float("-inf"))
    sums = tl.load(sum_ptr + row * S + part, mask=part < S, other=0.0)
    top = tl.max(tops, axis=0)
    total = tl.sum(sums * tl.exp(tops - top), axis=0)
    key = split * BLOCK_L + tl.arange(0, BLOCK_L)
    inside = key < L
    score = tl.load(p_ptr + row * L + key, mask=inside, other=float("-inf"))
    p = tl.exp(score - top) / total
    tl.store(p_ptr + row * L + key, p, mask=inside)
    if HAS_BEFORE:
        old = tl.maximum(tl.load(before_ptr + row * L + key, mask=inside, other=1.0), 1e-12)
        p = tl.maximum(p, 1e-12)
        tl.store(kl_ptr + row * F + split, tl.sum(tl.where(inside, p * tl.log(p / old), 0.0), axis=0))


@jit
def kl_kernel(now_ptr, before_ptr, kl_ptr, L, BLOCK_L: constexpr):
    """One program: the divergence of one row of two stored distributions."""
    row = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((BLOCK_L,), dtype=tl.float32)
    for start in range(0, L, BLOCK_L):
        key = start + tl.arange(0, BLOCK_L)
        inside = key < L
        p = tl.maximum(tl.load(now_ptr + row * L + key, mask=inside, other=1.0).to(tl.float32), 1e-12)
        old = tl.maximum(tl.load(before_ptr + row * L + key, mask=inside, other=1.0).to(tl.float32), 1e-12)
        acc += tl.where(inside, p * tl.log(p / old), 0.0)
    tl.store(kl_ptr + row, tl.sum(acc, axis=0))


@jit
def mean_kernel(kl_ptr, out_ptr, HEADS, R, S, BLOCK_H: constexpr, BLOCK_S: constexpr):
    """One program: one query row; the parts of its divergence summed over slices, averaged over heads, clamped at 0."""
    r = tl.program_id(0)
    part = tl.arange(0, BLOCK_S)
    head = tl.arange(0, BLOCK_H)
    acc = tl.zeros((BLOCK_H,), dtype=tl.float32)
    for start in range(0, HEADS, BLOCK_H):
        h = start + head
        mask = (h < HEADS)[:, None] & (part < S)[None, :]
        acc += tl.sum(tl.load(kl_ptr + (h * R + r)[:, None] * S + part[None, :], mask=mask, other=0.0), axis=1)
    tl.store(out_ptr + r, tl.maximum(tl.sum(acc, axis=0) / HEADS, 0.0))


# ---- Dispatch -----------------------------------------------------------------------------------------------------------------------


def proxy_drift(
    queries: torch.Tensor,
    keys: torch.Tensor,
    before: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    path: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Proxy attention and drift of one layer.

    queries [H, K, hd] and keys [kv, L, hd] (kv divides H; last dimension contiguous), ``before`` [H, K, L] float32: the P of the last
    refresh or block entry, None at an entry. ``scale`` defaults to hd^-0.5. -> (P [H, K, L] float32, D [K] float32 in nats, None without
    ``before``). ``out`` receives P (contiguous float32; not ``before`` itself, which is still read).
    """
    return attention_and_drift("proxy_drift", queries, keys, before, scale, out, path)


def attention_and_drift(what: str, queries, keys, before, scale, out, path) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What ``proxy_drift`` and ``drift.attention_drift`` do alike; ``what`` is the name that a ValueError bears."""
    check_attention(queries, keys, before, out, what)
    scale = queries.shape[-1] ** -0.5 if scale is None else scale
    if use_triton(path, queries, keys, before, out):
        return launch_attention(queries, keys, before, scale, out)
    p = attention_torch(queries, keys, scale)
    if out is not None:
        p = out.copy_(p)
    return p, None if before is None else kl_torch(p, before)


def mean_kl(now: torch.Tensor, before: torch.Tensor, *, path: str | None = None) -> torch.Tensor:
    """mean over heads of KL(now || before), clamped at 0, of two stored distributions: float [H, r, L] each -> float32 [r] in nats."""
    if now.shape != before.shape or now.ndim != 3:
        raise ValueError(f"mean_kl: now is {tuple(now.shape)}, before {tuple(before.shape)}; both must be the same [heads, rows, keys].")
    if use_triton(path, now, before):
        heads, rows, length = now.shape
        now, before = now.contiguous(), before.contiguous()
        kl = torch.empty(heads * rows, dtype=torch.float32, device=now.device)
        launch(kl_kernel, (heads * rows,), now, before, kl, length, BLOCK_L=min(1024, next_pow2(length)))
        return _mean(kl, heads, rows, 1)
    return kl_torch(now.to(torch.float32), before.to(torch.float32))


def check_attention(queries, keys, before, out, what: str) -> None:
    """ValueError unless the shapes fit (see ``proxy_drift``)."""
    if queries.ndim != 3 or keys.ndim != 3 or queries.shape[2] != keys.shape[2] or queries.shape[0] % keys.shape[0]:
        raise ValueError(
            f"{what}: queries are {tuple(queries.shape)}, keys {tuple(keys.shape)}; "
            "they must be [H, r, hd] and [kv, L, hd] with kv a divisor of H."
        )
    shape = (*queries.shape[:2], keys.shape[1])
    for name, tensor in (("before", before), ("out", out)):
        if tensor is not None and (tensor.shape != shape or tensor.dtype != torch.float32 or not tensor.is_contiguous()):
            raise ValueError(f"{what}: {name} is {tensor.dtype} {tuple(tensor.shape)}; it must be contiguous float32 {shape}.")
    if out is not None and before is not None and out.data_ptr() == before.data_ptr():
        raise ValueError(f"{what}: out and before are the same memory; give a second buffer and swap the two between refreshes.")


def launch_attention(queries, keys, before, scale, out):
    """The Triton path of ``attention_and_drift``."""
    heads, rows, size = queries.shape
    kv, length, _ = keys.shape
    queries = queries if queries.stride(2) == 1 else queries.contiguous()
    keys = keys if keys.stride(2) == 1 else keys.contiguous()
    device = queries.device
    p = torch.empty(heads, rows, length, dtype=torch.float32, device=device) if out is None else out
    splits, finals = -(-length // _SPLIT), -(-length // _FINISH)
    stats = torch.empty(2, heads * rows, splits, dtype=torch.float32, device=device)
    kl = torch.empty(heads * rows, finals, dtype=torch.float32, device=device)
    shared = heads // kv * rows
    # TF32 holds 16-bit inputs exactly, so their products lose nothing on tensor cores; float32 inputs need true float32, and smaller tiles.
    exact = torch.float32 in (queries.dtype, keys.dtype) or INTERPRET
    block_r = min(32, max(16, next_pow2(shared)))
    launch(
        scores_kernel, (kv, splits, -(-shared // block_r)),
        queries, keys, p, stats[0], stats[1], scale, length, shared, rows, size, splits,
        queries.stride(0), queries.stride(1), keys.stride(0), keys.stride(1),
        PRECISION="ieee" if exact else "tf32", BLOCK_R=block_r, BLOCK_L=_SPLIT, BLOCK_D=min(32 if exact else 64, max(16, next_pow2(size))),
    )
    launch(
        finish_kernel, (heads * rows, finals), p, p if before is None else before, stats[0], stats[1], kl, length, splits, finals,
        HAS_BEFORE=before is not None, BLOCK_S=next_pow2(splits), BLOCK_L=_FINISH, num_warps=2,
    )
    return p, None if before is None else _mean(kl, heads, rows, finals)


def _mean(kl, heads, rows, splits):
    out = torch.empty(rows, dtype=torch.float32, device=kl.device)
    launch(mean_kernel, (rows,), kl, out, heads, rows, splits, BLOCK_H=min(32, next_pow2(heads)), BLOCK_S=next_pow2(splits), num_warps=1)
    return out

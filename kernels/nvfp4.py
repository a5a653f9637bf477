"""Residual NVFP4: quantise and pack, unpack and dequantise (paper sections 4.1 and C.3).

Format: E2M1 values (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives), one E4M3 scale per 16 channels, two values to a byte: channel 2i is
the low nibble of byte i, channel 2i+1 the high nibble (the order of CUDA's ``float4_e2m1fn_x2``). Nibbles are sign, exponent (2), mantissa.
Scales are stored as their E4M3 bit patterns in uint8, so that every indexing operation works on them.

Scale of a group = its largest magnitude / 6, clamped to 448, rounded to nearest even in E4M3; 2^-9 (the smallest E4M3 number) where that
would round to nothing, 0 only for an all-zero group, which stays zero. Values are divided by the rounded scale and rounded to nearest
even, saturating at 6. A NaN or infinity is an error on the CPU; on a GPU (where looking would synchronise) its group's scale becomes the
E4M3 NaN, so that the group comes back as NaN instead of as a plausible number.

Channels not a multiple of 16 are padded with zeros; ``dequantize_nvfp4(..., d=d)`` cuts the padding off.
"""

from functools import cache

import torch

from ._dispatch import constexpr, jit, launch, native_fp8, tl, use_triton

GROUP = 16
E4M3_MAX = 448.0
E4M3_TINY = 2.0**-9
E4M3_NAN = 0x7F
_SLICE = 1 << 16
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def groups_of(d: int) -> int:
    """Number of 16-channel groups that hold d channels."""
    return -(-d // GROUP)


# ---- PyTorch ------------------------------------------------------------------------------------------------------------------------


def e2m1_codes(y: torch.Tensor) -> torch.Tensor:
    """E2M1 bit patterns (int32, 0..15) of fp32 ``y``, rounded to nearest even, saturating at 6; the sign of zero is kept.

    With p the power of two below |y| (at least 1), |y| + p (1.5 * 2^22 + 1) holds |y| / (p/2), rounded to nearest even, plus 2 in its low bits; the
    exponent of p, doubled, completes the pattern (the 2 cancels the exponent's bias, modulo 8).
    """
    a = y.abs().clamp_(max=6.0)
    exponent = a.clamp(min=1.0).view(torch.int32).bitwise_and_(0x7F800000)
    a.add_(exponent.view(torch.float32), alpha=1.5 * 2.0**22 + 1)
    code = exponent.bitwise_right_shift_(22).add_(a.view(torch.int32)).bitwise_and_(7)
    return code.add_(y.view(torch.int32).bitwise_right_shift(28).bitwise_and_(8))


def quantize_torch(x: torch.Tensor, *, check: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The PyTorch reference of ``quantize_nvfp4``: ``x`` [..., d] -> (packed uint8 [..., g*8], scales uint8 [..., g])."""
    lead, d = x.shape[:-1], x.shape[-1]
    g = groups_of(d)
    x = x.to(torch.float32).reshape(-1, d)
    if d != g * GROUP:
        x = torch.nn.functional.pad(x, (0, g * GROUP - d))
    x = x.view(-1, g, GROUP)
    packed = torch.empty(x.shape[0], g * GROUP // 2, dtype=torch.uint8, device=x.device)
    scales = torch.empty(x.shape[0], g, dtype=torch.uint8, device=x.device)
    # A slice at a time, so that the dozen temporaries stay in the CPU's cache.
    rows = max(1, _SLICE // (g * GROUP)) if x.device.type == "cpu" else max(1, x.shape[0])
    for start in range(0, x.shape[0], rows):
        part = slice(start, start + rows)
        _quantize_rows(x[part], packed[part], scales[part])
    if check and scales.numel() and int(scales.max()) == E4M3_NAN:
        require_finite(scales.view(*lead, g) == E4M3_NAN, x.view(*lead, g, GROUP), "quantize_nvfp4")
    return packed.view(*lead, g * GROUP // 2), scales.view(*lead, g)


def _quantize_rows(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> None:
    """fp32 groups [r, g, 16] into packed [r, g*8] and scales [r, g]."""
    amax = x.abs().amax(-1)
    # 0 * amax is NaN where amax is not finite, and the E4M3 of NaN is NaN of either sign.
    bits = amax.div(6.0).clamp_(max=E4M3_MAX).add_(amax, alpha=0.0).to(torch.float8_e4m3fn).view(torch.uint8).bitwise_and_(0x7F)
    torch.maximum(bits, (amax > 0).view(torch.uint8), out=scales)  # a scale that would round to 0 is the smallest one
    divisor = scales.view(torch.float8_e4m3fn).to(torch.float32).clamp_(min=E4M3_TINY)
    pairs = e2m1_codes(x.div(divisor.unsqueeze(-1))).view(torch.int64).flatten(1)  # little-endian: channel 2i in the low half
    packed.copy_(pairs.bitwise_right_shift(28).bitwise_or_(pairs))


def require_finite(bad: torch.Tensor, x: torch.Tensor, what: str) -> None:
    """ValueError that says what and where when any of ``bad`` [..., g], the groups of ``x`` [..., g, n] that are not finite, is set."""
    if bool(bad.any()):
        at = bad.nonzero()[0].tolist()
        kind = "NaN" if bool(torch.isnan(x[tuple(at)]).any()) else "infinity"
        raise ValueError(
            f"{what}: the input holds a {kind} (row {at[:-1]}, channel group {at[-1]}); "
            "hidden states must be finite, look for the layer that overflowed."
        )


@cache
def _pair_table(device: torch.device) -> torch.Tensor:
    """int64 [256]: the two fp32 values of a byte as one 8-byte word, so that unpacking is a single gather."""
    values = torch.tensor(E2M1_VALUES + tuple(-v for v in E2M1_VALUES), dtype=torch.float32)
    byte = torch.arange(256)
    return torch.stack((values[byte & 15], values[byte >> 4]), -1).view(torch.int64).view(256).to(device)


def unpack_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """Bytes uint8 [..., n] -> their E2M1 values, fp32 [..., 2n] (freshly allocated)."""
    words = _pair_table(packed.device).index_select(0, packed.reshape(-1).to(torch.int32))
    return words.view(torch.float32).view(*packed.shape[:-1], 2 * packed.shape[-1])


def dequantize_torch(packed: torch.Tensor, scales: torch.Tensor, d: int) -> torch.Tensor:
    """The PyTorch reference of ``dequantize_nvfp4``: -> fp32 [..., d]."""
    lead, g = packed.shape[:-1], scales.shape[-1]
    scale = scales.view(torch.float8_e4m3fn).to(torch.float32)
    out = unpack_e2m1(packed).view(*lead, g, GROUP).mul_(scale.unsqueeze(-1)).view(*lead, g * GROUP)
    return out if d == g * GROUP else out[..., :d].contiguous()


# ---- Triton -------------------------------------------------------------------------------------------------------------------------


@jit
def e4m3_bits(x, NATIVE: constexpr):
    """E4M3 bit patterns (int32) of fp32 x in [0, 448], rounded to nearest even: hardware cast, or integers with the same bits."""
    if NATIVE:
        return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True).to(tl.int32)
    bits = x.to(tl.int32, bitcast=True)
    # Normal numbers (>= 2^-6): round the 23-bit mantissa to 3 bits, then rebias the exponent from 127 to 7.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # Below: multiples of 2^-9. Adding 1.5 * 2^14, whose last mantissa bit is 2^-9, leaves the rounded multiple in the low bits.
    small = (x + 24576.0).to(tl.int32, bitcast=True) & 15
    return tl.where(x < 0.015625, small, normal)


@jit
def e4m3_value(bits, NATIVE: constexpr):
    """fp32 values of E4M3 bit patterns (any integer type, sign allowed)."""
    if NATIVE:
        return bits.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    b = bits.to(tl.int32)
    magnitude = b & 0x7F
    normal = ((magnitude << 20) + ((127 - 7) << 23)).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)
    value = tl.where(magnitude == 0x7F, float("nan"), value)
    return tl.where((b & 0x80) != 0, -value, value)


@jit
def e2m1_bits(y):
    """E2M1 bit patterns (int32) of fp32 y, rounded to nearest even, saturating; see ``e2m1_codes``."""
    a = tl.minimum(tl.abs(y), 6.0)
    exponent = tl.maximum(a, 1.0).to(tl.int32, bitcast=True) & 0x7F800000
    rounded = a + exponent.to(tl.float32, bitcast=True) * 6291456.0
    code = (rounded.to(tl.int32, bitcast=True) + (exponent >> 22) + 2) & 7
    return code | ((y.to(tl.int32, bitcast=True) >> 28) & 8)


@jit
def e2m1_value(code):
    """fp32 values of E2M1 bit patterns (int32)."""
    magnitude = code & 7
    normal = ((magnitude << 22) + (126 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 2, magnitude.to(tl.float32) * 0.5, normal)
    return tl.where((code & 8) != 0, -value, value)


@jit
def quantize_kernel(x_ptr, base_ptr, label_ptr, packed_ptr, scale_ptr, d, G, x_stride, base_stride,
                    HAS_BASE: constexpr, NATIVE: constexpr, BLOCK_G: constexpr):
    """One program: BLOCK_G groups of one row; subtracts base[label[row]] first when HAS_BASE."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    pair = tl.arange(0, 8)
    channel = group[:, None] * 16 + pair[None, :] * 2
    # Two strided loads (even and odd channels) keep the pair of one byte in one lane; the cache line is shared.
    even = tl.load(x_ptr + row * x_stride + channel, mask=channel < d, other=0.0).to(tl.float32)
    odd = tl.load(x_ptr + row * x_stride + channel + 1, mask=channel + 1 < d, other=0.0).to(tl.float32)
    if HAS_BASE:
        base = base_ptr + tl.load(label_ptr + row).to(tl.int64) * base_stride
        even -= tl.load(base + channel, mask=channel < d, other=0.0).to(tl.float32)
        odd -= tl.load(base + channel + 1, mask=channel + 1 < d, other=0.0).to(tl.float32)
    a_even = tl.abs(even)
    a_odd = tl.abs(odd)
    # A maximum may drop NaN, so NaN and infinity are looked for in the sum of x - x, which is 0 exactly when everything is finite.
    odd_one = tl.sum((even - even) + (odd - odd), axis=1)
    amax = tl.max(tl.maximum(a_even, a_odd), axis=1)
    clamped = tl.minimum(tl.div_rn(amax, tl.full(amax.shape, 6.0, tl.float32)), 448.0)
    bits = e4m3_bits(clamped, NATIVE)
    bits = tl.where((amax > 0.0) & (bits == 0), 1, bits)
    scale = e4m3_value(bits, NATIVE)
    bits = tl.where(odd_one == 0.0, bits, 127)
    divisor = tl.where(amax > 0.0, scale, 1.0)[:, None]
    low = e2m1_bits(tl.div_rn(even, tl.broadcast_to(divisor, even.shape)))
    high = e2m1_bits(tl.div_rn(odd, tl.broadcast_to(divisor, odd.shape)))
    inside = group < G
    out = packed_ptr + row * (G * 8) + group[:, None] * 8 + pair[None, :]
    tl.store(out, (low | (high << 4)).to(tl.uint8), mask=inside[:, None])
    tl.store(scale_ptr + row * G + group, bits.to(tl.uint8), mask=inside)


@jit
def dequantize_kernel(packed_ptr, scale_ptr, out_ptr, d, G, NATIVE: constexpr, BLOCK_G: constexpr):
    """One program: BLOCK_G groups of one row, to fp32."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    pair = tl.arange(0, 8)
    inside = group < G
    byte = tl.load(packed_ptr + row * (G * 8) + group[:, None] * 8 + pair[None, :], mask=inside[:, None], other=0).to(tl.int32)
    scale = e4m3_value(tl.load(scale_ptr + row * G + group, mask=inside, other=0), NATIVE)[:, None]
    channel = group[:, None] * 16 + pair[None, :] * 2
    tl.store(out_ptr + row * d + channel, e2m1_value(byte & 15) * scale, mask=channel < d)
    tl.store(out_ptr + row * d + channel + 1, e2m1_value(byte >> 4) * scale, mask=channel + 1 < d)


# ---- Dispatch -----------------------------------------------------------------------------------------------------------------------


def quantize_nvfp4(x: torch.Tensor, *, check: bool | None = None, path: str | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise and pack ``x``: [..., d] float -> (packed uint8 [..., ceil(d/16)*8], scales uint8 (E4M3 bits) [..., ceil(d/16)]).

    ``check`` (default: on the CPU only) raises ValueError, naming the place, when x holds a NaN or an infinity.
    """
    _require_float(x, "quantize_nvfp4", "x")
    check = x.device.type == "cpu" if check is None else check
    if use_triton(path, x):
        return _launch_quantize(x, None, None, check)
    return quantize_torch(x, check=check)


def quantize_residual(
    h: torch.Tensor, centroids: torch.Tensor, labels: torch.Tensor, *, check: bool | None = None, path: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise and pack the residuals ``h - centroids[labels]`` (subtraction in fp32), the window's store at block entry.

    h [W, d], centroids [K, d], labels int [W] in [0, K) -> as ``quantize_nvfp4``; or all with a leading layer dimension.
    """
    _require_float(h, "quantize_residual", "h")
    _require_float(centroids, "quantize_residual", "centroids")
    fits = h.ndim in (2, 3) and centroids.shape == (*h.shape[:-2], *centroids.shape[-2:]) and centroids.shape[-1] == h.shape[-1]
    if not fits or labels.shape != h.shape[:-1]:
        raise ValueError(
            f"quantize_residual: h is {tuple(h.shape)}, centroids {tuple(centroids.shape)}, labels {tuple(labels.shape)}; "
            "they must be [W, d], [K, d] and [W], or all with the same leading layer dimension."
        )
    check = h.device.type == "cpu" if check is None else check
    triton_path = use_triton(path, h, centroids, labels)
    K, d = centroids.shape[-2:]
    labels = labels.to(torch.int64)
    if h.ndim == 3:  # centroids of all layers in one table
        labels = labels + K * torch.arange(h.shape[0], device=h.device).unsqueeze(-1)
    labels, centroids = labels.reshape(-1), centroids.reshape(-1, d)
    if triton_path:
        return _launch_quantize(h, centroids, labels, check)
    base = centroids.to(torch.float32).index_select(0, labels).view(h.shape)
    return quantize_torch(h.to(torch.float32) - base, check=check)


def dequantize_nvfp4(packed: torch.Tensor, scales: torch.Tensor, d: int | None = None, *, path: str | None = None) -> torch.Tensor:
    """Unpack and dequantise: (uint8 [..., g*8], uint8 or float8_e4m3fn [..., g]) -> fp32 [..., d]; d defaults to g*16."""
    g = scales.shape[-1]
    d = g * GROUP if d is None else d
    if packed.dtype != torch.uint8 or packed.shape != (*scales.shape[:-1], g * GROUP // 2) or groups_of(d) != g:
        raise ValueError(
            f"dequantize_nvfp4: packed is {packed.dtype} {tuple(packed.shape)}, scales {tuple(scales.shape)}, d {d}; "
            "packed must be uint8 with 8 bytes for each scale, and d must fill the last group."
        )
    scales = scales.view(torch.uint8)
    if use_triton(path, packed, scales):
        out = torch.empty(*packed.shape[:-1], d, dtype=torch.float32, device=packed.device)
        rows = out.numel() // d
        if rows:
            block = 64
            grid = (rows, -(-g // block))
            launch(dequantize_kernel, grid, packed.contiguous(), scales.contiguous(), out, d, g, NATIVE=native_fp8(packed), BLOCK_G=block)
        return out
    return dequantize_torch(packed, scales, d)


def _require_float(x: torch.Tensor, what: str, name: str) -> None:
    if not x.is_floating_point() or x.ndim < 1 or x.shape[-1] < 1:
        raise ValueError(f"{what}: {name} is {x.dtype} {tuple(x.shape)}; it must be floating point with at least one channel.")


def _launch_quantize(x, centroids, labels, check):
    d = x.shape[-1]
    g = groups_of(d)
    rows2d = x.reshape(-1, d)
    if rows2d.stride(1) != 1:
        rows2d = rows2d.contiguous()
    packed = torch.empty(*x.shape[:-1], g * GROUP // 2, dtype=torch.uint8, device=x.device)
    scales = torch.empty(*x.shape[:-1], g, dtype=torch.uint8, device=x.device)
    if rows2d.shape[0]:
        block = 64
        grid = (rows2d.shape[0], -(-g // block))
        has_base = centroids is not None
        base = centroids.contiguous() if has_base else rows2d
        launch(
            quantize_kernel, grid,
            rows2d, base, labels if has_base else rows2d, packed, scales, d, g, rows2d.stride(0), base.stride(0),
            HAS_BASE=has_base, NATIVE=native_fp8(x), BLOCK_G=block,
        )
    if check:
        bad = scales == E4M3_NAN
        if bool(bad.any()):
            require_finite(bad, torch.nn.functional.pad(x.float(), (0, g * GROUP - d)).unflatten(-1, (g, GROUP)), "quantize_nvfp4")
    return packed, scales

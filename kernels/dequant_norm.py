"""The start of an update packet: dequantise, add the centroid, RMSNorm, in one kernel (paper section 4.3; ALGORITHM step 3e).

For each packet row: h = centroid[label] + residual (NVFP4), rounded to the model's dtype; normed = RMSNorm(h) * weight with the division
in float32 and, below float32, the rounding of the model's own RMSNorm (norm rounded to the dtype, then the weight). Hidden states never
pass through memory between the packed store and the projections' input, except as the h that the residual connection needs.

``rows`` picks window rows out of the store; a negative row is padding of a fixed-size packet and gives zeros. On a GPU packed values and scales may
lie in pinned host memory: the kernel then reads the rows it needs across the bus.
"""

import torch

from . import nvfp4
from ._dispatch import constexpr, jit, launch, narrow, native_fp8, next_pow2, tl, use_triton
from .nvfp4 import e2m1_value, e4m3_value

MAX_CHANNELS = 16384


def dequant_norm_torch(packed, scales, centroids, labels, weight, eps, rows, dtype):
    """The PyTorch reference of ``dequant_norm``."""
    d = weight.shape[0]
    if rows is not None:
        at = rows.clamp(min=0).to(torch.int64)
        packed, scales = packed.index_select(0, at), scales.index_select(0, at)
        labels = None if centroids is None else labels.index_select(0, at)
    h = nvfp4.dequantize_torch(packed, scales, d)
    if centroids is not None:
        h = h.add_(centroids.index_select(0, labels.to(torch.int64)))
    h = h.to(dtype)
    if dtype == torch.float32:
        normed = torch.nn.functional.rms_norm(h, (d,), weight.to(torch.float32), eps)
    else:
        normed = torch.nn.functional.rms_norm(h.to(torch.float32), (d,), None, eps).to(dtype).mul_(weight)
    if rows is not None:
        padding = (rows < 0).unsqueeze(-1)
        h, normed = h.masked_fill(padding, 0.0), normed.masked_fill(padding, 0.0)
    return h, normed


@jit
def dequant_norm_kernel(packed_ptr, scale_ptr, centroid_ptr, label_ptr, row_ptr, weight_ptr, h_ptr, normed_ptr, eps, d, G, centroid_stride,
                        HAS_CENTROID: constexpr, HAS_ROWS: constexpr, NATIVE: constexpr, BLOCK_D: constexpr):
    """One program: one packet row, all channels."""
    m = tl.program_id(0).to(tl.int64)
    row = m
    real = True
    if HAS_ROWS:
        row = tl.load(row_ptr + m).to(tl.int64)
        real = row >= 0
        row = tl.maximum(row, 0)
    pair = tl.arange(0, BLOCK_D // 2)
    byte = tl.load(packed_ptr + row * (G * 8) + pair, mask=pair < G * 8, other=0).to(tl.int32)
    scale = e4m3_value(tl.load(scale_ptr + row * G + pair // 8, mask=pair < G * 8, other=0), NATIVE)
    x = tl.interleave(e2m1_value(byte & 15) * scale, e2m1_value(byte >> 4) * scale)
    channel = tl.arange(0, BLOCK_D)
    inside = channel < d
    if HAS_CENTROID:
        label = tl.load(label_ptr + row).to(tl.int64)
        x += tl.load(centroid_ptr + label * centroid_stride + channel, mask=inside, other=0.0).to(tl.float32)
    # Padding channels of the last group hold zeros, so the sum of squares needs no mask beyond the loads'.
    h = narrow(tl.where(real & inside, x, 0.0), h_ptr.dtype.element_ty)
    tl.store(h_ptr + m * d + channel, h, mask=inside)
    x = h.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, axis=0) / d + eps)
    weight = tl.load(weight_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    normed = narrow(x * inverse, normed_ptr.dtype.element_ty).to(tl.float32) * weight
    tl.store(normed_ptr + m * d + channel, narrow(normed, normed_ptr.dtype.element_ty), mask=inside)


def dequant_norm(
    packed: torch.Tensor,
    scales: torch.Tensor,
    centroids: torch.Tensor | None,
    labels: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    *,
    rows: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    path: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states of a packet and their RMSNorm.

    packed uint8 [W, g*8], scales uint8 [W, g], centroids [K, d] (None: values are no residuals), labels int [W] or None likewise, weight
    [d], rows int [m] into W (negative: padding) or None for all W in order. dtype defaults to weight's. -> (h [m, d], normed [m, d]), both
    ``dtype``.
    """
    d = weight.shape[0]
    g = nvfp4.groups_of(d)
    if packed.ndim != 2 or packed.dtype != torch.uint8 or packed.shape[1] != g * 8 or scales.shape != (packed.shape[0], g):
        raise ValueError(
            f"dequant_norm: packed is {packed.dtype} {tuple(packed.shape)}, scales {tuple(scales.shape)}, weight {tuple(weight.shape)}; "
            f"for {d} channels they must be uint8 [W, {g * 8}] and [W, {g}]."
        )
    if centroids is not None and (labels is None or labels.shape != packed.shape[:1] or centroids.shape[1] != d):
        raise ValueError(
            f"dequant_norm: centroids are {tuple(centroids.shape)}, labels {None if labels is None else tuple(labels.shape)}; "
            f"they must be [K, {d}] and [{packed.shape[0]}]."
        )
    if d > MAX_CHANNELS:
        raise ValueError(f"dequant_norm: {d} channels, at most {MAX_CHANNELS} fit one program; use path='torch' pieces for wider models.")
    dtype = weight.dtype if dtype is None else dtype
    scales = scales.view(torch.uint8)
    if not use_triton(path, packed, scales, centroids, labels, weight, rows, pinned_ok=True):
        return dequant_norm_torch(packed, scales, centroids, labels, weight, eps, rows, dtype)
    m = packed.shape[0] if rows is None else rows.shape[0]
    h = torch.empty(m, d, dtype=dtype, device=weight.device)
    normed = torch.empty_like(h)
    if m:
        block = next_pow2(g * 16)
        has = centroids is not None
        centroids = centroids.contiguous() if has else weight
        launch(
            dequant_norm_kernel, (m,),
            packed.contiguous(), scales.contiguous(), centroids, labels if has else weight, weight if rows is None else rows,
            weight.contiguous(), h, normed, eps, d, g, d,
            HAS_CENTROID=has, HAS_ROWS=rows is not None, NATIVE=native_fp8(weight), BLOCK_D=block,
            num_warps=4 if block <= 2048 else 8 if block <= 8192 else 16,
        )
    return h, normed

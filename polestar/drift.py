"""Representation drift: KL divergence between attention distributions of two passes (paper, Equation 4).

Contract: float32 in nats, never negative; KL(p, p) is exactly 0; a row that holds NaN (it was not computed) gives NaN. Probabilities are clamped
below at 1e-12 inside the logarithms. On every device PyTorch; decoding itself uses `kernels.drift.attention_drift`, its fused equal.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from kernels.proxy import kl_torch


def drift(now: Float[Tensor, "heads r L"], before: Float[Tensor, "heads r L"]) -> Float[Tensor, "r"]:
    """Mean over heads of KL(now || before) for every row, clamped at 0 (`paper` and release alike)."""
    return kl_torch(now.float(), before.float())

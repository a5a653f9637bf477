"""Representation drift: KL divergence between attention distributions of two passes (paper, Equation 4).

Contract: float32 in nats, never negative or NaN; KL(p, p) is exactly 0. Probabilities are clamped below at 1e-12 inside the logarithms.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

FLOOR = 1e-12


def drift(now: Float[Tensor, "heads r L"], before: Float[Tensor, "heads r L"]) -> Float[Tensor, "r"]:
    """Mean over heads of KL(now || before) for every row, clamped at 0 (`paper` and release alike)."""
    p, q = now.clamp(min=FLOOR), before.clamp(min=FLOOR)
    return (p * (p.log() - q.log())).sum(-1).mean(0).clamp_(min=0)


def proxy_attention(queries: Float[Tensor, "heads K hd"], keys: Float[Tensor, "kv L hd"]) -> Float[Tensor, "heads K L"]:
    """Softmax of centroid queries over all un-rotated keys, per head (ALGORITHM: neither side gets rotary positions)."""
    heads, K, size = queries.shape
    kv, L, _ = keys.shape
    logits = torch.matmul(queries.reshape(kv, heads // kv * K, size), keys.transpose(-1, -2)).float().mul_(size**-0.5)
    return torch.softmax(logits, -1).view(heads, K, L)

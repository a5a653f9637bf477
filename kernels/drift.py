"""Drift of the block's final-layer attention against the previous step (paper section 4.2, Equation 4; ALGORITHM step 4b).

delta_j = mean over heads of KL(A_t[j] || A_{t-1}[j]), clamped at 0. ``attention_drift`` computes A_t from rotated queries and keys and its
drift in one pass over the keys, writing nothing L-wide but A_t; ``mean_kl`` compares two distributions that are already stored. Contract
of the arithmetic: see ``proxy.py``, whose kernels these are: B block positions in place of K centroids.
"""

import torch

from .proxy import attention_and_drift, mean_kl

__all__ = ["attention_drift", "mean_kl"]


def attention_drift(
    queries: torch.Tensor,
    keys: torch.Tensor,
    before: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    path: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of the block and its drift.

    Rotated queries [H, B, hd] and keys [kv, L, hd], ``before`` = A of the previous step [H, B, L] float32 or None (no history: no drift,
    not 0). -> (A [H, B, L] float32, rows summing to 1; delta [B] float32 in nats, None without ``before``). ``out`` receives A.
    """
    return attention_and_drift("attention_drift", queries, keys, before, scale, out, path)

"""Spherical k-means of the local window's hidden states (paper, section 4.1).

Contract: pure functions of hidden states and a seeded CPU generator; the same seed gives the same clusters on every device.
Assignment is by cosine, a centroid is the plain mean of its members, five iterations, an empty cluster is re-seeded from a random member.
`cluster_whole` clusters the window of all layers at once (preset `paper`); `cluster_split` does prefix and suffix apart, layer by layer,
drawing random numbers in the order of the public release (preset `release`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from kernels.kmeans import assign, spherical_kmeans, update

ITERATIONS = 5


class Clustering(NamedTuple):
    """Labels [n, W], centroids [n, K, d] (float32) and member counts [n, K] of n layers."""

    labels: Int[Tensor, "n W"]
    centroids: Float[Tensor, "n K d"]
    counts: Int[Tensor, "n K"]


def cluster_whole(hidden: Float[Tensor, "n W d"], K: int, generator: torch.Generator) -> Clustering:
    """One clustering of the whole window for each of n layers. K is capped by the window's size."""
    n, W, _ = hidden.shape
    K = min(K, W)
    # All random numbers are drawn before the iterations: a device is never asked whether a cluster is empty.
    start = torch.stack([torch.randperm(W, generator=generator)[:K] for _ in range(n)])
    spare = torch.randint(0, W, (ITERATIONS, n, K), generator=generator)
    if hidden.is_cuda:  # out of pinned memory, so that the host does not wait for what the device is doing
        start, spare = (t.pin_memory().to(hidden.device, non_blocking=True) for t in (start, spare))
    return Clustering(*spherical_kmeans(hidden if hidden.is_cuda else hidden.float(), start, spare))


def split_sizes(K: int, n_prefix: int, n_suffix: int) -> tuple[int, int]:
    """How many of K clusters the prefix and the suffix of the window get in the release."""
    if n_prefix == 0:
        return 0, K
    prefix = min(K - 1, max(1, K * n_prefix // (n_prefix + n_suffix)))
    return prefix, (K - prefix if n_suffix else 0)


Assign = Callable[[Tensor, Tensor], Tensor]


def cluster_split(hidden: Float[Tensor, "n W d"], K: int, n_prefix: int, generator: torch.Generator, assign: Assign = assign) -> Clustering:
    """Prefix and suffix clustered apart, layer by layer, as the release does. Layers have equally many clusters.

    `assign` may be replaced by a test that replays recorded ties: copies of one embedding are equally near to several centroids.
    """
    K_prefix, K_suffix = split_sizes(K, n_prefix, hidden.shape[1] - n_prefix)
    labels, centroids, counts = [], [], []
    for layer in hidden.float():
        parts = []
        if K_prefix:
            parts.append(_release_kmeans(layer[:n_prefix], K_prefix, generator, assign))
        if K_suffix:
            parts.append(_release_kmeans(layer[n_prefix:], K_suffix, generator, assign))
        offset = parts[0][1].shape[0] if len(parts) == 2 else 0
        labels.append(torch.cat([parts[0][0], *(p[0] + offset for p in parts[1:])]))
        centroids.append(torch.cat([p[1] for p in parts]))
        counts.append(torch.cat([p[2] for p in parts]))
    return Clustering(torch.stack(labels), torch.stack(centroids), torch.stack(counts))


def _release_kmeans(x: Float[Tensor, "W d"], K: int, generator: torch.Generator, assign: Assign) -> tuple[Tensor, Tensor, Tensor]:
    W = x.shape[0]
    if W <= K:
        # Every member is a centroid of its own; members repeat to fill the rest, which own nothing.
        member = torch.arange(K, device=x.device) % W
        labels = torch.arange(W, device=x.device)
        return labels, x[member].clone(), (torch.arange(K, device=x.device) < W).long()
    centroids = x[torch.randperm(W, generator=generator)[:K].to(x.device)]
    directions = F.normalize(x, dim=-1)
    for _ in range(ITERATIONS):
        labels = assign(directions, centroids)
        centroids, counts = update(x, labels, K)
        empty = counts == 0
        if empty.any():
            spare = torch.randint(0, W, (K,), generator=generator).to(x.device)
            centroids = torch.where(empty[:, None], x[spare], centroids)
    return labels, centroids, counts

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

ITERATIONS = 5


class Clustering(NamedTuple):
    """Labels [n, W], centroids [n, K, d] (float32) and member counts [n, K] of n layers."""

    labels: Int[Tensor, "n W"]
    centroids: Float[Tensor, "n K d"]
    counts: Int[Tensor, "n K"]


def assign(x: Float[Tensor, "n W d"], centroids: Float[Tensor, "n K d"]) -> Int[Tensor, "n W"]:
    """The centroid of highest cosine for every row, lowest index first among equals."""
    return torch.matmul(x, F.normalize(centroids, dim=-1).transpose(-1, -2)).argmax(-1)


def means(x: Float[Tensor, "n W d"], labels: Int[Tensor, "n W"], K: int) -> tuple[Float[Tensor, "n K d"], Float[Tensor, "n K"]]:
    """Plain mean of each cluster's members (zero where it has none) and the member counts."""
    member = F.one_hot(labels, K).to(x.dtype)
    counts = member.sum(-2)
    return torch.matmul(member.transpose(-1, -2), x) / counts.clamp(min=1)[..., None], counts


def cluster_whole(hidden: Float[Tensor, "n W d"], K: int, generator: torch.Generator) -> Clustering:
    """One clustering of the whole window for each of n layers. K is capped by the window's size."""
    n, W, d = hidden.shape
    K = min(K, W)
    x = hidden.float()
    # All random numbers are drawn before the iterations: a device is never asked whether a cluster is empty.
    start = torch.stack([torch.randperm(W, generator=generator)[:K] for _ in range(n)]).to(x.device)
    reseed = torch.randint(0, W, (ITERATIONS, n, K), generator=generator).to(x.device)
    directions = F.normalize(x, dim=-1)
    centroids = x.gather(1, start[..., None].expand(-1, -1, d))
    labels, counts = None, None
    for i in range(ITERATIONS):
        labels = assign(directions, centroids)
        moved, counts = means(x, labels, K)
        spare = x.gather(1, reseed[i][..., None].expand(-1, -1, d))
        centroids = torch.where(counts[..., None] > 0, moved, spare)
    return Clustering(labels, centroids, counts.long())


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
    return Clustering(torch.stack(labels), torch.stack(centroids), torch.stack(counts).long())


def _release_kmeans(x: Float[Tensor, "W d"], K: int, generator: torch.Generator, assign: Assign) -> tuple[Tensor, Tensor, Tensor]:
    W = x.shape[0]
    if W <= K:
        # Every member is a centroid of its own; members repeat to fill the rest, which own nothing.
        member = torch.arange(K, device=x.device) % W
        labels = torch.arange(W, device=x.device)
        return labels, x[member].clone(), (torch.arange(K, device=x.device) < W).float()
    centroids = x[torch.randperm(W, generator=generator)[:K].to(x.device)]
    directions = F.normalize(x, dim=-1)
    for _ in range(ITERATIONS):
        labels = assign(directions, centroids)
        centroids, counts = means(x, labels, K)
        empty = counts == 0
        if empty.any():
            spare = torch.randint(0, W, (K,), generator=generator).to(x.device)
            centroids = torch.where(empty[:, None], x[spare], centroids)
    return labels, centroids, counts

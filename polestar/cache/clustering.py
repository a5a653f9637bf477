"""Spherical k-means of the local window's hidden states (paper, section 4.1).

Contract: pure functions of hidden states and a seeded CPU generator. Assignment is by cosine, a centroid is the plain mean of its members, five
iterations, an empty cluster is re-seeded from a random member. `cluster_whole` clusters the window of all layers at once (preset `paper`); the same
seed gives the same clusters on every device. `cluster_split` does prefix and suffix apart (preset `release`): on a CPU layer by layer, drawing random
numbers in the order of the public release, which looks after each iteration whether a cluster is empty; on a GPU, which is asked nothing, all rows
are drawn beforehand, so that the two are the same up to the first cluster that becomes empty.
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
    return Clustering(*_kmeans(hidden, start, spare))


def _kmeans(hidden: Float[Tensor, "n W d"], start: Int[Tensor, "n K"], spare: Int[Tensor, "iterations n K"]) -> tuple[Tensor, Tensor, Tensor]:
    """All layers at once, from rows that were drawn beforehand on the host."""
    if hidden.is_cuda:  # out of pinned memory, so that the host does not wait for what the device is doing
        start, spare = (t.pin_memory().to(hidden.device, non_blocking=True) for t in (start, spare))
    return spherical_kmeans(hidden.contiguous() if hidden.is_cuda else hidden.float(), start, spare)


def split_sizes(K: int, n_prefix: int, n_suffix: int) -> tuple[int, int]:
    """How many of K clusters the prefix and the suffix of the window get in the release."""
    if n_prefix == 0:
        return 0, K
    prefix = min(K - 1, max(1, K * n_prefix // (n_prefix + n_suffix)))
    return prefix, (K - prefix if n_suffix else 0)


Assign = Callable[[Tensor, Tensor], Tensor]


def cluster_split(
    hidden: Float[Tensor, "n W d"], K: int, n_prefix: int, generator: torch.Generator, assign: Assign = assign, *, ahead: bool | None = None
) -> Clustering:
    """Prefix and suffix clustered apart, as the release does. Layers have equally many clusters.

    `assign` may be replaced by a test that replays recorded ties: copies of one embedding are equally near to several centroids.
    `ahead`: draw every row beforehand and ask the device nothing (default: on a GPU); `assign` is then not used.
    """
    if hidden.is_cuda if ahead is None else ahead:
        return _split_ahead(hidden, K, n_prefix, generator)
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


def _split_ahead(hidden: Float[Tensor, "n W d"], K: int, n_prefix: int, generator: torch.Generator) -> Clustering:
    """First centroids in the release's order. Rows for empty clusters come from a copy of the generator: where none is needed, none was drawn."""
    n, W, _ = hidden.shape
    spans = ((0, n_prefix), (n_prefix, W))
    parts = [(a, b, k) for (a, b), k in zip(spans, split_sizes(K, n_prefix, W - n_prefix), strict=True) if k]
    starts = [[torch.randperm(b - a, generator=generator)[:k] for a, b, k in parts if b - a > k] for _ in range(n)]
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    drawn = [torch.stack(rows) for rows in zip(*starts, strict=True)]
    labels, centroids, counts, offset = [], [], [], 0
    for a, b, k in parts:
        x = hidden[:, a:b]
        if b - a > k:
            found = _kmeans(x, drawn.pop(0), torch.randint(0, b - a, (ITERATIONS, n, k), generator=copy))
        else:
            own = _own_clusters(b - a, k, x.device)
            found = own[0].expand(n, -1), x.float().index_select(1, own[1]), own[2].expand(n, -1)
        labels.append(found[0] + offset)
        centroids.append(found[1])
        counts.append(found[2])
        offset += k
    return Clustering(torch.cat(labels, 1), torch.cat(centroids, 1), torch.cat(counts, 1))


def _own_clusters(W: int, K: int, device: torch.device) -> tuple[Int[Tensor, "W"], Int[Tensor, "K"], Int[Tensor, "K"]]:
    """Where W <= K, every member is a centroid of its own; members repeat to fill the rest, which own nothing: labels, centroid rows, counts."""
    every = torch.arange(K, device=device)
    return every[:W], every % W, (every < W).long()


def _release_kmeans(x: Float[Tensor, "W d"], K: int, generator: torch.Generator, assign: Assign) -> tuple[Tensor, Tensor, Tensor]:
    W = x.shape[0]
    if W <= K:
        labels, member, counts = _own_clusters(W, K, x.device)
        return labels, x[member], counts
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

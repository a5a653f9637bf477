"""Hidden states of the local window as points in the plane, one projection for a whole run.

Contract: `umap_frames(points)` takes what the log keeps at level `full` (each pass's window states and centroids in the run's PCA basis) and answers
the same points in UMAP's plane: one fit over the run, seeded, so that points do not jump between passes. Distances in it have no unit.
Imports numpy alone until it is called; UMAP takes seconds to import and more to compile, so callers keep it off the request path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MOST_FITTED = 1200  # distinct points that the fit sees; the others are placed by it
NEIGHBOURS = 15
NEAR = 5
FEW = 5  # fewer distinct points than this have no shape to find


def layer_points(trace: Any, layer: int) -> list[tuple[int, np.ndarray]]:
    """(pass, float32 [W + K, P]) of every pass that logged points. Raises ValueError for a layer that is not there."""
    n = trace.header.n_layers
    if not 0 <= layer < n:
        raise ValueError(f"layer {layer} is not in this trace, which has layers 0 to {n - 1}; choose one of those")
    return [(s.index, s.clusters.points[layer]) for s in trace if s.clusters is not None and s.clusters.points is not None]


def umap_frames(frames: Sequence[tuple[int, np.ndarray]], seed: int = 0) -> list[tuple[int, np.ndarray]]:
    """(pass, float32 [W + K, 2]) for (pass, float32 [W + K, P]). The same input and seed give the same output.

    Fewer than five distinct points in all, which UMAP cannot place, keep their first two PCA coordinates.
    """
    if not frames:
        return []
    every = np.concatenate([points for _, points in frames]).astype(np.float32)
    distinct, where = np.unique(np.round(every, 5), axis=0, return_inverse=True)
    placed = _place(distinct, seed)[where.reshape(-1)]
    out, at = [], 0
    for index, points in frames:
        out.append((index, placed[at : at + len(points)]))
        at += len(points)
    return out


def _place(points: np.ndarray, seed: int) -> np.ndarray:
    flat = np.zeros((len(points), 2), np.float32)
    flat[:, : min(2, points.shape[1])] = points[:, :2]
    if len(points) < FEW:
        return flat
    import umap

    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(points))[:MOST_FITTED])
    start = flat[chosen] - flat[chosen].mean(0)
    start *= 10 / max(float(np.abs(start).max()), 1e-9)  # UMAP's own scale; from PCA, so that both views are turned alike
    start += rng.normal(scale=1e-3, size=start.shape)  # UMAP divides by the spread of each axis
    fit = umap.UMAP(n_components=2, n_neighbors=min(NEIGHBOURS, len(chosen) - 1), min_dist=0.1, init=start, random_state=seed, n_jobs=1)
    out = np.empty((len(points), 2), np.float32)
    out[chosen] = fit.fit_transform(points[chosen])
    rest = np.setdiff1d(np.arange(len(points)), chosen)
    for at in range(0, len(rest), 256):
        some = rest[at : at + 256]
        out[some] = _between(points[some], points[chosen], out[chosen])
    return out


def _between(points: np.ndarray, known: np.ndarray, placed: np.ndarray) -> np.ndarray:
    """Where points not seen by the fit go: the mean of their nearest fitted points, weighted by nearness (how UMAP begins such a placement;
    its refinement takes a minute for a run of 256 passes)."""
    squares = (points**2).sum(1)[:, None] - 2 * points @ known.T + (known**2).sum(1)
    near = np.argpartition(squares, NEAR - 1, axis=1)[:, :NEAR]
    weight = 1 / np.sqrt(np.maximum(np.take_along_axis(squares, near, 1), 1e-12))
    return (placed[near] * (weight / weight.sum(1, keepdims=True))[..., None]).sum(1)

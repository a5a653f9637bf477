"""Cluster points of a run for people and for files: what each point is, where it lies, pass by pass.

Contract: `umap_points` and `pca_points` give frames [(pass, float32 [W + K, 2])] of one layer, in one plane for the whole run; `point_table` says what the
points are (a window position or a centroid, and its cluster), and `export_points` writes them. Axes have no unit. Source of the points:
`Clusters.points` (level full).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from polestar.analysis.projection import layer_points, umap_frames
from polestar.trace.trace import Trace

Frames = list[tuple[int, np.ndarray]]
WRITERS = {".csv": lambda table, path: table.to_csv(path, index=False), ".parquet": lambda table, path: table.to_parquet(path, index=False)}


def umap_points(trace: Trace, layer: int, seed: int = 0) -> Frames:
    """One seeded UMAP fit over all logged points of the layer. Takes seconds, the first time more. Raises ValueError for a layer that is not there."""
    return umap_frames(layer_points(trace, layer), seed)


def pca_points(trace: Trace, layer: int) -> Frames:
    """The first two coordinates of the run's own PCA basis of the layer. Raises ValueError for a layer that is not there."""
    out = []
    for index, points in layer_points(trace, layer):
        xy = np.zeros((len(points), 2), np.float32)
        xy[:, : min(2, points.shape[1])] = points[:, :2]
        out.append((index, xy))
    return out


def point_table(trace: Trace, layer: int, frames: Frames) -> Any:
    """pandas: pass, layer, kind (state or centroid), position (-1 for a centroid), cluster, selected, x, y; a row a point and pass."""
    import pandas as pd

    at, window, labels, rows = dict(frames), None, None, []
    for step in trace:
        c = step.clusters
        if c is not None and c.window is not None:
            window, labels = c.window, c.labels[layer]
        if step.index not in at or window is None:
            continue
        xy, W = at[step.index], len(window)
        K = len(xy) - W
        cluster = np.concatenate([labels, np.arange(K)]).astype(np.int64)
        chosen = np.zeros(K, bool) if c.selected is None else c.selected[layer]
        rows.append(pd.DataFrame({
            "pass": step.index, "layer": layer, "kind": np.repeat(["state", "centroid"], [W, K]), "position": np.concatenate([window, np.full(K, -1)]),
            "cluster": cluster, "selected": chosen[cluster], "x": xy[:, 0], "y": xy[:, 1],
        }))  # fmt: skip
    columns = ["pass", "layer", "kind", "position", "cluster", "selected", "x", "y"]
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=columns)


def export_points(trace: Trace, layer: int, frames: Frames, path: str | os.PathLike) -> Path:
    """Write `point_table` as .csv or .parquet, whole or not at all. Raises ValueError for another ending."""
    path = Path(path)
    if path.suffix not in WRITERS:
        raise ValueError(f"points are written as {' or '.join(WRITERS)}, not {path.suffix or 'a name without an ending'!r}; rename {path.name}")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        WRITERS[path.suffix](point_table(trace, layer, frames), beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return path

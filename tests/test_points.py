"""Cluster points of a real run: frames of one plane, what each point is, and the table on disk."""

import numpy as np
import pandas as pd
import pytest

from polestar.analysis.points import WRITERS, export_points, pca_points, point_table, umap_points
from polestar.config import DecodeConfig
from polestar.driver import decode


@pytest.fixture(scope="module")
def trace(llada):
    return decode(llada, [5, 17, 200, 33, 9, 411], DecodeConfig.make(gen_length=16, block_length=8, tau_upd=1, tau_s=0.6), level="full")


def test_frames_are_those_passes_that_logged_points(trace):
    logged = [s for s in trace if s.clusters is not None and s.clusters.points is not None]
    assert {s.kind for s in logged} >= {"entry-full", "within"}
    for frames in (pca_points(trace, 2), umap_points(trace, 2, seed=1)):
        assert [i for i, _ in frames] == [s.index for s in logged]
        assert all(xy.shape == (s.clusters.points.shape[1], 2) and np.isfinite(xy).all() for (_, xy), s in zip(frames, logged, strict=True))
    assert np.array_equal(pca_points(trace, 2)[0][1], logged[0].clusters.points[2, :, :2])
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(umap_points(trace, 2, 1), umap_points(trace, 2, 1), strict=True))


def test_the_table_says_what_each_point_is(trace):
    table = point_table(trace, 1, pca_points(trace, 1))
    entry = trace[0].clusters
    first = table[table["pass"] == 0]
    states = first[first.kind == "state"]
    assert states.position.tolist() == entry.window.tolist() and states.cluster.tolist() == entry.labels[1].tolist()
    assert first[first.kind == "centroid"].cluster.tolist() == list(range(entry.counts.shape[1])) and not first.selected.any()
    refresh = next(s for s in trace if s.refresh)
    at = table[(table["pass"] == refresh.index) & (table.kind == "centroid")]
    assert at.selected.tolist() == refresh.clusters.selected[1].tolist()
    assert point_table(trace, 1, []).empty


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_points_on_disk(trace, tmp_path, ending):
    frames = pca_points(trace, 0)
    path = export_points(trace, 0, frames, tmp_path / f"points.{ending}")
    back = pd.read_csv(path) if ending == "csv" else pd.read_parquet(path)
    pd.testing.assert_frame_equal(back, point_table(trace, 0, frames), check_dtype=False)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_another_ending_is_refused_and_a_failure_leaves_nothing(trace, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"\.csv or \.parquet"):
        export_points(trace, 0, [], tmp_path / "points.xlsx")
    kept = tmp_path / "points.csv"
    kept.write_text("mine")

    def half(table, path):
        path.write_text("half")
        raise OSError("the disk is full")

    monkeypatch.setitem(WRITERS, ".csv", half)
    with pytest.raises(OSError, match="disk is full"):
        export_points(trace, 0, [], kept)
    assert kept.read_text() == "mine" and len(list(tmp_path.iterdir())) == 1

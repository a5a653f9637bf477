"""UMAP of a run: seeded, one plane for all passes, and the odd cases."""

from __future__ import annotations

import numpy as np
import pytest

from polestar.analysis.projection import layer_points, umap_frames
from tests.trace_samples import full_trace


def clouds(passes: int, seed: int = 0) -> list[tuple[int, np.ndarray]]:
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(3, 8)) * 6
    label = np.arange(30) % 3
    return [(i * 2, (centre[label] + 0.3 * rng.normal(size=(30, 8))).astype(np.float32)) for i in range(passes)]


def test_three_clouds_stay_three_clouds_in_every_pass_and_twice_the_same():
    frames = clouds(4)
    placed = umap_frames(frames)
    again = umap_frames(frames)
    assert [i for i, _ in placed] == [0, 2, 4, 6]
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(placed, again, strict=True))
    label = np.arange(30) % 3
    middle = np.stack([np.concatenate([xy[label == k] for _, xy in placed]).mean(0) for k in range(3)])
    for _, xy in placed:  # the same plane for all passes: each point is nearest to the middle of its own cloud
        assert np.array_equal(((xy[:, None] - middle) ** 2).sum(-1).argmin(1), label)


def test_points_beyond_the_fit_are_placed_among_their_own(monkeypatch):
    monkeypatch.setattr("polestar.analysis.projection.MOST_FITTED", 60)
    placed = umap_frames(clouds(5))
    label = np.arange(30) % 3
    middle = np.stack([np.concatenate([xy[label == k] for _, xy in placed]).mean(0) for k in range(3)])
    for _, xy in placed:
        assert np.isfinite(xy).all()
        assert np.array_equal(((xy[:, None] - middle) ** 2).sum(-1).argmin(1), label)


@pytest.mark.parametrize("points", [np.zeros((9, 4)), np.eye(3), np.ones((1, 1)), np.arange(8.0).reshape(8, 1), np.arange(20.0).reshape(5, 4)])
def test_few_or_identical_points_have_a_place(points):
    ((index, xy),) = umap_frames([(7, points.astype(np.float32))])
    assert index == 7 and xy.shape == (len(points), 2) and np.isfinite(xy).all()
    same = (points[:, None] == points).all(-1)
    assert np.allclose((xy[:, None] - xy)[same], 0)


def test_no_points_no_frames_and_a_layer_that_is_not_there():
    trace = full_trace()
    assert umap_frames([]) == []
    with pytest.raises(ValueError, match="layer 99 is not in this trace"):
        layer_points(trace, 99)

"""d2Cache: rollout, certainty density and the four rules that choose rows."""

import math
from itertools import pairwise

import pytest
import torch

from polestar.cache.d2 import certainty_density, gaps, nucleus, rollout_columns
from tests.test_method_cache_common import PROMPT, steps_of


def test_column_sums_equal_the_rollout_product():
    rng, length = torch.Generator().manual_seed(1), 9
    index = torch.tensor([0, 2, 3, 7])
    layers = [torch.softmax(torch.randn(4, length, generator=rng), -1) for _ in range(5)]
    rollout = torch.eye(length, dtype=torch.float64)
    for attention in layers:
        mixed = torch.eye(length, dtype=torch.float64)
        mixed[index] = attention.double()
        mixed = mixed + torch.eye(length, dtype=torch.float64)
        rollout = mixed / mixed.sum(-1, keepdim=True) @ rollout
    assert rollout_columns(layers, index, length).tolist() == pytest.approx(rollout.sum(0).tolist(), rel=1e-5)


def test_certainty_density_of_the_note():
    # Half of the kernel without its centre lies on the known prompt: (25.07 - 1) / 2 / 25.07.
    start = certainty_density(torch.zeros(256, dtype=torch.bool), 10.0)
    assert float(start[0]) == pytest.approx(0.480, abs=5e-4)
    assert float(start[40]) < 1e-3 and float(start[-1]) == 0.0
    assert certainty_density(torch.ones(64, dtype=torch.bool), 10.0).tolist() == pytest.approx([1.0] * 64)


def test_certainty_density_is_a_plain_weighted_share():
    known = torch.rand(12, generator=torch.Generator().manual_seed(3)) > 0.5
    known[-1] = True
    for i, value in enumerate(certainty_density(known, 2.0).tolist()):
        offsets = range(-12, 13)
        weight = {o: math.exp(-(o**2) / 8) for o in offsets}
        hit = sum(weight[o] for o in offsets if i + o < 0 or i + o >= 12 or known[i + o])
        assert value == pytest.approx(hit / sum(weight.values()), rel=1e-5)


def test_nucleus_stops_before_the_share_is_crossed():
    importance, open_ = torch.tensor([5.0, 1.0, 3.0, 0.5, 0.5]), torch.tensor([False, True, True, True, True])
    assert nucleus(importance, open_, 0.5).nonzero()[:, 0].tolist() == [2]  # 3 of 5 crosses one half, but one is taken
    assert nucleus(importance, open_, 0.8).nonzero()[:, 0].tolist() == [1, 2]
    assert nucleus(importance, open_, 1.0).tolist() == open_.tolist()
    assert not nucleus(importance, torch.zeros(5, dtype=torch.bool), 0.5).any()


def test_gaps_between_fed_rows_are_filled_up_to_the_width():
    fed = torch.zeros(14, dtype=torch.bool)
    fed[[2, 4, 8, 13]] = True
    assert gaps(fed, 4).nonzero()[:, 0].tolist() == [3, 5, 6, 7]
    assert gaps(fed, 5).nonzero()[:, 0].tolist() == [3, 5, 6, 7, 9, 10, 11, 12]
    assert not gaps(fed, 0).any()


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_the_log_names_every_row_and_only_fed_masks_are_decoded(request, family):
    loaded = request.getfixturevalue(family)
    shift = int(loaded.config.shift)
    steps = steps_of(loaded, "d2cache", masks=10, inflate_w=2)
    assert "chosen" not in steps[0].extra and steps[0].rows == len(PROMPT) + 44
    for before, step in pairwise(steps):
        chosen = step.extra["chosen"]
        rows = [int(p) for part in chosen.values() for p in part]
        assert len(rows) == len(set(rows)) == step.rows
        assert len(chosen["masks"]) <= 10 and len(chosen["rollout"]) >= 1
        assert {c.position for c in before.commits} <= set(rows)
        candidates = {step.block_start + i for i, token in enumerate(step.argmax) if token >= 0}
        assert candidates and {p - shift for p in candidates} <= set(rows)
        if not step.kind.startswith("entry") and len(candidates) < 10:
            assert any(p >= step.block_end - shift for p in chosen["masks"]) or step.block_end == len(PROMPT) + 44


def test_confidences_of_the_first_pass_may_be_kept(llada):
    fresh, stale = (steps_of(llada, "d2cache", stale_conf=flag, gen_length=96, masks=24) for flag in (False, True))
    assert fresh[0].commits == stale[0].commits
    assert any(a.extra["chosen"]["masks"].tolist() != b.extra["chosen"]["masks"].tolist() for a, b in zip(fresh[1:], stale[1:], strict=False))

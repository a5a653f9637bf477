"""EntropyCache: when a pass is full, what a partial pass feeds, and what the log says of it."""

import math
from itertools import pairwise

import pytest
import torch

from polestar.cache.entropy import entropy
from tests.test_method_cache_common import PROMPT, steps_of


def test_entropy_is_in_nats_of_the_plain_softmax():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [50.0, 0.0, 0.0, 0.0], [math.log(3.0), 0.0, -math.inf, -math.inf]])
    expected = [math.log(4), 0.0, -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))]
    logits[logits == -math.inf] = -1e4
    assert entropy(logits).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_pass_is_full_exactly_after_an_entropy_above_the_threshold(request, family):
    tau = 1.6
    steps = steps_of(request.getfixturevalue(family), "entropycache", tau_e=tau, tau_s=0.3)
    assert {s.rows == len(PROMPT) + 44 for s in steps[1:]} == {True, False}
    for before, step in pairwise(steps):
        full = before.extra["entropy"] > tau
        assert (step.rows == len(PROMPT) + 44) == full
        assert step.refresh == (full and not step.kind.startswith("entry"))
        assert step.refresh_reason == (f"E = {before.extra['entropy']:.3g} > τ_E = {tau:g}" if full else "")
        assert before.extra["entropy"] == max(before.extra["entropies"]) and len(before.extra["entropies"]) == len(before.commits)


def test_a_threshold_of_infinity_recomputes_once(llada):
    steps = steps_of(llada, "entropycache", tau_e="inf", recent=3)
    assert [s.rows == len(PROMPT) + 44 for s in steps] == [True] + [False] * (len(steps) - 1)
    # Masks of the block and the three last committed positions, which may not be masks.
    done = 0
    for step in steps:
        masks = step.block_end - step.block_start - max(0, done - (step.block_start - len(PROMPT)))
        assert step.index == 0 or step.rows == masks + min(3, done)
        done += len(step.commits)


def test_a_block_entry_refreshes_only_when_asked(llada):
    plain = steps_of(llada, "entropycache", tau_e="inf")
    asked = steps_of(llada, "entropycache", tau_e="inf", refresh_on_block=True)
    assert [s.kind for s in plain if s.kind.startswith("entry")] == ["entry-full", "entry-window", "entry-window"]
    assert [s.kind for s in asked if s.kind.startswith("entry")] == ["entry-full"] * 3


def test_dream_feeds_the_row_before_each_mask(dream):
    step = steps_of(dream, "entropycache", tau_e="inf", recent=0)[1]
    masked = {int(i) + step.block_start for i in range(16) if step.argmax[i] >= 0}
    assert step.rows == len(masked | {p - 1 for p in masked})

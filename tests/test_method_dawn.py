"""DAWN: what is committed together does not depend on each other."""

import numpy as np
import pytest
import torch

from polestar.commit.dawn import dependencies, independent
from polestar.config import DecodeConfig
from polestar.driver import decode
from tests import scripted
from tests.goldens import record
from tests.scripted import Scripted

P, B = 3, 6


def dawn(confidence: dict[int, float], edges: dict[tuple[int, int], float], *, known: float = 0.0, **values):
    """First pass of a block of 6 after a prompt of 3, with given confidences by block position and attention {(k, q): weight} by absolute position."""
    values = {"tau_low": 0.7, "tau_induce": 0.7, "tau_edge": 0.07, "tau_sink": 0.5, "attention_depth": 1} | values

    def script(i, position):
        return (5, confidence.get(position - P, 0.1) if position >= P else known)

    def attention(i, start, end):
        a = torch.zeros(2, end - start, end)
        for (k, q), weight in edges.items():
            a[:, q - start, k] = weight
        return a

    model = Scripted(script, attention=attention)
    decoder = scripted.Decoder(model, (1, 2, 3), DecodeConfig.make(method="dawn", gen_length=B, block_length=B, **values))
    step = decoder.step()
    return {c.position - P: c.reason for c in step.commits}, step


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_without_edges_it_is_threshold_decoding_at_tau_low(request, family):
    loaded, prompt = request.getfixturevalue(family), record("llada_p7_g128")["meta"]["prompt"]
    ours = decode(loaded, prompt, DecodeConfig.make(method="dawn", gen_length=44, block_length=16, tau_edge=1.01, tau_low=0.6))
    theirs = decode(loaded, prompt, DecodeConfig.make(method="parallel", gen_length=44, block_length=16, tau_s=0.6))
    assert [[(c.position, c.token) for c in s.commits] for s in ours] == [[(c.position, c.token) for c in s.commits] for s in theirs]
    # Attention that is kept is computed another way: equal up to rounding.
    confidence = [[c.confidence for step in trace for c in step.commits] for trace in (ours, theirs)]
    assert confidence[0] == pytest.approx(confidence[1], abs=1e-4)
    assert all(len(s.extra["dawn"]["edges"]) == 0 for s in ours)


def test_plain_threshold_when_nothing_below_tau_s_may_go(llada):
    prompt = record("llada_p7_g128")["meta"]["prompt"]
    ours = decode(llada, prompt, DecodeConfig.make(method="dawn", gen_length=44, block_length=16, tau_low=0.9, tau_induce=1.5))
    theirs = decode(llada, prompt, DecodeConfig.make(method="parallel", gen_length=44, block_length=16))
    assert [[c.position for c in s.commits] for s in ours] == [[c.position for c in s.commits] for s in theirs]


def test_edges_of_the_tiny_model_change_the_decode(llada):
    prompt = record("llada_p40_g128")["meta"]["prompt"]
    values = {"gen_length": 44, "block_length": 16, "tau_sink": 0.5, "tau_edge": 0.03, "tau_low": 0.5, "tau_induce": 0.5}
    ours = decode(llada, prompt, DecodeConfig.make(method="dawn", **values))
    free = decode(llada, prompt, DecodeConfig.make(method="dawn", **values | {"tau_edge": 2.0}))
    assert ours.complete and sum(len(s.extra["dawn"]["edges"]) for s in ours)
    assert [[c.position for c in s.commits] for s in ours] != [[c.position for c in s.commits] for s in free]


def test_confident_independent_and_conflicting_tokens():
    # 0 is confident; 1 and 2 depend on each other; 3 is free; 4 is below tau_low.
    reasons, _ = dawn({0: 0.95, 1: 0.8, 2: 0.85, 3: 0.75, 4: 0.6}, {(P + 1, P + 2): 0.2})
    assert reasons == {0: "confidence", 2: "independent", 3: "independent"}


def test_equal_confidences_the_lower_position_goes():
    reasons, _ = dawn({1: 0.8, 2: 0.8}, {(P + 2, P + 1): 0.2})
    assert reasons == {1: "independent"}


def test_tokens_induced_by_a_settled_one():
    # Position 0 (prompt) is predicted with 0.95, an edge leads to block position 4.
    confidence = {0: 0.95, 4: 0.72, 5: 0.65}
    reasons, step = dawn(confidence, {(0, P + 4): 0.3, (0, P + 5): 0.3}, known=0.95, tau_low=0.8)
    assert reasons == {0: "confidence", 4: "induced"}
    assert step.extra["dawn"]["anchors"].tolist() == [0]
    assert dawn(confidence, {(0, P + 4): 0.3}, known=0.5, tau_low=0.8)[0] == {0: "confidence"}


def test_what_depends_on_a_chosen_token_waits():
    # 0 is confident and induced, 1 depends on it; 2 depends on 3, which is confident but not induced.
    confidence, edges = {0: 0.95, 1: 0.8, 3: 0.95, 2: 0.8}, {(0, P): 0.3, (P, P + 1): 0.3, (P + 3, P + 2): 0.3}
    both, step = dawn(confidence, edges, known=0.95)
    assert both == {0: "confidence", 3: "confidence", 2: "independent"}
    assert step.extra["dawn"]["held"].tolist() == [P + 1]
    either, _ = dawn(confidence, edges, known=0.95, block_from="or")
    assert either == {0: "confidence", 3: "confidence"}


def test_nothing_chosen_commits_the_most_confident():
    reasons, _ = dawn({1: 0.4, 3: 0.5}, {})
    assert reasons == {3: "forced"}


def test_edges_in_the_log_are_key_to_query_with_their_weight():
    _, step = dawn({1: 0.8, 2: 0.85}, {(P + 1, P + 2): 0.2, (P + 2, P + 1): 0.05, (0, P + 3): 0.4}, known=0.2)
    log = step.extra["dawn"]
    assert log["edges"].tolist() == [[P + 1, P + 2]]  # 0.05 is below the threshold, and the prompt token is no anchor
    assert log["weights"].tolist() == pytest.approx([0.2])


def test_a_sink_and_a_position_itself_make_no_edge():
    a = torch.full((2, 4, 4), 0.05)
    a[:, :, 0] = 0.6  # every query looks at position 0
    a[:, 2, 2], a[:, 2, 3] = 0.9, 0.3
    found = dependencies([a], torch.tensor([2, 3]), 4, 0.2, 0.5)
    assert found.sinks == 1
    assert found.edge.nonzero().tolist() == [[0, 3]]


def test_attention_is_the_mean_over_heads_and_layers():
    first, second = torch.zeros(2, 3, 3), torch.zeros(2, 3, 3)
    first[0, 2, 1], second[:, 2, 1] = 0.4, 0.4
    found = dependencies([first, second], torch.tensor([2]), 3, 0.29, 1.0)
    assert found.attention[0, 1] == pytest.approx(0.3)
    assert found.edge.nonzero().tolist() == [[0, 1]]


def test_the_independent_set_against_brute_rules():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        n = int(torch.randint(1, 9, (1,), generator=generator))
        edge, confidence = torch.rand(n, n, generator=generator) < 0.3, torch.rand(n, generator=generator)
        edge.fill_diagonal_(False)
        candidates = torch.rand(n, generator=generator) < 0.8
        taken = independent(candidates, confidence, edge)
        conflict = edge | edge.T
        assert not bool((taken & ~candidates).any())
        assert not bool(conflict[taken][:, taken].any())
        for i in (candidates & ~taken).nonzero()[:, 0].tolist():
            # Left out only because a more confident neighbour was taken.
            assert bool((conflict[i] & taken & (confidence >= confidence[i])).any())


def test_attention_of_the_last_layers_is_asked_and_rows_sum_to_one(llada):
    prompt = record("llada_p7_g128")["meta"]["prompt"]
    decoder = scripted.Decoder(llada.model, prompt, DecodeConfig.make(method="dawn", gen_length=12, block_length=12, attention_depth=3))
    seen = {}
    run = llada.model.run

    def spy(plan, *args):
        result = run(plan, *args)
        seen.update(result.attentions)
        return result

    llada.model.run = spy
    try:
        decoder.step()
    finally:
        del llada.model.run
    assert sorted(seen) == [1, 2, 3]
    for a in seen.values():
        assert a.shape == (4, 19, 19)
        assert np.abs(a.sum(-1).numpy() - 1).max() < 1e-5

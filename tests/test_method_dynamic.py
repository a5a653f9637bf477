"""Dynamic-dLLM: rows of each layer, its budgets, and the threshold that follows predictions."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from polestar.cache.dynamic import turn
from polestar.clock import PhaseClock
from polestar.config import DecodeConfig
from polestar.driver import Decoder
from polestar.models.transformer import rotate
from tests.test_method_cache_common import PROMPT, choices, steps_of

P, G = len(PROMPT), 44


def test_turn_is_one_minus_the_cosine_of_the_joined_heads():
    a, b = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]])
    assert turn(a, b).tolist() == pytest.approx([0.0], abs=1e-6)
    assert turn(a, -b).tolist() == pytest.approx([2.0])
    assert turn(a, torch.tensor([[[1.0, 0.0]], [[0.0, 0.0]]])).tolist() == pytest.approx([1 - 2**-0.5])


def test_each_layer_computes_window_and_budget(llada):
    steps = steps_of(llada, "dynamic-dllm", window_size=6, layer_budget=5)
    n = llada.config.n_layers
    assert "layer_rows" not in steps[0].extra and steps[0].rows == P + G
    last = steps[0].commits[-1].position
    for step in steps[1:]:
        assert step.extra["layer_rows"] == [P + G] + [7 + 5] * (n - 1)
        assert step.extra["budgets"] == [None] + [5] * (n - 1)
        a, b = step.extra["window"]
        assert b - a == 7 and a >= P and b <= P + G and (a + b - 1 == 2 * last or a == P or b == P + G)
        last = step.commits[-1].position


def test_without_window_and_budget_only_layer_0_is_computed(llada):
    steps = steps_of(llada, "dynamic-dllm", window_size=0, layer_budget=0)
    assert {tuple(s.extra["layer_rows"]) for s in steps[1:]} == {(P + G, *[0] * (llada.config.n_layers - 1))}


def test_intervals_refresh_prompt_and_generation(llada):
    steps = steps_of(llada, "dynamic-dllm", window_size=0, layer_budget=1, prompt_interval=4, gen_interval=6)
    for step in steps[1:]:
        prompt, generation = step.index % 4 == 0, step.index % 6 == 0
        assert step.extra.get("layer_rows", [P + G] * 4)[1] == (P if prompt else 0) + (G if generation else 1)
        assert step.refresh == (prompt or generation)
        due = " and ".join(["prompt"] * prompt + ["generation"] * generation)
        assert step.refresh_reason == (f"interval of the {due}" if due else "")


def test_drift_of_a_layer_draws_budget(llada):
    steps = steps_of(llada, "dynamic-dllm", window_size=0, layer_budget=10, layer_weight_scale=50)
    n = llada.config.n_layers
    assert steps[1].extra["budgets"] == [None] + [10] * (n - 1)
    for before, step in pairwise(steps[1:]):
        drift = np.array(before.extra["value_drift"])
        weights = np.exp(50 * drift) / np.exp(50 * drift).sum()
        assert step.extra["budgets"][1:] == [min(G, int(10 * n * w + 1e-6)) for w in weights[1:]]
    assert any(len(set(s.extra["budgets"][1:])) > 1 for s in steps[2:])


def test_a_drifting_row_is_chosen_before_a_still_one(llada):
    decoder = Decoder(llada.model, PROMPT, DecodeConfig.make(method="dynamic-dllm", gen_length=G, window_size=4, layer_budget=2))
    decoder.step()
    hook = decoder.plan.hook
    hook.window = (3, 8)
    turned = torch.zeros(G)
    turned[[4, 20, 30]] = torch.tensor([9.0, 1.0, 2.0])
    assert hook.choose(turned, 2).tolist() == [3, 4, 5, 6, 7, 20, 30]
    assert hook.choose(turned, 1).tolist() == [3, 4, 5, 6, 7, 30]


def test_a_fixed_threshold_is_the_adaptive_one_that_does_not_move(llada):
    fixed = steps_of(llada, "dynamic-dllm", tau_s=0.4)
    for mode in ("mean", "each"):
        assert choices(steps_of(llada, "dynamic-dllm", tau_s=0.4, apd=mode, apd_alpha=0, apd_beta=0)) == choices(fixed)


def test_one_threshold_moves_by_mean_peak_and_shift(llada):
    steps = steps_of(llada, "dynamic-dllm", apd="mean", tau_s=1.0)
    threshold = 1.0
    assert "peak" not in steps[0].extra
    for step in steps:
        if step.index:
            threshold += 0.15 * step.extra["shift"] - 0.01 * step.extra["peak"]
        seen = step.extra["thresholds"]
        assert np.isnan(seen).sum() == (step.argmax < 0).sum()
        assert np.nanmin(seen) == pytest.approx(threshold, abs=1e-5) and np.nanmax(seen) == pytest.approx(threshold, abs=1e-5)
        for c in step.commits:
            assert (c.confidence >= threshold - 1e-5) == (c.reason == "confidence")


def test_each_position_has_its_own_threshold(llada):
    steps = steps_of(llada, "dynamic-dllm", apd="each", tau_s=0.9, apd_beta=1.0)
    assert any(np.nanmax(s.extra["thresholds"]) - np.nanmin(s.extra["thresholds"]) > 1e-3 for s in steps[1:])
    assert sorted(c.position for s in steps for c in s.commits) == list(range(P, P + G))


@torch.inference_mode()
def test_values_are_renewed_in_every_row_and_keys_in_the_chosen_ones(llada):
    model = llada.model
    config = DecodeConfig.make(method="dynamic-dllm", gen_length=G, block_length=16, window_size=4, layer_budget=6)
    decoder = Decoder(model, PROMPT, config)
    length, block, kv = P + G, model.layers[1], decoder.run.kv
    every = model.rows((0, length), length)
    decoder.step()
    for _ in range(4):
        tokens, keys, values = decoder.run.canvas.tokens.clone(), kv.k[1].clone(), kv.v[1].clone()
        decoder.step()
        # Layer 0 is always computed in full, so the input of layer 1 is that of a pass without a cache.
        x = model.run_layer(0, model.embed(tokens), every, model.new_store(length), clock=PhaseClock(enabled=False))
        normed = block.attn_norm(x)
        new_keys, new_values = rotate(block.keys(normed), every.cos, every.sin), block.values(normed)
        assert torch.allclose(kv.v[1][:, P:], new_values[:, P:], atol=1e-5)
        assert torch.equal(kv.v[1][:, :P], values[:, :P]) and torch.equal(kv.k[1][:, :P], keys[:, :P])
        chosen = ~(kv.k[1] == keys).all(-1).all(0)
        assert int(chosen.sum()) <= 5 + 6
        assert torch.allclose(kv.k[1][:, chosen], new_keys[:, chosen], atol=1e-5)
        # Of the rows that keep their key, none turned more than a chosen one outside the window.
        turned = torch.full((length,), -1.0)
        turned[P:] = turn(new_values[:, P:], values[:, P:])
        a, b = decoder.plan.hook.window
        inside = torch.zeros(length, dtype=torch.bool)
        inside[P + a : P + b] = True
        assert float(turned[chosen & ~inside].min()) >= float(turned[P:][~chosen[P:] & ~inside[P:]].max()) - 1e-5

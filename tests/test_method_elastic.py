"""Elastic-Cache and its sliding window, against a plain recomputation that keeps every layer's input."""

from itertools import pairwise

import pytest
import torch

from polestar.clock import PhaseClock
from polestar.config import DecodeConfig
from polestar.driver import Decoder
from polestar.models.transformer import rotate
from tests.test_method_cache_common import PROMPT, choices, steps_of


def test_the_window_is_the_first_masked_positions_and_moves_every_pass(llada):
    steps = steps_of(llada, "elastic-cache", block_length=8, tau_s=0.3)
    masked = set(range(len(PROMPT), len(PROMPT) + 44))
    assert [s.kind for s in steps] == ["entry-full"] + ["within"] * (len(steps) - 1)
    for step in steps:
        window = sorted(masked)[:8]
        assert (step.block_start, step.block_end) == (window[0], window[-1] + 1)
        assert [step.block_start + i for i, token in enumerate(step.argmax) if token >= 0] == window
        masked -= {c.position for c in step.commits}
    assert not masked
    assert [s.block for s in steps] == sorted(s.block for s in steps)


def test_gamma_minus_one_never_recomputes_and_two_always_from_layer_1(llada):
    never, always = (steps_of(llada, "elastic-cache", gamma=g) for g in (-1, 2))
    assert not any(s.refresh for s in never) and {s.extra["reset_layer"] for s in never[1:]} == {None}
    assert all(s.refresh for s in always[1:]) and {s.extra["reset_layer"] for s in always[1:]} == {1}
    first = always[1].extra["layer_rows"]
    assert first[0] < first[1] == len(PROMPT) + 44 and always[1].rows == round(sum(first) / len(first))
    assert always[1].refresh_reason.endswith("< γ = 2 at layer 0; recomputed from layer 1")


def test_the_reset_layer_follows_the_similarity(llada):
    steps = steps_of(llada, "elastic-cache", gen_length=96, block_length=32)
    n = llada.config.n_layers
    assert len({s.extra["reset_layer"] for s in steps[1:]}) > 1
    for step in steps[1:]:
        seen, reset = step.extra["similarity"], step.extra["reset_layer"]
        below = [layer for layer, value in enumerate(seen) if value < 0.9]
        assert below[:1] in ([], [len(seen) - 1])  # nothing is tested after the first layer that drifted
        assert reset == (below[0] + 1 if below and below[0] + 1 < n else None)


@pytest.mark.parametrize("reset", [1, 2])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_reset_computes_all_rows_from_the_kept_inputs(request, family, reset):
    model = request.getfixturevalue(family).model
    config = DecodeConfig.make(method="elastic-cache", reset_layer=reset, gen_length=44, block_length=16)
    decoder = Decoder(model, PROMPT, config)
    length = len(PROMPT) + 44
    kv, clock = model.new_store(length), PhaseClock(enabled=False)
    every, tokens = model.rows((0, length), length), decoder.run.canvas.tokens
    kept = [torch.zeros(length, model.cfg.d_model) for _ in range(model.cfg.n_layers + 1)]
    for i in range(6):
        before = tokens.clone()
        step = decoder.step()
        fed = decoder.plan.rows
        rows = every if fed == (0, length) else model.rows(fed, length)
        with torch.inference_mode():
            kept[0] = model.embed(before)
            for layer in range(model.cfg.n_layers):
                some = rows if layer < reset else every
                kept[layer + 1][some.index] = model.run_layer(layer, kept[layer][some.index], some, kv, clock=clock)
            positions = torch.tensor([step.block_start + j for j, token in enumerate(step.argmax) if token >= 0])
            logits = model.logits(kept[-1][model.row_for(positions)])
        assert (i > 0) == (len(rows) < length)
        assert logits.argmax(-1).tolist() == [int(token) for token in step.argmax if token >= 0]
        assert torch.softmax(logits, -1).amax(-1).tolist() == pytest.approx(step.conf[positions - step.block_start].tolist(), abs=1e-4)


@pytest.mark.parametrize("axis", ["heads", "keys"])
def test_similarity_compares_attention_before_and_after_the_commits(llada, axis):
    model = llada.model
    config = DecodeConfig.make(method="elastic-cache", gamma=-1, gen_length=44, block_length=16, sim_axis=axis)
    decoder = Decoder(model, PROMPT, config)
    length, layer = len(PROMPT) + 44, model.layers[0]
    rows = model.rows((0, length), length)

    def attention(tokens):
        normed = layer.attn_norm(model.embed(tokens))
        q, k = (rotate(part, rows.cos, rows.sin) for part in (layer.queries(normed), layer.keys(normed)))
        return torch.softmax(q @ k.transpose(-1, -2) / model.cfg.head_dim**0.5, -1)

    seen = decoder.run.canvas.tokens.clone()
    decoder.step()
    for _ in range(5):
        # In layer 0 the keys change where the pass before committed, and so does the attention of every tracked token.
        now = decoder.run.canvas.tokens.clone()
        step = decoder.step()
        old, new = (attention(tokens)[:, step.extra["tracked"]] for tokens in (seen, now))
        dots, norms = (old * new), (old**2, new**2)
        over = 0 if axis == "heads" else -1
        cosine = dots.sum(over) / (norms[0].sum(over) * norms[1].sum(over)).sqrt()
        assert step.extra["similarity"][0] == pytest.approx(float(cosine.mean()), abs=1e-5)
        seen = now


def test_a_partial_pass_feeds_tracked_decoded_and_window(llada):
    steps = steps_of(llada, "elastic-cache", gamma=-1, gen_length=96, block_length=8)
    for before, step in pairwise(steps):
        decoded, tracked = {c.position for c in before.commits}, set(step.extra["tracked"].tolist())
        masks = {step.block_start + i for i, token in enumerate(step.argmax) if token >= 0}
        assert step.rows == len(decoded | tracked | masks) and not tracked & (decoded | masks)
        assert tracked == {p for layer in before.extra["most_attended"] for p in layer}


def test_both_cosines_and_far_masks_are_options(llada):
    heads, keys = (steps_of(llada, "elastic-cache", gen_length=96, block_length=32, sim_axis=axis) for axis in ("heads", "keys"))
    assert heads[1].extra["similarity"][0] != keys[1].extra["similarity"][0]
    far = steps_of(llada, "elastic-cache", block_caching=False, gamma=-1)
    near = steps_of(llada, "elastic-cache", gamma=-1)
    assert far[1].rows - near[1].rows == 44 - len(far[0].commits) - 16
    assert choices(far) != []

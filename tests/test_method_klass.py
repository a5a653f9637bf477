"""KLASS: confident and stable tokens, by the KL between passes."""

import math

import numpy as np
import pytest
import torch

from polestar.config import DecodeConfig
from polestar.driver import decode
from tests import scripted
from tests.goldens import record
from tests.scripted import EOS, Scripted, row


def strict_threshold(model, prompt, gen, block, tau):
    """Reference: every token above tau (strictly), else the best one; no cache, straight on the plain forward pass."""
    tokens = torch.tensor([*prompt, *[model.cfg.mask_id] * gen])
    passes = []
    for start in range(len(prompt), len(tokens), block):
        end = min(start + block, len(tokens))
        while True:
            at = (tokens[start:end] == model.cfg.mask_id).nonzero()[:, 0] + start
            if not len(at):
                break
            with torch.inference_mode():
                logits = model(tokens[None])[0, model.row_for(at)].double()
            logits_no_mask = logits.clone()
            logits_no_mask[:, model.cfg.mask_id] = -math.inf
            token = logits_no_mask.argmax(-1)
            c = torch.softmax(logits, -1).gather(1, token[:, None])[:, 0]
            go = c > tau
            if not go.any():
                go[c.argmax()] = True
            tokens[at[go]] = token[go]
            passes.append(at[go].tolist())
    return passes, tokens.tolist()


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_without_a_kl_threshold_and_with_one_pass_of_history_it_is_a_strict_threshold(request, family):
    loaded, prompt = request.getfixturevalue(family), record("llada_p7_g128")["meta"]["prompt"]
    config = DecodeConfig.make(method="klass", gen_length=36, block_length=16, kl_threshold="inf", kl_history=1, tau_conf=0.7)
    trace = decode(loaded, prompt, config)
    passes, tokens = strict_threshold(loaded.model, prompt, 36, 16, 0.7)
    assert [[c.position for c in s.commits] for s in trace] == passes
    assert trace.canvas_at(len(trace) - 1).tolist() == tokens


def test_the_threshold_is_strict():
    def script(i, position):
        return (5, 0.5)

    first = scripted.decode(Scripted(script), method="klass", gen_length=4, kl_threshold="inf", kl_history=1, tau_conf=0.1)
    exact = first[0].commits[0].confidence
    assert len(first[0].commits) == 4
    equal = scripted.decode(Scripted(script), method="klass", gen_length=4, kl_threshold="inf", kl_history=1, tau_conf=exact)
    assert [[c.reason for c in s.commits] for s in equal] == [["forced"]] * 4


def test_kl_and_history_decide():
    # Position 0 changes its mind in pass 2 (same confidence, other token); the others stand still.
    def script(i, position):
        return (7, 0.95) if position == 3 and i >= 2 else (5, 0.95)

    trace = scripted.decode(Scripted(script), method="klass", gen_length=6, block_length=6)
    # Pass 0 compares with nothing and pass 1 still has that in its history, so the schedule commits one each.
    assert [len(s.commits) for s in trace[:3]] == [1, 1, 4]
    assert trace[0].commits[0].reason == "forced"
    assert {c.reason for c in trace[2].commits} == {"confidence"}
    assert trace[0].commits[0].position == 3  # the first of equals: it has left before it changes its mind
    late = scripted.decode(Scripted(lambda i, p: (7, 0.95) if p == 8 and i >= 2 else (5, 0.95)), method="klass", gen_length=6, block_length=6)
    assert [[c.position for c in s.commits] for s in late] == [[3], [4], [5, 6, 7], [8]]
    assert late[2].extra["klass"]["stable"].tolist() == [5, 6, 7]
    p, q = torch.softmax(row(7, 0.95), -1), torch.softmax(row(5, 0.95), -1)
    assert late[2].extra["klass"]["kl"][5] == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-4)
    assert late[1].extra["klass"]["kl"][5] == 0.0
    assert np.isnan(late[2].extra["klass"]["kl"][0])


def test_the_first_pass_of_the_run_is_unstable_and_history_carries_into_later_blocks():
    trace = scripted.decode(Scripted(lambda i, p: (EOS, 0.99)), method="klass", gen_length=12, block_length=4)
    # Block 0: schedule, schedule, the rest. Later blocks: schedule, then everything (two passes a block of [EOS]).
    assert [len(s.commits) for s in trace] == [1, 1, 2, 1, 3, 1, 3]
    assert trace[0].extra["klass"]["kl"][0] == pytest.approx(27.6, abs=0.5)
    assert trace.metrics()["tpf"] == 0


def test_longer_history_waits_longer():
    trace = scripted.decode(Scripted(lambda i, p: (5, 0.99)), method="klass", gen_length=8, block_length=8, kl_history=4)
    assert [len(s.commits) for s in trace] == [1, 1, 1, 1, 4]


def test_history_raised_during_a_run_reads_what_was_seen():
    decoder = scripted.Decoder(Scripted(lambda i, p: (5, 0.8)), (1, 2, 3), DecodeConfig.make(method="klass", gen_length=8, block_length=8))
    for _ in range(4):
        decoder.step()
    assert decoder.set("kl_history", 4) == "pass"
    decoder.set("tau_conf", 0.7)
    assert len(decoder.step().commits) == 4  # passes 1 to 4 were all stable


def test_steps_fewer_than_positions_never_overwrite_and_always_finish():
    trace = scripted.decode(Scripted(lambda i, p: (5, 0.5)), method="klass", gen_length=12, block_length=6, steps=4)
    assert [len(s.commits) for s in trace] == [3, 3, 3, 3]
    # With a ready token in between, fewer are committed than the schedule planned; the block is finished one by one.
    values = {"gen_length": 6, "block_length": 6, "steps": 2, "kl_history": 1, "kl_threshold": "inf"}
    ready = scripted.decode(Scripted(lambda i, p: (5, 0.95 if p == 7 else 0.5)), method="klass", **values)
    assert [[c.position for c in s.commits] for s in ready] == [[7], [3, 4, 5], [6], [8]]


def test_release_uses_the_public_block_length():
    assert DecodeConfig.make(method="klass", preset="release").block_length == 64
    assert DecodeConfig.make(method="klass").block_length == 32

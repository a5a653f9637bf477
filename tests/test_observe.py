"""Observe mode against independent computations, and the figures made from it."""

import math

import numpy as np
import pytest
import torch

from polestar.analysis import figures
from polestar.analysis.observe import VALUE_DIMS
from polestar.config import DecodeConfig
from polestar.decoders import METHODS
from polestar.driver import Decoder, decode
from polestar.fork import fork
from polestar.models.transformer import rotate
from polestar.trace import Clusters, Commit, Header, Step, Trace, digest, load, save
from polestar.trace.wire import UNSENT, dump, encode_step

PROMPT = [5, 17, 200, 33, 9, 411, 62, 7, 300, 21]
LP, G = len(PROMPT), 24
L = LP + G


def config(**values):
    return DecodeConfig.make(**({"gen_length": G, "block_length": 8} | values))


def run(loaded, **values):
    return decode(loaded, PROMPT, config(**values), level="full", observe=True)


@pytest.fixture(scope="module")
def polestar(llada):
    return run(llada, tau_upd=1, tau_suf=0.02)


@pytest.fixture(scope="module")
def dual(llada):
    return run(llada, method="fast-dllm-dual", tau_s=0.7)


def plain_pass(model, tokens):
    """Un-rotated keys, values [n][kv, L, hd], final-layer attention [h, L, L] and logits [L, V], written out from the weights alone."""
    cos, sin = model.rope(len(tokens))
    x, keys, values = model.embed(torch.as_tensor(tokens, dtype=torch.int64)), [], []
    for block in model.layers:
        normed = block.attn_norm(x)
        k, v = block.keys(normed), block.values(normed)
        q = rotate(block.queries(normed), cos, sin)
        group = block.n_heads // block.n_kv_heads
        big_k, big_v = rotate(k, cos, sin).repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        attention = torch.softmax(q @ big_k.transpose(-1, -2) / math.sqrt(block.head_dim), -1)
        x = x + block.o_proj((attention @ big_v).transpose(0, 1).flatten(1))
        x = x + block.mlp(x)
        keys.append(k)
        values.append(v)
    return keys, values, attention, model.head(model.norm(x))


def cosine(a, b):
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


@pytest.mark.parametrize("method", METHODS)
def test_observing_changes_no_token(llada, method):
    plain = decode(llada, PROMPT, config(method=method, temperature=0.4, seed=2), level="full")
    seen = run(llada, method=method, temperature=0.4, seed=2)
    assert [s.commits for s in plain] == [s.commits for s in seen] and [s.rows for s in plain] == [s.rows for s in seen]
    for s in seen:
        assert s.staleness.shape == (llada.config.n_layers, L) and s.staleness.dtype == np.float32
        assert (s.staleness >= 0).all() and (s.staleness <= 2).all()
        assert (s.full_drift is None) == (s.index == 0)
    for step in seen:
        dump(encode_step(step, seen.header))


def test_on_dream_too(dream):
    plain, seen = decode(dream, PROMPT, config(), level="full"), run(dream)
    assert [s.commits for s in plain] == [s.commits for s in seen]
    assert seen[0].staleness.max() < 1e-6 and any(s.staleness.max() > 1e-4 for s in seen)
    committed = {c.position for s in seen for c in s.commits}
    assert all(figures.progress(seen, p)["cos"][-1] == pytest.approx(1, abs=1e-5) for p in committed)


def test_what_was_just_recomputed_is_not_stale(polestar, dual, llada):
    for trace in (polestar, dual, run(llada, method="parallel")):
        for step in trace:
            if step.rows == L:
                assert step.staleness.max() < 1e-6
            # Layer 0 sees embeddings: block rows are fed with the present tokens, whatever else is old.
            assert step.staleness[0, step.block_start : step.block_end].max() < 1e-6
    assert max(s.staleness.max() for s in dual) > 1e-3, "with a cache something is stale"
    assert all(s.staleness.max() < 1e-6 for s in run(llada, method="vanilla"))


@torch.inference_mode()
def test_staleness_and_drift_are_what_the_paper_says(llada):
    """E against keys before rotation, and drift of all positions, both from plain passes over the recorded canvases."""
    model = llada.model
    decoder = Decoder(model, PROMPT, config(tau_upd=1), level="full", observe=True)
    before = None
    for _ in range(6):
        canvas = decoder.run.canvas.host.clone()
        step = decoder.step()
        keys, values, attention, logits = plain_pass(model, canvas)
        raw, cached_v = decoder.run.kv.raw_k, decoder.run.kv.v
        want = torch.stack([
            1 - (cosine(raw[n], keys[n]).mean(0) + cosine(cached_v[n], values[n]).mean(0)) / 2 for n in range(len(keys))
        ])  # fmt: skip
        assert np.allclose(step.staleness, want.numpy(), atol=2e-6)
        if before is not None:
            kl = (attention * (attention.clamp(min=1e-12) / before.clamp(min=1e-12)).log()).sum(-1).mean(0)
            assert np.allclose(step.full_drift, kl.numpy(), atol=1e-6)
        before = attention
        p = torch.softmax(logits, -1)
        p[:, model.cfg.mask_id] = 0
        conf = np.where(canvas.numpy() == model.cfg.mask_id, p.max(-1).values.numpy(), np.nan)[LP:]
        assert np.allclose(step.extra["full_conf"], conf, atol=1e-5, equal_nan=True)


@torch.inference_mode()
def test_progress_is_the_cosine_of_centred_log_probabilities(llada, dual):
    z = []
    for step in dual:
        log_p = torch.log_softmax(plain_pass(llada.model, dual.canvas_at(step.index - 1))[3], -1)
        z.append(log_p - log_p.mean(-1, keepdim=True))
    for position in (LP, LP + 9, L - 1):
        got = figures.progress(dual, position)
        T = got["committed"]
        assert any(c.position == position for c in dual[T].commits)
        want = [float(cosine(z[t][position], z[T][position])) for t in range(T + 1)]
        assert got["pass"].tolist() == list(range(T + 1))
        assert np.allclose(got["cos"], want, atol=1e-5)
        assert np.allclose(got["gain"][1:], np.diff(got["cos"])) and np.isnan(got["gain"][0])
        assert np.array_equal(got["drift"][1:], [dual[t].full_drift[position] for t in range(1, T + 1)])


@torch.inference_mode()
def test_value_states_are_projections_of_the_true_ones(llada, dual):
    """Distances within the recorded directions are distances of the values projected by any orthonormal basis of the same span."""
    values = [plain_pass(llada.model, dual.canvas_at(s.index - 1))[1][-1].transpose(0, 1).flatten(1) for s in dual]
    mean = values[0].mean(0)
    _, _, v = torch.linalg.svd(values[0] - mean, full_matrices=False)
    span = v[:VALUE_DIMS]
    for step, true in zip(dual, values, strict=True):
        flat = ((true[LP:] - mean) @ span.T).numpy()
        got = step.extra["value_states"]
        assert got.dtype == np.float16 and got.shape == (G, VALUE_DIMS)
        scale = np.abs(flat).max()
        assert np.allclose(np.linalg.norm(got.astype(np.float32), axis=1), np.linalg.norm(flat, axis=1), atol=2e-3 * scale)
        assert step.extra["value_kept"] == pytest.approx(float((flat**2).sum() / (true[LP:] - mean).square().sum()), abs=1e-4)
    assert dual[0].extra["value_kept"] > 0.9


def test_a_path_in_two_directions(dual):
    for position in (LP + 3, L - 2):
        path = figures.value_path(dual, position)
        states = np.stack([s.extra["value_states"][position - LP].astype(np.float32) for s in dual])
        assert path["xy"].shape == (len(dual), 2) and 0 < path["share"].sum() <= 1 + 1e-6
        # Two directions keep what `share` says of the path's spread.
        spread = ((states - states.mean(0)) ** 2).sum()
        assert (path["xy"] ** 2).sum() / spread == pytest.approx(path["share"].sum(), abs=1e-4)
        assert path["committed"] == figures.progress(dual, position)["committed"]
        conf = [s.extra["full_conf"][position - LP] for s in dual]
        static = next((i for i, c in enumerate(conf) if c >= 0.7), None)
        assert path["static"] == static


def test_events_of_the_drift_rule():
    drift = np.array([np.nan, 0.1, 0.1, 0.5, 0.1, 9.0])
    conf = np.array([0.2, 0.2, 0.2, 0.7, 0.95, np.nan])
    # At pass 3: Δ = 0.5 - 0.1 = 0.4 and the gate is 10 (0.9 - 0.7)² = 0.4 (to rounding: take a little less).
    assert figures._first_events(drift, conf, {"alpha": 9.99}) == (3, 4)
    assert figures._first_events(drift, conf, {"alpha": 10.1}) == (None, 4)
    assert figures._first_events(drift, conf, {"alpha": 9.99, "tau_s": 2.0}) == (None, None)
    assert figures._first_events(drift, conf, {"alpha": 0.1, "h": 0}) == (1, 4)


def made(staleness, full_drift, clusters=(), before=None, n=2):
    """A trace of two blocks of 2 after a prompt of 2 with the given records pass by pass."""
    h = Header(method="polestar", prompt_ids=[1, 2], gen_length=4, block_length=2, mask_id=9, n_layers=n, level="full")
    trace = Trace(h)
    for i, stale in enumerate(staleness):
        extra = {} if before is None or before[i] is None else {"stale_before": np.array(before[i], np.float32)}
        trace.append(Step(
            index=i, block=0, block_start=2, block_end=4, kind="within" if i else "entry-full", rows=6, commits=[Commit(2 + i, 5, 0.9, "confidence")],
            staleness=np.array(stale, np.float32), full_drift=None if full_drift[i] is None else np.array(full_drift[i], np.float32),
            clusters=clusters[i] if clusters else None, extra=extra,
        ))  # fmt: skip
    return trace


def test_cumulative_staleness_by_hand():
    """Window: prompt (0, 1) and suffix (4, 5); the block is 2, 3; with no block on either side all four are outside."""
    rows = [[0.4, 0.2, 9, 9, 0.1, 0.3], [0.4, 0.2, 9, 9, 0.1, 0.3]]
    trace = made([np.zeros((2, 6)), rows, rows], [None, [1, 4, 9, 9, 3, 2], [4, 1, 9, 9, 2, 3]])
    got = figures.cumulative_staleness(trace)
    assert got["total"] == pytest.approx(2.0)
    a, b, rest, far = (got["groups"][name] for name in figures.GROUPS)
    assert np.allclose(a, [0, 0.1, 0.3]) and np.allclose(b, [0, 0.05, 0.2]) and np.allclose(rest, [0, 0.35, 0.5]) and not far.any()
    assert sum(g[-1] for g in got["groups"].values()) == pytest.approx(1)
    outside = figures.cumulative_staleness(trace, before=0, after=0)["groups"]
    assert np.allclose(outside["outside"], [0, 0.5, 1])
    assert got["positions"]["outside"] == 0
    one = figures.cumulative_staleness(made([np.zeros((2, 6)), [[0] * 6, [1, 0, 0, 0, 0, 0]]], [None, [1] * 6]), layer=0)
    assert one["total"] == 0 and not any(g.any() for g in one["groups"].values())


def test_selection_by_hand():
    window, labels = np.array([0, 1, 4, 5], np.int32), np.array([[0, 0, 1, 1], [0, 1, 1, 1]], np.uint8)
    entry = Clusters(window=window, labels=labels, counts=np.array([[2, 2], [1, 3]], np.int32))
    refresh = Clusters(scores=np.array([[0.2, 0.9], [0.5, 0.1]], np.float32), selected=np.array([[False, True], [True, False]]))
    before = [[0.1, 0.2, 0, 0, 0.9, 0.3], [0.1, 0.2, 0, 0, 0.9, 0.3]]
    trace = made([np.zeros((2, 6))] * 2, [None, [0] * 6], [entry, refresh], [None, before])
    # The stalest quarter is position 4. Layer 0's clusters decide the K/V of layer 1: cluster 1 (4 and 5) comes first, so 4 is found half the time.
    got = figures.selection(trace)
    assert got["pass"].tolist() == [1] and got["layer"].tolist() == [0]
    assert got["accuracy"][0] == 0.5 and got["recall"][0] == 1 and got["chosen"][0] == 0.5
    half = figures.selection(trace, share=0.5)
    assert half["accuracy"][0] == 1, "4 and 5 are the stalest half, and cluster 1 is just these"
    same = figures.selection(trace, ahead=0)
    assert same["layer"].tolist() == [0, 1] and same["accuracy"].tolist() == [0.5, 0] and same["recall"].tolist() == [1, 0]
    fresh = made([np.zeros((2, 6))] * 2, [None, [0] * 6], [entry, refresh], [None, np.zeros((2, 6))])
    assert len(figures.selection(fresh)["pass"]) == 0


def test_figures_of_a_real_run(polestar, tmp_path):
    got = figures.selection(polestar)
    refreshes = [s.index for s in polestar if s.refresh]
    assert refreshes and set(got["pass"]) <= set(refreshes) and len(got["pass"]) > 0
    for name in ("accuracy", "recall", "chosen"):
        assert ((got[name] >= 0) & (got[name] <= 1)).all()
    # What a refresh chose is less stale after it: the mean over chosen positions in the layer after.
    window = labels = None
    fell = []
    for s in polestar:
        if s.clusters is not None and s.clusters.window is not None:
            window, labels = s.clusters.window, s.clusters.labels
        if s.refresh:
            for n in range(polestar.header.n_layers - 1):
                chosen = window[s.clusters.selected[n][labels[n]]]
                fell.append(float(s.extra["stale_before"][n + 1, chosen].mean() - s.staleness[n + 1, chosen].mean()))
    assert np.mean(fell) > 0
    total = figures.cumulative_staleness(polestar)
    assert sum(g[-1] for g in total["groups"].values()) == pytest.approx(1) and total["total"] > 0
    assert figures.drift_map(polestar).shape == (len(polestar), L)
    again = load(save(polestar, tmp_path / "run.safetensors"))
    assert digest(again) == digest(polestar)
    assert np.array_equal(figures.progress(again, LP + 4)["cos"], figures.progress(polestar, LP + 4)["cos"])
    assert np.array_equal(figures.value_path(again, LP + 4)["xy"], figures.value_path(polestar, LP + 4)["xy"])


def test_time_of_observing_is_its_own(llada):
    plain, seen = (decode(llada, PROMPT, config(), level="full", observe=o) for o in (False, True))
    assert all(s.phases["observe"] > 0 for s in seen) and not any("observe" in s.phases for s in plain)
    assert seen.header.extra["observe"]["drift_layer"] == llada.config.n_layers - 1 and "observe" not in plain.header.extra
    # The parts of a pass, without what is only looked at, add up to no more than the pass.
    for s in seen:
        assert sum(t for name, t in s.phases.items() if name not in ("observe", "log")) <= s.seconds + 1e-4
    assert sum(s.seconds for s in seen) == pytest.approx(seen[-1].elapsed)


def test_an_observed_run_forks_observed_and_edits_begin_new_paths(llada, polestar):
    session = fork(llada, polestar, 4, edits={LP + 2: None})
    for _ in session.steps():
        pass
    branch = session.trace
    assert figures.observed(branch) and branch[5].staleness.max() < 1e-6, "after an edit everything is fed"
    path = figures.progress(branch, LP + 2)
    assert path["pass"][0] == 5, "its first life ended before"
    assert branch[5].edits == [(LP + 2, branch.header.mask_id)]


def test_the_stream_leaves_large_extras_out(polestar):
    step = next(s for s in polestar if s.refresh)
    assert set(step.extra) >= {"stale_before", "value_states", "full_conf"}
    assert not UNSENT & set(encode_step(step, polestar.header)["x"])


def test_what_cannot_be_observed_or_drawn_says_why(llada, polestar):
    with pytest.raises(ValueError, match="needs the level full, not steps"):
        decode(llada, PROMPT, config(), level="steps", observe=True)
    bare = decode(llada, PROMPT, config(), level="full")
    for call in (figures.drift_map, figures.cumulative_staleness, figures.selection, lambda t: figures.progress(t, LP), lambda t: figures.value_path(t, LP)):
        with pytest.raises(ValueError, match="not recorded in observe mode"):
            call(bare)
    for call in (figures.progress, figures.value_path):
        with pytest.raises(ValueError, match=f"from {LP} to {L - 1}"):
            call(polestar, LP - 1)
    with pytest.raises(ValueError, match="never committed"):
        figures.progress(Trace(polestar.header, polestar[:1]), L - 1)

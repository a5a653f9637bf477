"""Equalities that need no record: between methods, presets, levels of the log, and with the plain forward pass (fp32, tiny models)."""

import numpy as np
import pytest
import torch

from polestar.clock import PhaseClock
from polestar.config import PARAMS, DecodeConfig
from polestar.driver import Decoder, decode
from polestar.models.transformer import rotate
from polestar.plan import ForwardPlan
from polestar.trace import digest
from tests.goldens import record

FORMATS = PARAMS["residual_format"].choices
PROMPT = [5, 17, 200, 33, 9, 411, 62, 7, 300, 21]
FULL = {"window_prefix": 64, "window_suffix": 64, "k": 8, "tau_upd": 0, "residual_format": "fp32"}


@pytest.fixture(params=["llada", "dream"])
def tiny(request):
    return request.getfixturevalue(request.param)


def commits(trace):
    return [[(c.position, c.token, c.reason) for c in step.commits] for step in trace]


def run(model, level="steps", prompt=PROMPT, **values):
    return decode(model, prompt, DecodeConfig.make(**{"method": "polestar", "gen_length": 40, "block_length": 16} | values), level=level)


def passes(model, config, prompt=PROMPT):
    """(step, logits of the pass, positions, canvas before it) of every pass."""
    decoder = Decoder(model, prompt, config)
    seen = []
    forward = model.run

    def spy(plan, tokens, *args):
        before = tokens.clone()
        result = forward(plan, tokens, *args)
        seen.append((result.logits.clone(), plan.logits_for.clone(), before))
        return result

    model.run = spy
    try:
        while (step := decoder.step()) is not None:
            yield step, *seen[-1]
    finally:
        del model.run


# -- polestar and Fast-dLLM


@pytest.mark.parametrize("name", ["llada_p7_g128", "llada_p40_g128"])
def test_without_refresh_and_drift_commits_it_is_fast_dllm_dual_token_for_token(llada, name):
    prompt = record(name)["meta"]["prompt"]
    ours = run(llada, prompt=prompt, gen_length=80, block_length=32, cache_refresh=False, drift_commit=False)
    theirs = run(llada, method="fast-dllm-dual", prompt=prompt, gen_length=80, block_length=32)
    assert commits(ours) == commits(theirs)
    assert [(s.kind, s.rows, s.block_start) for s in ours] == [(s.kind, s.rows, s.block_start) for s in theirs]


def test_the_same_on_dream(dream):
    ours, theirs = run(dream, cache_refresh=False, drift_commit=False), run(dream, method="fast-dllm-dual")
    assert commits(ours) == commits(theirs)


def test_refresh_and_drift_commits_change_that_decode(llada):
    prompt = record("llada_p40_g128")["meta"]["prompt"]
    assert commits(run(llada, prompt=prompt)) != commits(run(llada, prompt=prompt, method="fast-dllm-dual"))


@pytest.mark.parametrize("values", [{}, {"preset": "release"}, {"cache_refresh": False}])
def test_tau_s_above_1_commits_one_token_a_pass(tiny, values):
    trace = run(tiny, tau_s=1.5, tau_suf=2, drift_commit=False, **values)
    assert [len(s.commits) for s in trace] == [1] * 40
    assert {c.reason for s in trace for c in s.commits} == {"forced"}


def test_tau_s_above_1_is_vanilla_decoding_where_nothing_is_cached(tiny):
    one, vanilla = run(tiny, method="parallel", tau_s=1.5), run(tiny, method="vanilla")
    assert [[c.position for c in s.commits] for s in one] == [[c.position for c in s.commits] for s in vanilla]
    assert np.array_equal(one.tokens, vanilla.tokens)


@pytest.mark.parametrize("method", ["parallel", "fast-dllm-dual", "fast-dllm-prefix", "polestar"])
def test_tau_s_0_commits_a_block_a_pass(tiny, method):
    trace = run(tiny, method=method, tau_s=0)
    assert [len(s.commits) for s in trace] == [16, 16, 8]


# -- against the plain forward pass


def plain(model, canvas, positions):
    with torch.inference_mode():
        return model(canvas[None])[0, model.row_for(positions)]


def test_refreshing_everything_at_every_pass_is_no_cache(tiny):
    config = DecodeConfig.make(method="polestar", gen_length=40, block_length=16, tau_s=0.95, **FULL)
    refreshes = 0
    for step, logits, positions, canvas in passes(tiny.model, config):
        assert (logits - plain(tiny.model, canvas, positions)).abs().max() < 1e-4, f"pass {step.index}"
        refreshes += step.refresh
        if step.kind == "within":
            assert step.refresh and (step.packet_rows == 50 - (step.block_end - step.block_start)).all()
    assert refreshes > 5


def test_refreshing_less_than_everything_is_noticed(llada):
    config = DecodeConfig.make(method="polestar", gen_length=40, block_length=16, tau_s=0.95, **FULL | {"k": 4})
    assert max(float((logits - plain(llada.model, canvas, at)).abs().max()) for _, logits, at, canvas in passes(llada.model, config)) > 1e-3


def test_suffix_commits_are_the_predictions_of_their_own_positions(tiny):
    """With everything refreshed a packet's logits are those of the plain pass, at the position that they predict (Dream: one further)."""
    config = DecodeConfig.make(method="polestar", gen_length=40, block_length=16, tau_s=0.95, tau_suf=0.2, drift_commit=False, **FULL)
    checked = 0
    for step, _, _, canvas in passes(tiny.model, config):
        ahead = [c for c in step.commits if c.reason == "suffix"]
        if ahead:
            logits = plain(tiny.model, canvas, torch.tensor([c.position for c in ahead])).double()
            assert [c.confidence for c in ahead] == pytest.approx(torch.softmax(logits, -1).amax(-1).tolist(), abs=1e-4)
            logits[:, tiny.config.mask_id] = -torch.inf
            assert [c.token for c in ahead] == logits.argmax(-1).tolist()
            checked += len(ahead)
    assert checked > 3


def test_refreshing_everything_decodes_as_no_cache(tiny):
    # Commit rules alike: then tokens are those of the plain threshold decode.
    ours = run(tiny, drift_commit=False, suffix_commit=False, **FULL)
    theirs = run(tiny, method="parallel")
    assert commits(ours) == commits(theirs)


@pytest.mark.parametrize("method", ["vanilla", "parallel", "fast-dllm-dual", "fast-dllm-prefix", "polestar"])
def test_block_entries_that_feed_every_row_are_exact(tiny, method):
    config = DecodeConfig.make(method=method, gen_length=24, block_length=8)
    for step, logits, positions, canvas in passes(tiny.model, config):
        if step.rows == 34:
            assert (logits - plain(tiny.model, canvas, positions)).abs().max() < 1e-4


def test_req02_a_block_alone_predicts_as_the_full_pass_right_after_a_full_refresh(dream):
    model, device = dream.model, dream.model.device
    tokens = torch.tensor(PROMPT + [dream.config.mask_id] * 24)
    kv, clock = model.new_store(34), PhaseClock(enabled=False)
    block = torch.arange(18, 26, device=device)
    full = model.run(ForwardPlan(kind="entry-full", rows=(0, 34), logits_for=block), tokens, kv, clock)
    within = model.run(ForwardPlan(kind="within", rows=model.span_for(18, 26), logits_for=block), tokens, kv, clock)
    assert model.span_for(18, 26) == (17, 26)  # the first position's logits come from the row before the block
    assert torch.equal(full.logits.argmax(-1), within.logits.argmax(-1))
    assert (full.logits - within.logits).abs().max() < 1e-5
    assert (full.logits - plain(model, tokens, block)).abs().max() < 1e-4


def test_req02_the_first_position_of_a_block_follows_the_same_rule(dream):
    trace = run(dream, method="fast-dllm-dual")
    entry = next(s for s in trace if s.kind == "entry-full" and s.block == 1)
    within = [s for s in trace if s.kind == "within"]
    assert entry.conf[0] == entry.conf[0] and any(not np.isnan(s.conf[0]) for s in within)
    for step in trace:
        for c in step.commits:
            assert c.reason == "forced" or c.confidence >= 0.9


# -- requirement 11


def test_req11_attention_rows_sum_to_one_and_keeping_them_changes_nothing(tiny):
    plans = []
    decoder = Decoder(tiny.model, PROMPT, DecodeConfig.make(method="polestar", gen_length=24, block_length=8, residual_format="fp32"))
    forward = tiny.model.run

    def spy(plan, *args):
        result = forward(plan, *args)
        plans.append(result.attention)
        return result

    tiny.model.run = spy
    try:
        while decoder.step() is not None:
            pass
    finally:
        del tiny.model.run
    assert len(plans) > 3
    for a in plans:
        assert a.dtype == torch.float32 and a.shape == (tiny.config.n_heads, 8, 34)
        assert (a.sum(-1) - 1).abs().max() < 1e-5 and bool((a >= 0).all())


def test_req11_kept_attention_is_the_attention_that_was_used(tiny):
    """Kept by the model's own code at block rows, against softmax(q k^T) of the plain definition in float64."""
    model = tiny.model
    tokens = torch.tensor(PROMPT + [tiny.config.mask_id] * 14)
    kv, clock = model.new_store(24), PhaseClock(enabled=False)
    plan = ForwardPlan(kind="entry-full", rows=(0, 24), logits_for=torch.arange(10, 24), attention_for=(10, 18), attention_layers=frozenset((0, 3)))
    with torch.inference_mode():
        kept = model.run(plan, tokens, kv, clock)
        bare = model.run(ForwardPlan(kind="entry-full", rows=(0, 24), logits_for=torch.arange(10, 24)), tokens, model.new_store(24), clock)
        assert (kept.logits - bare.logits).abs().max() < 1e-4
        assert sorted(kept.attentions) == [0, 3] and kept.attention is kept.attentions[3]
        layer, rows = model.layers[0], model.rows((0, 24), 24)
        normed = layer.attn_norm(model.embed(tokens))
        q, k = (rotate(x, rows.cos, rows.sin).double() for x in (layer.queries(normed), layer.keys(normed)))
        k = k.repeat_interleave(q.shape[0] // k.shape[0], 0)
        expected = torch.softmax(q @ k.transpose(-1, -2) / tiny.config.head_dim**0.5, -1)[:, 10:18]
    assert (kept.attentions[0].double() - expected).abs().max() < 1e-6


# -- the same again


@pytest.mark.parametrize("values", [{}, {"preset": "release"}, {"temperature": 0.8, "seed": 11}])
def test_the_same_seed_gives_the_same_trace(tiny, values):
    for level in ("steps", "full"):
        one, two = (run(tiny, level, **values) for _ in range(2))
        assert digest(one) == digest(two)


def test_another_seed_clusters_otherwise(llada):
    labels = [next(s for s in run(llada, seed=seed) if s.clusters is not None).clusters.labels for seed in (0, 1)]
    assert not np.array_equal(*labels)


@pytest.mark.parametrize("values", [{}, {"preset": "release"}, {"temperature": 0.8, "seed": 11}])
def test_tokens_do_not_depend_on_the_level(tiny, values):
    off, steps, full = (run(tiny, level, **values) for level in ("off", "steps", "full"))
    assert commits(off) == commits(steps) == commits(full)
    assert [s.refresh for s in off] == [s.refresh for s in steps] == [s.refresh for s in full]
    assert off[0].conf is None and steps[0].conf is not None
    assert steps[0].candidate_ids is None and full[0].candidate_ids is not None


def test_a_decode_leaves_nothing_behind_in_the_model(llada):
    before = {name: p.clone() for name, p in llada.model.state_dict().items()}
    first = run(llada)
    run(llada, preset="release", temperature=0.5)
    assert digest(run(llada)) == digest(first)
    assert all(torch.equal(p, before[name]) for name, p in llada.model.state_dict().items())


# -- residual formats


@pytest.mark.parametrize("name", FORMATS)
def test_every_residual_format_decodes(llada, name):
    trace = run(llada, residual_format=name, tau_upd=1)
    assert trace.complete and sum(s.refresh for s in trace) > 0 and trace.header.config["residual_format"] == name


def test_residual_formats_order_by_their_precision(llada):
    """The window as it is read back, against the hidden states that went in."""
    errors = {}
    for name in ("none", "fp32", "fp16", "fp8", "nvfp4", "int2"):
        decoder = Decoder(llada.model, PROMPT, DecodeConfig.make(gen_length=40, block_length=16, residual_format=name), level="full")
        decoder.step()
        errors[name] = float((decoder.cache.window.all_states() - decoder.cache.entry.hidden).abs().mean())
    assert errors["none"] == 0.0 and errors["fp32"] < 1e-7
    assert errors["fp32"] < errors["fp16"] < errors["fp8"] < errors["nvfp4"] < errors["int2"]


def test_nvfp4_is_the_papers_default_and_the_release_has_no_residuals():
    assert DecodeConfig.make().residual_format == "nvfp4"
    assert DecodeConfig.make(preset="release").residual_format == "none"
    table = {"block_length": 32, "K": 8, "k": 4, "tau_s": 0.9, "tau_suf": 0.9, "tau_upd": 3, "h": 5, "alpha": 10, "window_prefix": 2, "window_suffix": 1}
    assert {name: DecodeConfig.make()[name] for name in table} == table  # Table 5


# -- requirement 24


def test_req24_the_header_says_where_the_numbers_came_from(llada):
    trace = run(llada, seed=7, alpha=12.5, tau_upd="inf")
    header = trace.header
    assert (header.method, header.preset, header.seed, header.dtype, header.device) == ("polestar", "paper", 7, "float32", "cpu")
    assert (header.model, header.revision) == (llada.name, llada.revision)
    assert header.config == DecodeConfig.make(gen_length=40, block_length=16, seed=7, alpha=12.5, tau_upd="inf").as_dict()
    assert header.config["alpha"] == 12.5 and header.config["tau_upd"] == "inf" and set(PARAMS) <= set(header.config)
    assert {"polestar", "python", "torch", "numpy"} <= set(header.versions) and all(header.versions.values())
    assert list(header.prompt_ids) == PROMPT and header.created
    # Enough to run it again: the same digest from the header alone.
    values = dict(header.config)
    again = decode(llada, header.prompt_ids, DecodeConfig.make(method=header.method, preset=header.preset, **values))
    assert digest(again) == digest(trace)

"""The rules that decide what is committed, on scripted predictions with exact numbers (requirements 1, 3, 4, 5, 8, 22)."""

import math

import pytest
import torch

from polestar.decoders import METHODS
from polestar.drift import drift
from polestar.plan import LogitsView
from tests.scripted import EOS, MASK, Scripted, V, decode, row

SIMPLE = ("vanilla", "parallel", "fast-dllm-prefix", "fast-dllm-dual", "polestar", "adablock", "dawn")
THRESHOLD = [m for m in SIMPLE if "tau_s" in METHODS[m].specs]


def still(i, start, end):
    """Final-layer attention that never changes: drift is 0."""
    return torch.full((2, end - start, 11), 1 / 11)


def moving(i, start, end):
    """Attention that every pass puts somewhere else: much drift at every position."""
    a = torch.full((2, end - start, 11), 1e-3)
    a[:, :, i % 11] = 1 - 10e-3
    return a


def shape(trace):
    return [len(step.commits) for step in trace]


# -- requirement 1


@pytest.mark.parametrize("method", THRESHOLD)
def test_req01_nothing_clears_the_threshold_one_forced_token_a_pass(method):
    model = Scripted(lambda i, p: (5, 0.5 + 0.01 * (p == 6)), attention=still)
    trace = decode(model, method=method, gen_length=8, block_length=4, **({"tau_low": 0.9} if method == "dawn" else {}))
    assert shape(trace) == [1] * 8
    assert [s.block for s in trace] == [0] * 4 + [1] * 4
    assert {c.reason for s in trace for c in s.commits} == {"forced"}
    assert trace[0].commits[0].position == 6  # the most confident; then the first among equals
    assert [s.commits[0].position for s in trace[1:]] == [3, 4, 5, 7, 8, 9, 10]
    assert trace.complete


# -- requirement 3


@pytest.mark.parametrize("method", SIMPLE)
def test_req03_twenty_tokens_in_blocks_of_eight_are_8_8_4(method):
    trace = decode(Scripted(lambda i, p: (5, 0.95)), method=method, gen_length=20, block_length=8)
    assert list(trace.header.blocks) == [(3, 11), (11, 19), (19, 23)]
    assert [(s.block_start, s.block_end) for s in trace if s.kind != "within"] == list(trace.header.blocks)
    assert len(trace.tokens) == 20 and trace.tokens.tolist() == [5] * 20


@pytest.mark.parametrize(("gen", "block", "steps"), [(20, 8, 7), (20, 8, 20), (24, 8, 5), (7, 3, 3), (16, 16, 1)])
def test_req03_steps_that_are_no_multiple_of_the_blocks_are_all_spent(gen, block, steps):
    trace = decode(Scripted(lambda i, p: (5, 0.5)), method="vanilla", gen_length=gen, block_length=block, steps=steps)
    assert len(trace) == max(steps, -(-gen // block))
    assert trace.complete and sum(shape(trace)) == gen


def test_more_steps_than_tokens_spend_one_a_token():
    assert shape(decode(Scripted(lambda i, p: (5, 0.5)), method="vanilla", gen_length=6, block_length=3, steps=100)) == [1] * 6


# -- requirement 4


def test_req04_drift_of_a_distribution_to_itself_is_exactly_0():
    p = torch.softmax(torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(0)) * 30, -1)
    assert drift(p, p).tolist() == [0.0] * 5
    one = torch.zeros(2, 4, 9)
    one[..., 0] = 1
    other = one.roll(1, -1)
    far = drift(one, other)
    assert bool(torch.isfinite(far).all()) and bool((far > 0).all())
    assert far[0].item() == pytest.approx(-math.log(1e-12), rel=1e-4)  # the floor under the logarithm


def test_req04_drift_is_never_negative_or_nan():
    generator = torch.Generator().manual_seed(1)
    for scale in (0.0, 1e-4, 1.0, 1e4):
        p, q = (torch.softmax(torch.randn(4, 6, 33, generator=generator) * scale, -1) for _ in range(2))
        assert bool(torch.isfinite(drift(p, q)).all()) and bool((drift(p, q) >= 0).all())


def test_req04_drift_is_the_mean_over_heads_of_kl():
    p, q = torch.tensor([[[0.5, 0.5]], [[0.25, 0.75]]]), torch.tensor([[[0.9, 0.1]], [[0.25, 0.75]]])
    kl = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert drift(p, q).item() == pytest.approx(kl / 2, rel=1e-6)


def test_req04_a_pass_without_history_has_no_drift():
    trace = decode(Scripted(lambda i, p: (5, 0.5), attention=still), method="polestar", gen_length=8, block_length=4)
    for step in trace:
        if step.kind == "within":
            assert step.drift.tolist() == [0.0] * 4 and step.delta.tolist() == [0.0] * 4
        else:
            assert step.drift is None and step.delta is None and step.gate is None
            assert all(c.delta is None and c.gate is None for c in step.commits)


# -- requirement 5


def test_req05_full_confidence_without_drift_is_committed_though_the_gate_fails_it():
    def script(i, position):
        return (5, 1.0) if i == 1 and position == 4 else (5, 0.5)

    trace = decode(Scripted(script, attention=still), method="polestar", gen_length=4, block_length=4)
    (commit,) = trace[1].commits
    assert (commit.position, commit.reason) == (4, "confidence")
    assert commit.delta == 0.0 and commit.gate == pytest.approx(10 * 0.1**2) and commit.delta < commit.gate


@pytest.mark.parametrize("method", THRESHOLD)
def test_req05_confidence_equal_to_tau_s_counts_as_confident(method):
    model = lambda: Scripted(lambda i, p: (5, 0.7), attention=still)  # noqa: E731
    extra = {"tau_low": 2.0} if method == "dawn" else {}
    exact = decode(model(), method=method, gen_length=8, block_length=8, tau_s=2, **extra)[0].commits[0].confidence
    trace = decode(model(), method=method, gen_length=8, block_length=8, tau_s=exact, **extra)
    assert shape(trace) == [8]
    assert {c.reason for c in trace[0].commits} == {"confidence"}
    above = decode(model(), method=method, gen_length=8, block_length=8, tau_s=exact + 1e-4, **extra)
    assert shape(above)[0] == 1


def test_suffix_confidence_equal_to_tau_suf_counts_as_confident():
    run = lambda tau: decode(  # noqa: E731
        Scripted(lambda i, p: (5, 0.5), outside=(3, 0.75), attention=still), method="polestar", gen_length=8, block_length=4, tau_upd=0, k=8, tau_suf=tau,
    )
    first = [c for s in run(0.5) for c in s.commits if c.reason == "suffix"]
    assert first and {c.token for c in first} == {3}
    exact = first[0].confidence
    assert [c.position for s in run(exact) for c in s.commits if c.reason == "suffix"] == [c.position for c in first]
    assert not [c for s in run(exact + 1e-6) for c in s.commits if c.reason == "suffix"]


# -- the drift event


def gate_run(**values):
    values = {"gen_length": 8, "block_length": 8, "alpha": 10.0, "tau_upd": "inf"} | values
    return decode(Scripted(lambda i, p: (5, 0.4 + 0.05 * (p - 3)), attention=moving), method="polestar", **values)


def test_a_drift_event_commits_what_passes_the_gate_and_says_so():
    trace = gate_run()
    step = trace[1]
    assert shape(trace)[0] == 1 and step.commits[0].delta is not None
    drifted = {c.position for c in step.commits if c.reason == "drift"}
    masked = set(range(3, 11)) - {c.position for c in trace[0].commits}
    passes = {p for p in masked if step.delta[p - 3] >= step.gate[p - 3]}
    best = max(masked, key=lambda p: step.conf[p - 3])
    assert drifted == passes - {best} and passes
    for c in step.commits:
        assert c.delta == pytest.approx(step.delta[c.position - 3]) and c.gate == pytest.approx(10 * (0.9 - c.confidence) ** 2, rel=1e-5)


def test_history_is_the_mean_of_the_last_h_passes_and_0_means_raw_drift():
    traces = {h: gate_run(h=h, drift_commit=False) for h in (0, 2, 5)}
    for h, trace in traces.items():
        within = [s for s in trace if s.kind == "within"]
        for i, step in enumerate(within):
            past = [s.drift for s in within[max(0, i - h) : i]] if h else []
            mean = sum(past) / len(past) if past else 0 * step.drift
            assert step.delta == pytest.approx(step.drift - mean, abs=1e-5)


def test_release_guards_confidence_and_delta():
    # A scripted jump of drift is above the ceiling of 2 nats, or the confidence is below the floor.
    trace = gate_run(preset="release")
    assert not [c for s in trace for c in s.commits if c.reason == "drift" and (c.confidence <= 0.7 or c.delta >= 2.0)]
    open_ = gate_run(preset="release", drift_min_confidence=0.0, drift_max_delta="inf")
    assert len(open_) < len(trace)


def test_each_part_of_polestar_switches_off():
    assert not [c for s in gate_run(drift_commit=False) for c in s.commits if c.reason == "drift"]
    model = lambda: Scripted(lambda i, p: (5, 0.5), outside=(3, 0.99), attention=still)  # noqa: E731
    values = {"method": "polestar", "gen_length": 8, "block_length": 4, "tau_upd": 0, "k": 8}
    assert [c for s in decode(model(), **values) for c in s.commits if c.reason == "suffix"]
    assert not [c for s in decode(model(), suffix_commit=False, **values) for c in s.commits if c.reason == "suffix"]
    assert not [s for s in decode(model(), cache_refresh=False, **values) if s.refresh]


# -- requirement 8


@pytest.mark.parametrize("method", ["fast-dllm-dual", "fast-dllm-prefix"])
def test_req08_the_baseline_spends_its_extra_pass_only_as_its_original_and_says_so(method):
    model = lambda: Scripted(lambda i, p: (5, 0.95))  # noqa: E731
    table = decode(model(), method=method, gen_length=16, block_length=8)
    original = decode(model(), method=method, preset="release", gen_length=16, block_length=8)
    assert shape(table) == [8, 8] and table.header.config["extra_pass"] is False
    assert shape(original) == [8, 0, 8, 0] and original.header.config["extra_pass"] is True
    # A block that its entry pass did not fill costs no extra pass.
    half = decode(Scripted(lambda i, p: (5, 0.95) if p % 2 else (5, 0.5)), method=method, preset="release", gen_length=4, block_length=4)
    assert shape(half) == [2, 1, 1]


# -- requirement 22


@pytest.mark.parametrize("method", SIMPLE)
def test_req22_an_answer_that_is_eos_from_the_first_token(method):
    trace = decode(Scripted(lambda i, p: (EOS, 0.99)), method=method, gen_length=12, block_length=4)
    metrics = trace.metrics()
    assert trace.tokens.tolist() == [EOS] * 12  # decoding does not stop at the first [EOS]
    assert metrics["tpf"] == 0 and metrics["tps"] == 0 and metrics["blank"] is True
    assert metrics["tpf_all"] == 12 / len(trace)


def test_req22_an_empty_prompt_is_a_sentence():
    with pytest.raises(ValueError, match=r"the prompt is empty \(0 tokens\); give at least one token"):
        decode(Scripted(lambda i, p: (5, 0.5)), prompt=(), method="parallel")


# -- [MASK] is never committed


@pytest.mark.parametrize("method", ["parallel", "fast-dllm-dual", "polestar", "vanilla"])
def test_mask_as_the_likeliest_token_is_never_committed(method):
    def script(i, position):
        logits = row(MASK, 0.97)
        logits[5] = math.log(0.02)
        return logits

    excluded = decode(Scripted(script, attention=still), method=method, gen_length=4, block_length=4)
    # Confidence is the softmax probability of the chosen token, [MASK] included in the sum.
    assert shape(excluded) == [1] * 4 and excluded[0].commits[0].confidence == pytest.approx(0.02, abs=1e-3)
    kept = decode(Scripted(script, attention=still), method=method, gen_length=4, block_length=4, exclude_mask=False)
    assert kept.tokens.tolist() == [5] * 4 and {c.reason for s in kept for c in s.commits} == {"forced"}


def test_mask_at_one_position_does_not_hold_up_the_others():
    script = lambda i, p: (MASK, 0.97) if p == 4 and i < 2 else (5, 0.95)  # noqa: E731
    trace = decode(Scripted(script, attention=still), method="fast-dllm-dual", gen_length=4, block_length=4, exclude_mask=False)
    assert [[c.position for c in s.commits] for s in trace] == [[3, 5, 6], [4]]
    assert trace.tokens.tolist()[0] == 5 and MASK not in trace.tokens.tolist()


# -- temperature


def test_temperature_samples_from_the_softmax_and_confidence_stays_its_probability():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.2])).expand(20000, 3)
    view = LogitsView(torch.arange(20000), logits, temperature=1.0, generator=torch.Generator().manual_seed(0))
    shares = torch.bincount(view.token, minlength=3) / 20000
    assert shares.tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.015)
    assert view.confidence.tolist() == pytest.approx(torch.tensor([0.5, 0.3, 0.2])[view.token].tolist(), abs=1e-6)
    cold = LogitsView(torch.arange(20000), logits, temperature=0.5, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([0.25, 0.09, 0.04]) / 0.38
    assert (torch.bincount(cold.token, minlength=3) / 20000).tolist() == pytest.approx(weights.tolist(), abs=0.015)


def test_no_temperature_draws_nothing_and_takes_the_first_of_equals():
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    view = LogitsView(torch.arange(2), torch.zeros(2, V), exclude=0, generator=generator)
    assert view.token.tolist() == [1, 1] and torch.equal(before, generator.get_state())
    assert view.confidence.tolist() == pytest.approx([1 / V] * 2)


# -- counts that trigger a refresh


def test_the_trigger_counts_every_commit_since_the_last_refresh():
    # One token a pass: N = 1 never exceeds 2, M does at the third pass after each refresh.
    trace = decode(Scripted(lambda i, p: (5, 0.5), attention=still), method="polestar", gen_length=16, block_length=8, tau_upd=2)
    first = [s for s in trace if s.block == 0]
    assert [(s.count_last, s.count_since, s.refresh) for s in first[1:]] == [
        (1, 1, False), (1, 2, False), (1, 3, True), (1, 1, False), (1, 2, False), (1, 3, True), (1, 1, False),
    ]  # fmt: skip
    assert first[3].refresh_reason == "M = 3 > τ_upd = 2"
    assert first[0].count_last is None and first[0].refresh is False


def test_the_trigger_fires_on_one_large_pass():
    script = lambda i, p: (5, 0.95) if p < 8 and i == 0 else (5, 0.5)  # noqa: E731
    trace = decode(Scripted(script, attention=still), method="polestar", gen_length=8, block_length=8, window_prefix=2)
    assert shape(trace)[0] == 5 and trace[1].refresh and trace[1].refresh_reason == "N = 5 > τ_upd = 3"

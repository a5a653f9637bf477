"""Dream: rows that equal the public code, the published schedule, and Polestar's `paper` preset where the release is not correct."""

import pytest
import torch

from polestar.clock import PhaseClock
from polestar.commit.dream import filtered, scheduled
from polestar.config import DecodeConfig
from polestar.driver import Decoder, decode
from polestar.plan import ForwardPlan
from tests.goldens import record

NAMES = ("dream_p7_g128", "dream_p40_g128", "dream_p100_g256")
ROWS = {
    "fastdllm_dual": ("fast-dllm-dual-dream", {}),
    "fastdllm_prefix": ("fast-dllm-prefix-dream", {}),
    "fastdllm_vanilla_thr": ("vanilla-dream", {"alg": "confidence_threshold"}),
    "fastdllm_vanilla_1tok": ("vanilla-dream", {"alg": "entropy"}),
}
CASES = [(name, row) for name in NAMES for row in ROWS if row in record(name)["methods"]]


@pytest.mark.parametrize(("name", "row"), CASES)
def test_rows_equal_the_official_code_on_dream(dream, name, row):
    data = record(name)
    method, values = ROWS[row]
    trace = decode(dream, data["meta"]["prompt"], DecodeConfig.make(method=method, preset="release", gen_length=data["meta"]["gen_length"], **values))
    assert trace.canvas_at(len(trace) - 1).tolist() == data["methods"][row]["tokens"]
    assert len(trace) == data["methods"][row]["model_calls"]


# -- the published schedule


def counts(masked: int, steps: int, first: int = 0) -> list[int]:
    out = []
    for i in range(first, steps):
        out.append(scheduled(masked, i, steps))
        masked -= out[-1]
    assert masked == 0
    return out


@pytest.mark.parametrize(
    ("masked", "steps", "first", "want"),
    [
        (128, 128, 0, [0, *[1] * 126, 2]),
        (512, 512, 0, [0, *[1] * 510, 2]),
        (256, 128, 0, [1, *[2] * 126, 3]),
        (31, 32, 1, [0, *[1] * 29, 2]),
        (31, 8, 1, [4, 4, 4, 4, 4, 5, 6]),
    ],
)
def test_schedule_rounds_as_published(masked, steps, first, want):
    assert counts(masked, steps, first) == want


def run(dream, method="vanilla-dream", preset="paper", gen_length=32, prompt=9, **values):
    ids = torch.randint(0, 500, (prompt,), generator=torch.Generator().manual_seed(3)).tolist()
    return decode(dream, ids, DecodeConfig.make(method=method, preset=preset, gen_length=gen_length, **values))


def test_a_published_pass_may_commit_nothing_and_ours_never_does(dream):
    release = run(dream, preset="release")
    assert [len(s.commits) for s in release] == [0, *[1] * 30, 2]
    paper = run(dream)
    assert [len(s.commits) for s in paper] == [1] * 32
    assert sorted(c.position for s in paper for c in s.commits) == list(range(9, 41))


@pytest.mark.parametrize("alg", ["entropy", "maskgit_plus", "topk_margin", "origin", "confidence_threshold"])
@pytest.mark.parametrize("preset", ["paper", "release"])
def test_every_alg_fills_the_canvas(dream, alg, preset):
    trace = run(dream, preset=preset, alg=alg, steps=8)
    assert (trace.canvas_at(len(trace) - 1) == 511).sum() == 0
    assert len(trace) == 8 if alg != "confidence_threshold" else len(trace) <= 32
    assert preset == "release" or all(s.commits for s in trace)


def test_ranks_choose_the_position_that_their_formula_chooses(dream):
    """First pass, one token: the argmax of each rank over the plain pass's shifted probabilities."""
    ids = torch.cat([torch.arange(20, 29), torch.full((32,), 511)])
    logits = dream.model(ids[None])[0].detach()
    p = torch.softmax(torch.cat([logits[:1], logits[:-1]])[9:], -1)
    top = p.topk(2, -1).values
    ranks = {"maskgit_plus": top[:, 0], "topk_margin": top[:, 0] - top[:, 1], "entropy": (p * p.log()).sum(-1)}
    for alg, rank in ranks.items():
        trace = decode(dream, ids[:9].tolist(), DecodeConfig.make(method="vanilla-dream", gen_length=32, alg=alg))
        (commit,) = trace[0].commits
        assert commit.position - 9 == int(rank.argmax())
        assert commit.token == int(p[commit.position - 9].argmax())
        assert commit.confidence == pytest.approx(float(top[commit.position - 9, 0]), rel=1e-5)


def test_sampling_is_seeded_and_filtered(dream):
    options = {"temperature": 1.0, "top_p": 0.9, "top_k": 5, "alg_temp": 0.5, "steps": 16}
    a, b, c = (run(dream, seed=s, **options) for s in (1, 1, 2))
    last = [t.canvas_at(len(t) - 1).tolist() for t in (a, b, c)]
    assert last[0] == last[1] != last[2]


def test_top_p_and_top_k_keep_what_they_should():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))

    def keep(**values):
        config = DecodeConfig.make(method="vanilla-dream", **values)
        return filtered(logits, config, mask_id=3)[0]

    torch.testing.assert_close(keep(preset="release"), torch.tensor([0.5, 0.3, 0.15, 0.05]))
    torch.testing.assert_close(keep(), torch.tensor([0.5, 0.3, 0.15, 0.0]) / 0.95)
    torch.testing.assert_close(keep(preset="release", top_p=0.6), torch.tensor([0.5, 0.3, 0, 0]) / 0.8)
    torch.testing.assert_close(keep(preset="release", top_p=0.0), torch.tensor([1.0, 0, 0, 0]))
    torch.testing.assert_close(keep(preset="release", top_k=3), torch.tensor([0.5, 0.3, 0.15, 0]) / 0.95)
    hot = keep(preset="release", temperature=2.0)
    torch.testing.assert_close(hot, torch.tensor([0.5, 0.3, 0.15, 0.05]).sqrt() / torch.tensor([0.5, 0.3, 0.15, 0.05]).sqrt().sum())


def test_the_entry_settles_the_first_position_alone(dream):
    trace = run(dream, method="fast-dllm-dual-dream", block_length=8, gen_length=20)
    entries = [s for s in trace if s.kind == "entry-full"]
    assert [(s.block_start, s.block_end) for s in entries] == [(9, 17), (17, 25), (25, 29)]
    assert all([c.position for c in s.commits] == [s.block_start] for s in entries)
    assert all(s.rows == s.block_end - s.block_start for s in trace if s.kind == "within")
    scheduled_run = run(dream, method="fast-dllm-prefix-dream", preset="release", rule="entropy", block_length=8, gen_length=16)
    assert [len(s.commits) for s in scheduled_run] == [1, *counts(7, 8, 1)] * 2


# -- Polestar and the plain caches where the release is not correct


def full_pass(dream, tokens) -> torch.Tensor:
    """Probabilities [L, V] of what each position is, by the plain pass: Dream's row p - 1 predicts p."""
    logits = dream.model(tokens[None])[0].detach()
    return torch.softmax(torch.cat([logits[:1], logits[:-1]]), -1)


@pytest.mark.parametrize(("start", "end"), [(40, 72), (72, 80), (0, 8), (1, 30)])
def test_block_only_equals_the_full_pass_right_after_a_full_refresh(dream, start, end):
    """At every block position, the first included (it needs the row before the block)."""
    model, off = dream.model, PhaseClock(enabled=False)
    tokens = torch.randint(0, 512, (80,), generator=torch.Generator().manual_seed(1))
    store = model.new_store(80)
    at = torch.arange(start, end)
    full = model.run(ForwardPlan(kind="entry-full", rows=(0, 80), logits_for=at), tokens, store, off)
    only = model.run(ForwardPlan(kind="within", rows=model.span_for(start, end), logits_for=at), tokens, store, off)
    torch.testing.assert_close(only.logits, full.logits, atol=5e-5, rtol=1e-5)
    torch.testing.assert_close(torch.softmax(only.logits, -1), full_pass(dream, tokens)[start:end], atol=1e-5, rtol=1e-5)


def whole_window(**values) -> DecodeConfig:
    """Polestar whose window is everything else and whose every pass refreshes every cluster: each pass must then be exact."""
    return DecodeConfig.make(
        method="polestar", gen_length=48, block_length=16, K=4, k=4, window_prefix=64, window_suffix=64, tau_upd=0, residual_format="fp32", **values
    )


@pytest.mark.parametrize("drift_commit", [True, False])
def test_polestar_paper_predicts_every_block_position_as_the_full_pass_does(dream, drift_commit):
    decoder = Decoder(dream.model, list(range(30, 53)), whole_window(drift_commit=drift_commit, suffix_commit=False, alpha=0.5))
    seen = set()
    while True:
        tokens = decoder.run.canvas.host.clone()
        step = decoder.step()
        if step is None:
            break
        want = full_pass(dream, tokens)
        masked = (tokens[step.block_start : step.block_end] == 511).nonzero()[:, 0]
        assert step.kind != "within" or step.refresh
        torch.testing.assert_close(torch.from_numpy(step.conf)[masked], want[masked + step.block_start].amax(-1), atol=2e-4, rtol=1e-3)
        if step.kind == "within" and 0 in masked:
            seen.add(step.block)
    assert seen == {0, 1, 2}  # the first position was still open in a pass that did not feed the prefix


def test_polestar_paper_predicts_the_suffix_as_the_full_pass_does(dream):
    """Every suffix position out of the update packet: the right position, the right token, the right confidence."""
    decoder = Decoder(dream.model, list(range(30, 53)), whole_window(tau_suf=0.0, tau_s=1.5, drift_commit=False))
    decoder.step()
    tokens = decoder.run.canvas.host.clone()
    step = decoder.step()
    want = full_pass(dream, tokens)
    suffix = [c for c in step.commits if c.reason == "suffix"]
    # Every position after the block but the first, whose row is the block's last and no packet's.
    assert [c.position for c in suffix] == list(range(step.block_end + 1, 71))
    for c in suffix:
        assert c.token == int(want[c.position].argmax())
        assert c.confidence == pytest.approx(float(want[c.position].max()), rel=1e-3, abs=2e-4)


def test_polestar_paper_ends_a_dream_decode_with_its_defaults(dream):
    trace = run(dream, method="polestar", gen_length=128)
    assert (trace.canvas_at(len(trace) - 1) == 511).sum() == 0
    assert all(s.commits for s in trace)

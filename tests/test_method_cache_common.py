"""Identities of the cached methods: each, set to recompute everything, decodes exactly as without a cache."""

import pytest

from polestar.cache.policy import CachePolicy
from polestar.config import DecodeConfig
from polestar.driver import Decoder
from tests.goldens import record

PROMPT = record("llada_p7_g128")["meta"]["prompt"]
SIZE = {"gen_length": 44, "block_length": 16}
EVERYTHING = {
    "entropycache": {"tau_e": -1},
    "elastic-cache": {"reset_layer": 0},
    "d2cache": {"masks": 44, "rollout_p": 1},
    "dynamic-dllm": {"window_size": 0, "layer_budget": 44, "prompt_interval": 1},
    "dllm-cache": {"prompt_interval": 1, "gen_interval": 1},
    "dkv-cache": {"cache_steps": 1},
}


def steps_of(loaded, method, cache=None, **values):
    """All steps of a decode; `cache` replaces the method's own cache policy, scheduler and commit policy stay."""
    decoder = Decoder(loaded.model, PROMPT, DecodeConfig.make(method=method, **{**SIZE, **values}))
    if cache is not None:
        decoder.cache = cache
    steps = []
    while (step := decoder.step()) is not None:
        steps.append(step)
    return steps


def choices(steps):
    return [[(c.position, c.token, c.reason) for c in s.commits] for s in steps]


@pytest.mark.parametrize("method", EVERYTHING)
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("tau_s", [0.9, 0.3])
def test_recomputing_everything_is_no_cache(request, method, family, tau_s):
    loaded = request.getfixturevalue(family)
    ours = steps_of(loaded, method, tau_s=tau_s, **EVERYTHING[method])
    plain = steps_of(loaded, method, CachePolicy(), tau_s=tau_s)
    assert choices(ours) == choices(plain)
    assert {s.rows for s in ours} == {len(PROMPT) + 44}
    for mine, other in zip(ours, plain, strict=True):
        assert mine.conf == pytest.approx(other.conf, abs=2e-5, nan_ok=True)


@pytest.mark.parametrize("method", EVERYTHING)
def test_the_defaults_do_cache(llada, method):
    ours = steps_of(llada, method, gen_length=128, block_length=32, **({"tau_e": 1.0} if method == "entropycache" else {}))
    assert sum(s.rows for s in ours) < 0.8 * sum(len(PROMPT) + 128 for _ in ours)


def test_entropy_cache_without_threshold_is_parallel(llada):
    ours, parallel = steps_of(llada, "entropycache", tau_e=-1), steps_of(llada, "parallel")
    assert [(s.kind, s.rows, s.block_start, s.block_end, s.commits) for s in ours] == [
        (s.kind, s.rows, s.block_start, s.block_end, s.commits) for s in parallel
    ]


def test_dllm_cache_computes_a_share_of_rows_between_intervals(llada):
    steps = steps_of(llada, "dllm-cache", prompt_interval=6, gen_interval=4, rho=0.25)
    prompt, n = len(PROMPT), llada.config.n_layers
    for step in steps:
        generation = 44 if step.index % 4 == 0 else 11
        expected = generation + (prompt if step.index % 6 == 0 else 0)
        assert step.extra.get("layer_rows", [prompt + 44] * n) == [prompt + 44] + [expected] * (n - 1)


def test_dkv_cache_feeds_masks_and_the_last_commits(llada):
    steps = steps_of(llada, "dkv-cache", cache_steps=5)
    left, number, last = 44, 0, 0
    for step in steps:
        number = 0 if step.kind == "entry-full" else number + 1
        full = number < 2 or number % 5 == 0
        assert step.rows == (len(PROMPT) + 44 if full else left + last)
        assert step.refresh == (full and number > 0)
        last = len(step.commits)
        left -= last

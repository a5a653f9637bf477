"""What every method owes: a full canvas, no [MASK] committed, one token a pass at least, the same decode for the same seed."""

import numpy as np
import pytest

from polestar.config import DecodeConfig
from polestar.decoders import METHODS
from polestar.driver import decode
from polestar.trace import digest, load, save
from polestar.trace.wire import dump, encode_step

PROMPT = [5, 17, 200, 33, 9, 411, 62, 7, 300, 21]


def run(model, method, level="steps", **values):
    trace = decode(model, PROMPT, DecodeConfig.make(method=method, gen_length=20, block_length=8, **values), level=level)
    trace.status = "done"
    return trace


@pytest.fixture(params=["llada", "dream"])
def tiny(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("values", [{}, {"temperature": 0.7, "seed": 3}], ids=["greedy", "sampled"])
def test_fills_the_canvas_without_mask_and_repeats_with_its_seed(tiny, method, values):
    trace = run(tiny, method, **values)
    assert trace.complete
    committed = [c for step in trace for c in step.commits]
    assert sorted(c.position for c in committed) == list(range(len(PROMPT), len(PROMPT) + 20))
    assert all(0 <= c.token < tiny.config.vocab_size and c.token != tiny.config.mask_id for c in committed)
    assert all(0.0 <= c.confidence <= 1.0 + 1e-12 for c in committed)
    # A pass commits something, or it was the extra pass that a row spends on purpose.
    assert all(step.commits for step in trace)
    assert digest(run(tiny, method, **values)) == digest(trace)


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_gives_another_sample(llada, method):
    assert (run(llada, method, temperature=1.5, seed=1).tokens != run(llada, method, temperature=1.5, seed=2).tokens).any()


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_logs_can_be_saved_streamed_and_read_back(llada, method, tmp_path):
    trace = run(llada, method, level="full")
    assert digest(load(save(trace, tmp_path / "run.safetensors"))) == digest(trace)
    for step in trace:
        dump(encode_step(step, trace.header))


@pytest.mark.parametrize("method", METHODS)
def test_the_level_of_the_log_does_not_change_the_decode(llada, method):
    runs = [run(llada, method, level) for level in ("off", "steps", "full")]
    for other in runs[1:]:
        assert np.array_equal(other.tokens, runs[0].tokens)
        assert [[(c.position, c.token, c.reason) for c in s.commits] for s in other] == [
            [(c.position, c.token, c.reason) for c in s.commits] for s in runs[0]
        ]
        assert [s.rows for s in other] == [s.rows for s in runs[0]]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("preset", ["paper", "release"])
def test_every_parameter_has_help_a_valid_default_and_a_place(method, preset):
    config = DecodeConfig.make(method=method, preset=preset)
    for name, param in METHODS[method].specs.items():
        assert param.name == name
        assert len(param.help.split()) > 3 and param.help.endswith(".")
        assert param.parse(config[name]) == config[name]
        assert param.live in ("pass", "block", "run")
        assert param.group in ("length", "cache", "commit", "run", "method")

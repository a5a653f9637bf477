"""The edge cases at the end of the algorithm's description, each by name, and requests that cannot run."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from polestar.cache.offload import Pick
from polestar.config import DecodeConfig
from polestar.driver import DecodeError, Decoder, decode
from polestar.models.transformer import Transformer
from tests import scripted
from tests.scripted import EOS, Scripted

PRESETS = ("paper", "release")
PROMPT = [5, 17, 200, 33, 9, 411, 62, 7, 300, 21]


def run(model, prompt=PROMPT, **values):
    return decode(model, prompt, DecodeConfig.make(**{"method": "polestar", "gen_length": 24, "block_length": 8} | values))


def windows(trace):
    """(first, last) window position and number of clusters at each block entry that has a window."""
    return [(s.clusters.window.tolist(), s.clusters.counts.shape[1]) for s in trace if s.kind != "within" and s.clusters is not None]


@pytest.fixture(params=["llada", "dream"])
def tiny(request):
    return request.getfixturevalue(request.param)


# -- shapes


@pytest.mark.parametrize("preset", PRESETS)
def test_a_prompt_shorter_than_two_blocks(tiny, preset):
    trace = run(tiny, preset=preset)
    window, _ = windows(trace)[0]
    assert window == [*range(10), *range(18, 26)]
    assert trace.complete


@pytest.mark.parametrize("preset", PRESETS)
def test_a_prompt_of_one_token(tiny, preset):
    trace = run(tiny, [7], preset=preset)
    assert windows(trace)[0][0] == [0, *range(9, 17)]
    assert trace.complete and trace.header.prompt_length == 1


@pytest.mark.parametrize("preset", PRESETS)
def test_one_block_has_no_suffix(tiny, preset):
    trace = run(tiny, preset=preset, gen_length=8, tau_upd=1)
    assert {s.block for s in trace} == {0} and windows(trace)[0][0] == list(range(10))
    assert not [c for s in trace for c in s.commits if c.reason == "suffix"]
    assert trace.complete


@pytest.mark.parametrize("preset", PRESETS)
def test_no_prefix_and_no_suffix_leave_no_window(llada, preset):
    trace = run(llada, preset=preset, gen_length=8, window_prefix=0)
    assert windows(trace) == [] and not any(s.refresh for s in trace) and trace.complete


@pytest.mark.parametrize("preset", PRESETS)
def test_no_prefix_window_with_a_suffix(llada, preset):
    trace = run(llada, preset=preset, window_prefix=0, tau_upd=1)
    assert windows(trace)[0][0] == list(range(18, 26)) and trace.complete


@pytest.mark.parametrize("preset", PRESETS)
def test_a_length_that_is_no_multiple_of_the_block(tiny, preset):
    trace = run(tiny, preset=preset, gen_length=21)
    assert list(trace.header.blocks) == [(10, 18), (18, 26), (26, 31)]
    assert len(trace.tokens) == 21 and trace.complete


def test_a_block_longer_than_the_generation(llada):
    trace = run(llada, gen_length=5, block_length=32)
    assert list(trace.header.blocks) == [(10, 15)] and trace.complete


def test_a_generation_of_one_token(llada):
    for preset in PRESETS:
        assert len(run(llada, gen_length=1, preset=preset)) == 1


def test_longer_than_the_model_is_refused_before_any_work():
    model = Scripted(lambda i, p: (5, 0.9), max_length=20)
    assert scripted.decode(model, prompt=[1] * 4, method="parallel", gen_length=16).complete
    calls = model.calls
    with pytest.raises(ValueError, match=r"prompt 5 \+ generation 16 = 21 positions is more than the model's maximum of 20; shorten"):
        scripted.decode(model, prompt=[1] * 5, method="parallel", gen_length=16)
    assert model.calls == calls


@pytest.mark.parametrize("preset", PRESETS)
def test_more_clusters_than_window_positions(tiny, preset):
    trace = run(tiny, [7], preset=preset, gen_length=12, block_length=2, K=40, k=40, tau_upd=0)
    seen = windows(trace)
    if preset == "paper":
        assert all(n <= len(window) for window, n in seen)
    assert trace.complete and any(s.refresh for s in trace)


def test_more_chosen_clusters_than_clusters_is_corrected_and_said(llada):
    config = DecodeConfig.make(K=4, k=9)
    assert (config.k, config.corrections) == (4, ("k = 9 is more than K = 4 clusters; k is 4 instead.",))
    assert DecodeConfig.make(K=4).k == 4 and DecodeConfig.make().corrections == ()
    trace = run(llada, K=3, k=9, tau_upd=0)
    assert all(s.clusters.selected.sum(1).tolist() == [3] * 4 for s in trace if s.refresh)


# -- blocks that suffix commits finish


def test_a_block_finished_by_suffix_commits_costs_no_pass():
    # The packet of every suffix position is scripted to be certain, so block 1 is done before it begins.
    model = Scripted(lambda i, p: (5, 0.5), outside=(3, 0.99))
    trace = scripted.decode(model, method="polestar", gen_length=12, block_length=4, tau_upd=0, k=8)
    assert {s.block for s in trace} == {0, 2} and model.calls == len(trace)
    suffix = [c for s in trace for c in s.commits if c.reason == "suffix"]
    assert [c.position for c in suffix] == [7, 8, 9, 10] and {c.token for c in suffix} == {3}
    assert all(c.delta is None and c.gate is None for c in suffix)
    assert trace.complete and trace.tokens.tolist()[4:8] == [3] * 4
    # Block 2 is entered by its own number: even blocks recompute every row.
    assert [s.kind for s in trace if s.kind != "within"] == ["entry-full", "entry-full"]


def test_suffix_commits_never_touch_prompt_block_or_known_tokens(llada):
    trace = run(llada, gen_length=48, tau_upd=0, tau_suf=0.0, k=8)
    seen = set()
    for step in trace:
        for c in step.commits:
            assert c.position not in seen and c.position >= 10
            assert (c.reason == "suffix") == (c.position >= step.block_end)
            seen.add(c.position)
    assert any(c.reason == "suffix" for s in trace for c in s.commits)


def test_precommitted_embeddings_are_refreshed_in_paper_alone():
    model = Scripted(lambda i, p: (5, 0.5), outside=(3, 0.99))
    for preset, refreshed in (("paper", True), ("release", False)):
        values = {"tau_upd": 0, "k": 8, "tau_upd_total": -1, "last_layer_k": 0} if preset == "release" else {"tau_upd": 0, "k": 8}
        decoder = Decoder(model, [1, 2, 3], DecodeConfig.make(preset=preset, gen_length=8, block_length=4, **values))
        while not any(c.reason == "suffix" for c in decoder.step().commits):
            pass
        window, at = decoder.cache.window, [i for i, p in enumerate(decoder.cache.window.positions.tolist()) if p >= 7]
        decoder.step()
        states = window.states.read(0, Pick.of(torch.tensor(at)))
        token = model.embed.weight[3] if refreshed else model.embed.weight[model.cfg.mask_id]
        assert (states - token).abs().max() < 0.2, preset


# -- answers and thresholds


@pytest.mark.parametrize("preset", PRESETS)
def test_an_answer_of_eos_from_the_first_token(preset):
    trace = scripted.decode(Scripted(lambda i, p: (EOS, 0.99)), method="polestar", preset=preset, gen_length=12, block_length=4)
    assert trace.tokens.tolist() == [EOS] * 12 and trace.metrics()["tpf"] == 0 and len(trace) == 3


@pytest.mark.parametrize("preset", PRESETS)
def test_tau_s_0_commits_all_at_once(tiny, preset):
    trace = run(tiny, preset=preset, tau_s=0)
    assert [len(s.commits) for s in trace] == [8, 8, 8]


@pytest.mark.parametrize("preset", PRESETS)
def test_tau_s_above_1_commits_one_a_pass(tiny, preset):
    trace = run(tiny, preset=preset, tau_s=1.01, tau_suf=2, drift_commit=False)
    assert len(trace) == 24


@pytest.mark.parametrize("preset", PRESETS)
def test_tau_upd_inf_never_refreshes(tiny, preset):
    extra = {"tau_upd_total": "inf"} if preset == "release" else {}
    trace = run(tiny, preset=preset, tau_upd="inf", **extra)
    assert trace.complete and not any(s.refresh for s in trace)
    assert not [c for s in trace for c in s.commits if c.reason == "suffix"]
    assert run(tiny, preset=preset, tau_upd=0).metrics()["refreshes"] > 0
    assert trace.header.config["tau_upd"] == "inf" and math.isinf(DecodeConfig.make(tau_upd="inf").tau_upd)


@pytest.mark.parametrize("preset", PRESETS)
def test_temperature_above_0(tiny, preset):
    hot = run(tiny, preset=preset, temperature=1.2, seed=5)
    assert hot.complete and tiny.config.mask_id not in hot.tokens.tolist()
    assert hot.tokens.tolist() == run(tiny, preset=preset, temperature=1.2, seed=5).tokens.tolist()
    assert hot.tokens.tolist() != run(tiny, preset=preset).tokens.tolist()
    # Confidence is the softmax probability of the sampled token, so below that of the likeliest one somewhere.
    assert any(c.confidence < 1 / 2 for s in hot for c in s.commits)


# -- logits that are not finite


def poisoned(where: str) -> Transformer:
    model = Scripted(lambda i, p: (5, 0.9), n_layers=3, seed=1)
    bare = Transformer(model.cfg)
    bare.load_state_dict(model.state_dict())
    with torch.no_grad():
        bare.get_parameter(where)[0] = math.nan
    return bare


@pytest.mark.parametrize(
    ("where", "said"),
    [("layers.1.down_proj.weight", "layer 1"), ("layers.0.v_proj.weight", "layer 0"), ("embed.weight", "the embedding"), ("head.weight", "the head")],
)
@pytest.mark.parametrize("method", ["polestar", "parallel"])
def test_logits_that_are_not_finite_name_layer_and_pass(method, where, said):
    with pytest.raises(DecodeError) as problem:
        decode(poisoned(where), [0, 1, 2], DecodeConfig.make(method=method, gen_length=8, block_length=4))
    text = str(problem.value)
    assert text.startswith(f"pass 0 gave logits that are not finite, first in {said} (float32); ")
    assert "use float32 or bfloat16, or check the checkpoint" in text and "\n" not in text


def test_the_pass_that_went_wrong_is_the_one_named():
    script = lambda i, p: torch.full((scripted.V,), math.nan) if i == 2 else (5, 0.5)  # noqa: E731
    with pytest.raises(DecodeError, match=r"^pass 2 gave"):
        scripted.decode(Scripted(script), method="fast-dllm-dual", gen_length=4, block_length=4)


def test_infinite_logits_are_caught_too():
    script = lambda i, p: torch.full((scripted.V,), math.inf)  # noqa: E731
    with pytest.raises(DecodeError, match="not finite"):
        scripted.decode(Scripted(script), method="vanilla", gen_length=4, block_length=4)


# -- requests that cannot run


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt": "What?"}, "the prompt is the text 'What?', not token ids; give model.codec.encode_chat(text)"),
        ({"prompt": []}, "the prompt is empty (0 tokens); give at least one token"),
        ({"prompt": [1, 16]}, "prompt id 16 is outside the model's vocabulary of 16; give ids from 0 to 15"),
        ({"prompt": [-1]}, "prompt id -1 is outside the model's vocabulary of 16; give ids from 0 to 15"),
        ({"level": "all"}, "level 'all' is not one of off, steps, full; choose one of those"),
        ({"method": "magic"}, "no method is called 'magic'; choose one of vanilla, "),
        ({"preset": "best"}, "preset 'best' is not one of paper, release of parallel; choose one of those"),
        ({"alpha": 3}, "parallel has no parameter 'alpha'; it takes "),
        ({"gen_length": 0}, "gen_length takes a whole number from 1 to 8192, not 0; give one of those"),
        ({"gen_length": "many"}, "gen_length takes a whole number from 1 to 8192, not 'many'; give one of those"),
        ({"block_length": 2.5}, "block_length takes a whole number from 1 to 8192, not 2.5; give one of those"),
        ({"tau_s": "nan"}, "tau_s takes a number from 0 to 2, not 'nan'; give one of those"),
        ({"temperature": True}, "temperature takes a number from 0 to 10, not True; give one of those"),
        ({"exclude_mask": "perhaps"}, "exclude_mask takes true or false, not 'perhaps'; give one of those"),
    ],
)
def test_a_request_that_cannot_run_is_refused_in_a_sentence(change, said):
    model = Scripted(lambda i, p: (5, 0.9))
    with pytest.raises(ValueError) as problem:
        scripted.decode(model, **{"method": "parallel", "gen_length": 4} | change)
    assert str(problem.value).startswith(said) and "\n" not in str(problem.value)
    assert model.calls == 0


def test_text_from_the_command_line_means_the_same_as_numbers():
    text = DecodeConfig.make(K="6", tau_upd="inf", tau_s="0.8", drift_commit="off", residual_format="int8", seed="3")
    assert dict(text) == dict(DecodeConfig.make(K=6, tau_upd=math.inf, tau_s=0.8, drift_commit=False, residual_format="int8", seed=3))


def test_a_config_does_not_change():
    config = DecodeConfig.make()
    with pytest.raises(AttributeError, match="does not change"):
        config.tau_s = 0.5
    assert config.replace(tau_s=0.5).tau_s == 0.5 and config.tau_s == 0.9
    with pytest.raises(AttributeError, match="polestar has no parameter 'tau_q'"):
        _ = config.tau_q


# -- importing


def python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=Path(__file__).parent.parent)


def test_importing_polestar_pulls_in_no_page_no_triton_no_plots():
    loaded = "heavy = {'torch', 'gradio', 'plotly', 'umap', 'triton', 'pandas', 'transformers'} & {m.split('.')[0] for m in sys.modules};"
    done = python("import sys, polestar;" + loaded + "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)")
    assert done.returncode == 0, done.stderr


def test_the_engine_needs_no_triton_and_pulls_in_no_page_and_no_plots():
    done = python(
        "import sys; sys.modules['triton'] = None\n"  # as where it is not installed
        "from polestar import *\n"
        "from tests.scripted import Scripted, decode\n"
        "import polestar.session, polestar.models.checkpoint\n"
        "trace = decode(Scripted(lambda i, p: (5, 0.5)), method='polestar', gen_length=8, block_length=4, tau_upd=0)\n"
        "assert trace.complete and trace.metrics()['refreshes']\n"
        "heavy = {'gradio', 'plotly', 'umap', 'pandas', 'transformers', 'sklearn'} & {m.split('.')[0] for m in sys.modules}\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)"
    )
    assert done.returncode == 0, done.stderr

"""`bench gpu` on a small model on the CPU: every part runs and its figures are of what was run; without a GPU the command stops."""

import json

import pytest
import torch

from kernels import _dispatch
from polestar import graphs
from polestar.bench import gpu, gpu_decode, gpu_kernels, straight
from polestar.bench.kernel_cases import Shape
from polestar.cache.offload import HostRows, SideStream
from polestar.cache.refresh import RefreshHook
from polestar.models.transformer import ModelConfig, Transformer
from tests.tape import TapeRecorder

SMALL = Shape(name="small", n_layers=2, d_model=64, n_heads=4, n_kv_heads=2, head_dim=16, W=12, K=3, m=5, B=4, L=40)


def config(**changes) -> ModelConfig:
    base = {
        "family": "llada", "vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "mlp_hidden": 48,
        "max_length": 128, "rope_theta": 1e4, "norm_eps": 1e-5, "mask_id": 63, "eos_id": 62, "pad_id": 62,
    }  # fmt: skip
    return ModelConfig(**base | changes)


@pytest.fixture(scope="module")
def found():
    return gpu.collect(
        torch.device("cpu"), dtype=torch.float32, shapes=(SMALL,), models={"small": config(), "shifted": config(shift=True, qkv_bias=True)},
        prompt_length=20, gen_length=24, block_length=8, say=lambda _: None,
    )  # fmt: skip


def test_every_part_is_measured(found):
    assert found["not_measured"] == {}
    names = {"bandwidth", "empty_launch_us", "correctness/small", "speed/small"}
    assert set(found["results"]) == names | {f"{part}/{model}" for part in ("decode", "figure12") for model in ("small", "shifted")}
    assert found["results"]["bandwidth"] > 1e6
    assert all(row["ok"] for row in found["results"]["correctness/small"])
    assert all(row["cold_us"] > 0 and row["floor_us"] > 0 for row in found["results"]["speed/small"])


def test_methods_run_the_same_number_of_passes(found):
    for model in ("small", "shifted"):
        rows = {r["method"]: r for r in found["results"][f"decode/{model}"]}
        assert {r["nfe"] for r in rows.values()} == {24}, "one token per pass"
        assert rows["polestar"]["refreshes"] > 0
        assert rows["vanilla"]["refreshes"] == 0
        for r in rows.values():
            assert r["tps_all"] == pytest.approx(24 / r["seconds"])
            assert r["peak_bytes"] is None, "no GPU memory on a CPU: not 0"


def test_figure_12_has_polestars_parts_where_they_happen(found):
    for variant in found["results"]["figure12/small"].values():
        refresh, plain = variant["parts_ms"]["refresh"], variant["parts_ms"]["plain"]
        assert refresh["proxy"] > 0
        assert refresh["packets"] > 0
        assert "proxy" not in plain
        assert {"attention", "mlp"} <= set(plain)
        assert variant["added_within_ms"] == pytest.approx(variant["pass_ms"]["refresh"] - variant["pass_ms"]["plain"])


def test_the_unoptimised_arm_is_unfused_and_synchronous(monkeypatch):
    """One stream, no prefetch, the device asked, PyTorch's paths, steps apart; the optimised arm has none of that."""
    decoders, tokens, run = [], [], gpu_decode.decode

    class Watched(gpu_decode.Decoder):
        def step(self):
            step, cache = super().step(), self.cache
            if step is not None and step.refresh:
                self.seen.add((type(cache.refresh), cache.fixed, _dispatch._forced))
            return step

        def warm_up(self):
            self.seen = set()
            decoders.append(self)
            self.side = getattr(self.cache, "side", None)

    def told(*args, **kwargs):
        found = run(*args, **kwargs)
        tokens.append(found["tokens"])
        return found

    monkeypatch.setattr(gpu_decode, "Decoder", Watched)
    monkeypatch.setattr(gpu_decode, "decode", told)
    model = gpu_decode.random_model(config(), torch.device("cpu"), torch.float32)
    gpu_decode.figure_12(model, gpu_decode.prompt_for(config(), 20), 24, 8)
    dual, *arms = decoders
    assert dual.seen == set()
    assert [arm.seen for arm in arms] == 2 * [{(straight.StraightHook, False, "torch")}] + 2 * [{(RefreshHook, None, None)}]
    assert all(arm.side is not None and arm.side.stream is None for arm in arms[:2]) and all(arm.side is None for arm in arms[2:])
    assert all(ids == tokens[1] for ids in tokens[2:])


def test_a_side_that_is_not_apart_is_no_stream_even_on_a_gpu():
    assert SideStream(torch.device("cuda"), apart=False).stream is None


def test_the_straightforward_path_fetches_packed_states_only_when_it_needs_them(monkeypatch):
    """With states in host memory: rows are moved within `take`; the fused pass moves them ahead as well."""
    ahead, taking = [], []
    prefetch, take = HostRows.prefetch, HostRows.take

    def watched_prefetch(self, layer, pick):
        ahead.append(not taking)
        return prefetch(self, layer, pick)

    def watched_take(self, layer, pick):
        taking.append(layer)
        try:
            return take(self, layer, pick)
        finally:
            taking.pop()

    monkeypatch.setattr(HostRows, "prefetch", watched_prefetch)
    monkeypatch.setattr(HostRows, "take", watched_take)
    model = gpu_decode.random_model(config(), torch.device("cpu"), torch.float32)
    values = gpu_decode.config_for("polestar", 24, 8).replace(offload="on")
    for prepare, expected in ((straight.use, {False}), (None, {True})):
        gpu_decode.decode(model, gpu_decode.prompt_for(config(), 20), values, level="off", prepare=prepare)
        assert set(ahead) == expected
        ahead.clear()


def test_arms_with_recorded_passes(monkeypatch):
    """On tapes in place of CUDA graphs: same passes, same tokens, replayed where the arm says so; a CPU by itself records nothing."""
    model, tokens, run = gpu_decode.random_model(config(), torch.device("cpu"), torch.float32), [], gpu_decode.decode
    prompt = gpu_decode.prompt_for(config(), 20)
    assert gpu_decode.recorder(model) is None

    def record(decoder):
        decoder.cache.fixed = True
        return graphs.use(decoder, TapeRecorder())

    def told(*args, **kwargs):
        found = run(*args, **kwargs)
        tokens.append(found["tokens"])
        return found

    seen, release = [], gpu_decode.Decoder.release

    def watched(self):
        seen.append(0 if self.graphs is None else self.graphs.replayed)
        release(self)

    monkeypatch.setattr(gpu_decode, "decode", told)
    monkeypatch.setattr(gpu_decode.Decoder, "release", watched)
    arms = gpu_decode.figure_12(model, prompt, 24, 8, record)
    assert list(arms) == [*gpu_decode.ARMS, *gpu_decode.RECORDED]
    assert [n > 0 for n in seen] == [False] * 6 + [True] and all(ids == tokens[1] for ids in tokens[2:])
    for name in gpu_decode.RECORDED:
        assert arms[name]["pass_ms"]["plain"] > 0 and arms[name]["pass_ms"]["refresh"] > 0 and arms[name]["added_within_ms"] is not None
    seen.clear()
    rows = gpu_decode.figure_13_and_speed(model, prompt, 24, 8, record)
    assert [(r["method"], n > 0) for r, n in zip(rows, seen, strict=True)] == [
        *((m, False) for m in gpu_decode.METHODS), ("fast-dllm-dual, graphs", True), ("polestar, on the device", False), ("polestar, graphs", True),
    ]  # fmt: skip
    assert {r["nfe"] for r in rows} == {24}
    found = {"machine": {"device": "any"}, "dtype": "float32", "seconds": 1.0, "results": {"figure12/small": arms, "decode/small": rows}, "not_measured": {}}
    text = gpu.table(found)
    assert "| graphs | refresh | n/a |" in text and "| polestar, graphs | 24 |" in text and "- graphs: as on the device" in text


def test_table_and_json(found):
    json.dumps(found)
    text = gpu.table(found)
    for piece in ("small", "proxy attention + drift", "| polestar | 24 |", "Figure 12", "n/a", "- unoptimised: unfused and synchronous"):
        assert piece in text


def test_a_part_without_time_says_so():
    found = gpu.collect(torch.device("cpu"), seconds=0.0, shapes=(SMALL,), models={"small": config()}, say=lambda _: None)
    assert found["results"] == {}
    assert "not measured" in found["not_measured"]["model/small"]
    assert "not measured" in gpu.table(found)


def test_a_wrong_kernel_is_told():
    right = (torch.arange(5000), torch.ones(3))
    assert gpu_kernels.difference(right, right, 1e-4)["ok"]
    assert not gpu_kernels.difference((right[0], torch.tensor([1.0, 1.0, 1.1])), right, 1e-4)["ok"]
    assert not gpu_kernels.difference((right[0] + 1, right[1]), right, 1e-4)["ok"]
    assert not gpu_kernels.difference((right[0], torch.tensor([1.0, 1.0, float("nan")])), right, 1e-4)["ok"]


@pytest.mark.parametrize("cfg", [config(), config(qkv_bias=True), config(tied_head=True)])
def test_parameters_are_counted(cfg):
    assert gpu_decode.parameters(cfg) == sum(p.numel() for p in Transformer(cfg).parameters())


def test_published_sizes():
    assert gpu_decode.parameters(gpu_decode.LLADA_8B) == pytest.approx(8.02e9, rel=0.01)
    assert gpu_decode.parameters(gpu_decode.DREAM_7B) == pytest.approx(7.62e9, rel=0.01)


def test_without_a_gpu_it_says_so_and_stops(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 1
    assert "no CUDA GPU" in capsys.readouterr().err

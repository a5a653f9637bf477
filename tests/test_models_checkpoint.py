"""Loading: faults that are named, bit-for-bit reloads, memory and devices, quantised and spread models."""

import dataclasses
import itertools
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from polestar.models import families, machine, spread, weights
from polestar.models.checkpoint import CheckpointError, NotEnoughMemory, load_model
from polestar.models.machine import Gpu, Machine, Size
from tests.goldens import FOLDER
from tests.model_zoo import oracle, save_llada, save_qwen

GB = 10**9


@pytest.fixture
def directory(tmp_path):
    return save_llada(oracle("llama"), tmp_path / "model")


def edit(directory: Path, change) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def poison(value):
    def change(tensors):
        tensors["model.transformer.blocks.1.up_proj.weight"][3, 4] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.transformer.blocks.2.q_proj.weight"), r"blocks\.2\.q_proj\.weight is missing"),
        (lambda t: t.pop("model.transformer.ff_out.weight"), r"model\.transformer\.ff_out\.weight is missing"),
        (lambda t: t.update({"model.transformer.blocks.0.q_norm.weight": torch.ones(8)}), r"blocks\.0\.q_norm\.weight is not part"),
        (lambda t: t.update({"model.transformer.blocks.3.q_proj.weight": torch.ones(48, 48)}), r"blocks\.3\.q_proj\.weight is not part"),
        (lambda t: t.update({"transformer.wte.weight": torch.ones(96, 48)}), r"gives what .*wte\.weight gave already"),
        (lambda t: t.update({"model.transformer.ln_f.weight": torch.ones(47)}), r"ln_f\.weight has shape \[47\] where .* asks for \[48\]"),
        (lambda t: t.update({"model.transformer.ln_f.weight": torch.ones(48).to(torch.int32)}), r"ln_f\.weight is stored as int32"),
        (poison(float("nan")), r"blocks\.1\.up_proj\.weight holds values that are not finite"),
        (poison(float("-inf")), r"blocks\.1\.up_proj\.weight holds values that are not finite"),
    ],
)
def test_faults_of_a_checkpoint_are_named(directory, change, message):
    edit(directory, change)
    with pytest.raises(CheckpointError, match=message):
        load_model(directory, device="cpu")


def test_several_faults_are_told_at_once_and_the_rest_counted(directory):
    edit(directory, lambda t: [t.pop(n) for n in sorted(t) if "blocks.1" in n or "blocks.2" in n])
    with pytest.raises(CheckpointError, match=r"is missing; .*and 10 more"):
        load_model(directory, device="cpu")


def test_buffers_that_are_computed_may_be_in_the_file(directory):
    edit(directory, lambda t: t.update({"model.transformer.blocks.0.rotary_emb.inv_freq": torch.ones(4)}))
    assert load_model(directory, device="cpu").config.n_layers == 3


def test_half_precision_nan_is_found(tmp_path):
    directory = save_llada(oracle("llama"), tmp_path / "m")
    edit(directory, lambda t: t.update({n: v.to(torch.bfloat16) for n, v in t.items()}))
    assert load_model(directory, device="cpu", dtype="bfloat16").dtype == torch.bfloat16
    edit(directory, poison(float("inf")))
    with pytest.raises(CheckpointError, match="not finite"):
        load_model(directory, device="cpu", dtype="bfloat16")


def test_files_that_are_not_safetensors(tmp_path, directory):
    (directory / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json at all!")
    with pytest.raises(CheckpointError, match="not a readable safetensors"):
        load_model(directory)
    (directory / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no safetensors"):
        load_model(directory)
    (directory / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin could run code"):
        load_model(directory)
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load_model(tmp_path)
    with pytest.raises(FileNotFoundError, match="no model named 'nothing'"):
        load_model("nothing")


def test_missing_shards_and_a_wicked_index(tmp_path):
    directory = save_qwen(oracle("qwen2"), tmp_path / "m", "dream", shard="30KB")
    gone = sorted(directory.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(CheckpointError, match=rf"lacks 1 of .* shards \({gone.name}\)"):
        load_model(directory)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../../else.safetensors"}}))
    with pytest.raises(CheckpointError, match="points outside"):
        load_model(directory)
    (directory / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="not a safetensors index"):
        load_model(directory)


def test_saved_and_reloaded_in_a_new_process_bit_for_bit(tmp_path):
    loaded = load_model(FOLDER / "dream_tiny", device="cpu", dtype="float32")
    saved = tmp_path / "again"
    saved.mkdir()
    names = {families.published_name(n, loaded.config): p.detach().clone() for n, p in loaded.model.named_parameters()}
    save_file(names, saved / "model.safetensors")
    (saved / "config.json").write_bytes((FOLDER / "dream_tiny" / "config.json").read_bytes())
    code = (
        "import sys, torch; torch.set_num_threads(1); from polestar.models.checkpoint import load_model;"
        "m = load_model(sys.argv[1], device='cpu', dtype='float32').model;"
        "print(m(torch.arange(40)[None]).detach().numpy().tobytes().hex())"
    )
    root = Path(__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", code, str(saved)], capture_output=True, text=True, check=True, cwd=root)
    assert bytes.fromhex(run.stdout.strip()) == loaded.model(torch.arange(40)[None]).detach().numpy().tobytes()


def test_loading_streams_and_reports_progress(directory):
    seen = []
    loaded = load_model(directory, device="cpu", dtype="float32", progress=lambda done, total: seen.append((done, total)))
    total = (directory / "model.safetensors").stat().st_size
    assert seen[-1] == (total, total) and all(a <= b for (a, _), (b, _) in itertools.pairwise(seen)) and len(seen) > 20
    assert not any(p.is_meta or p.requires_grad for p in loaded.model.parameters()) and not loaded.model.training
    before = loaded.model.embed.weight.clone()
    (directory / "model.safetensors").write_bytes(b"\0" * total)  # weights are copies: the file may change afterwards
    assert torch.equal(loaded.model.embed.weight, before)


def test_a_freed_model_holds_nothing(directory):
    loaded = load_model(directory, device="cpu")
    loaded.model(torch.arange(9)[None])
    loaded.free()
    assert all(p.is_meta for p in loaded.model.parameters()) and loaded.model._rope is None


def test_the_bundled_model_loads_by_name(demo):
    assert (demo.name, demo.revision, demo.config.family) == ("demo", "", "llada")
    assert "float32" in demo.note and "CPU" in demo.note


# -- device, dtype, memory

LLADA = Size(linear=6_979_321_856, other=1_036_259_328)
AMPERE = Gpu(index=0, name="A100", free=80 * GB, total=80 * GB, native_bf16=True)
T4 = Gpu(index=0, name="Tesla T4", free=15 * GB, total=16 * GB, native_bf16=False)


def choose(on, **asked):
    return machine.choose(LLADA, on, name="LLaDA-8B-Instruct", **asked)


def test_bfloat16_where_the_gpu_has_it_else_float16():
    choice = choose(Machine(gpus=(AMPERE,), ram=64 * GB))
    assert (choice.device.type, choice.dtype, choice.note) == ("cuda", torch.bfloat16, "bfloat16 on A100")
    big = Gpu(index=1, name="V100", free=32 * GB, total=32 * GB, native_bf16=False)
    choice = choose(Machine(gpus=(T4, big), ram=64 * GB))
    assert (choice.device.index, choice.dtype) == (1, torch.float16)
    assert choice.note == "float16 on V100, because it has no bfloat16"
    with pytest.raises(ValueError, match="V100 has no bfloat16"):
        choose(Machine(gpus=(big,)), dtype="bfloat16")


def test_what_does_not_fit_says_what_is_needed_what_there_is_and_the_ways_out():
    with pytest.raises(NotEnoughMemory) as error:
        choose(Machine(gpus=(T4,), ram=32 * GB))
    text = str(error.value)
    assert "needs 17.6 GB" in text and "15.0 GB free" in text and "32.0 GB of memory" in text
    assert "4-bit" in text and "--device cpu" in text and "demo" in text
    with pytest.raises(NotEnoughMemory, match=r"12\.0 GB of memory available and no GPU; load it in 8-bit .* or load it in 4-bit"):
        choose(Machine(ram=12 * GB))
    with pytest.raises(NotEnoughMemory) as error:
        choose(Machine(ram=4 * GB))
    assert "bit (" not in str(error.value) and "demo" in str(error.value)


def test_cpu_takes_float32_where_it_fits_and_says_so_where_it_does_not():
    assert choose(Machine(ram=64 * GB)).note == "float32 on the CPU"
    choice = choose(Machine(ram=24 * GB))
    assert choice.dtype == torch.bfloat16 and "float32 would need 35.3 GB" in choice.note


def test_apple_gpus_have_no_float64_and_no_bitsandbytes():
    on = Machine(mps=True, ram=64 * GB)
    assert choose(on).device.type == "mps"
    with pytest.raises(ValueError, match="no float64"):
        choose(on, dtype="float64")
    with pytest.raises(ValueError, match="bitsandbytes does not run on Apple"):
        choose(on, device="mps", quantize="4bit")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"device": "cuda"}, "no CUDA GPU is in sight"),
        ({"dtype": "bf17"}, "'bf17' is unknown"),
        ({"dtype": torch.int8}, "no floating point"),
        ({"quantize": "3bit"}, "'3bit'; use one of 8bit, 4bit"),
    ],
)
def test_impossible_wishes_are_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        choose(Machine(ram=64 * GB), **asked)


def test_quantised_sizes_and_the_choice():
    assert LLADA.bytes(torch.bfloat16) == 2 * 8_015_581_184
    assert LLADA.bytes(torch.bfloat16, "4bit") < LLADA.bytes(torch.bfloat16, "8bit") < 10 * GB
    choice = choose(Machine(gpus=(T4,), ram=8 * GB), quantize="4bit")
    assert choice.quantize == "4bit" and choice.note.startswith("4-bit weights, float16 arithmetic on Tesla T4")


def test_this_machine_is_seen():
    on = machine.this_machine()
    assert on.ram > 10**8 and "memory available" in on.sentence()


def test_memory_is_checked_before_anything_is_read(directory):
    with pytest.raises(NotEnoughMemory):
        load_model(directory, on=Machine(ram=1000))


def test_without_bitsandbytes_the_error_is_one_sentence(directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ValueError, match=r"4-bit weights need bitsandbytes.*pip install bitsandbytes"):
        load_model(directory, device="cpu", quantize="4bit")


class _Rounded(torch.nn.Parameter):
    """A stand-in for a quantised parameter: rounds when it is moved to its device, as the library does."""

    def __new__(cls, data, requires_grad=False, **_options):
        return torch.Tensor._make_subclass(cls, data, requires_grad)

    def to(self, *_args):
        return torch.nn.Parameter((self.detach().float() * 64).round() / 64, requires_grad=False)


class _Linear(torch.nn.Linear):
    def __init__(self, into, out, bias=True, device=None, **_options):
        super().__init__(into, out, bias=bias, device=device)


@pytest.mark.parametrize(("quantize", "family"), [("4bit", "dream"), ("8bit", "llada")])
def test_projections_are_quantised_as_they_arrive_and_nothing_else_is(tmp_path, monkeypatch, quantize, family):
    fake = types.ModuleType("bitsandbytes")
    fake.nn = types.SimpleNamespace(Linear4bit=_Linear, Linear8bitLt=_Linear, Params4bit=_Rounded, Int8Params=_Rounded)
    monkeypatch.setitem(sys.modules, "bitsandbytes", fake)
    directory = FOLDER / "dream_tiny" if family == "dream" else save_llada(oracle("llama"), tmp_path / "m")
    full = load_model(directory, device="cpu", dtype="float32")
    small = load_model(directory, device="cpu", dtype="float32", quantize=quantize)
    assert small.quantize == quantize and f"{quantize[0]}-bit" in small.note
    for layer, exact in zip(small.model.layers, full.model.layers, strict=True):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
            mine, want = getattr(layer, name), getattr(exact, name)
            assert isinstance(mine, _Linear)
            arrived = want.weight.half().float() if quantize == "8bit" else want.weight
            torch.testing.assert_close(mine.weight, (arrived * 64).round() / 64)
            assert (mine.bias is None) == (want.bias is None)
            assert mine.bias is None or torch.equal(mine.bias, want.bias)
    assert torch.equal(small.model.embed.weight, full.model.embed.weight) and torch.equal(small.model.head.weight, full.model.head.weight)
    assert small.model(torch.arange(12)[None]).isfinite().all()
    small.free()
    assert all(p.is_meta for p in small.model.parameters())
    if quantize == "4bit":
        with pytest.raises(ValueError, match="multiple of 64, and this model has rows of 48"):
            load_model(save_llada(oracle("llama"), tmp_path / "odd"), device="cpu", quantize="4bit")


def test_layers_are_spread_over_devices_in_order_until_each_is_full():
    model = weights.build(families.read_config(FOLDER / "llada_tiny"))
    a, b = torch.device("cuda", 0), torch.device("cuda", 1)
    layer = sum(p.numel() for n, p in model.layers[0].named_parameters() if "_proj" in n) * 2
    kept = sum(p.numel() for p in model.parameters()) * 2 - 4 * layer
    where = spread.assign(model, a, [(b, 3 * layer), (a, kept + layer)], torch.bfloat16)
    assert [where(f"layers.{i}.q_proj.weight").index for i in range(4)] == [0, 1, 1, 1]
    assert {where(n) for n in ("embed.weight", "head.weight", "norm.weight", "layers.3.attn_norm.weight")} == {a}
    with pytest.raises(ValueError, match="layer 3 of 4 fits on none of 2 devices"):
        spread.assign(model, a, [(a, kept + layer), (b, 2 * layer)], torch.bfloat16)


def test_only_projections_that_live_elsewhere_are_hooked(monkeypatch):
    hooked = {}
    fake = types.ModuleType("accelerate.hooks")
    fake.AlignDevicesHook = lambda **options: options
    fake.add_hook_to_module = lambda module, hook: hooked.update({module: hook})
    monkeypatch.setitem(sys.modules, "accelerate", types.ModuleType("accelerate"))
    monkeypatch.setitem(sys.modules, "accelerate.hooks", fake)
    model = weights.build(families.read_config(FOLDER / "llada_tiny"))
    here, there = torch.device("cuda", 0), torch.device("cuda", 1)
    spread.attach(model, lambda name: there if name.startswith("layers.3.") else here, here)
    assert list(hooked) == [m for m in model.layers[3].modules() if isinstance(m, torch.nn.Linear)] and len(hooked) == 7
    assert all(hook == {"execution_device": there, "io_same_device": True} for hook in hooked.values())


def test_two_gpus_are_used_only_when_one_does_not_do(monkeypatch):
    two = tuple(dataclasses.replace(T4, index=i) for i in (0, 1))
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: name == "accelerate")
    choice = choose(Machine(gpus=two, ram=64 * GB))
    assert choice.spread and choice.note == "float16, layers spread over 2 GPUs"
    assert not machine.choose(Size(linear=GB, other=GB), Machine(gpus=two, ram=64 * GB)).spread
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(NotEnoughMemory):
        choose(Machine(gpus=two, ram=64 * GB))


def test_a_small_model_decodes_on_one_thread_and_a_large_one_on_every_core(monkeypatch):
    from polestar.models import machine

    monkeypatch.setattr(machine.os, "cpu_count", lambda: 6)
    small, large = torch.nn.Linear(10, 10, device="meta"), torch.nn.Linear(6000, 6000, device="meta")
    assert (machine.cpu_threads(small), machine.cpu_threads(large)) == (1, 6)

"""Families against transformers' own classes with full attention, and against the published names of the large checkpoints."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from polestar.clock import PhaseClock
from polestar.models import families, machine, registry, weights
from polestar.models.checkpoint import load_model
from polestar.models.families import UnsupportedModel
from polestar.plan import ForwardPlan
from tests.model_zoo import llada_tensors, oracle, oracle_logits, save_llada, save_qwen, write_config

IDS = torch.randint(0, 90, (2, 37), generator=torch.Generator().manual_seed(5))


def ours(directory: Path) -> torch.Tensor:
    return load_model(directory, device="cpu", dtype="float32").model(IDS).detach()


@pytest.mark.parametrize(
    ("kind", "save", "options"),
    [
        ("llama", save_llada, {}),
        ("llama", save_llada, {"kv": 6}),
        ("llama", save_llada, {"fused": True}),
        ("llama", save_llada, {"fused": True, "kv": 6}),
        ("llama", save_llada, {"tied": True}),
        ("qwen2", save_qwen, {"family": "dream"}),
        ("qwen2", save_qwen, {"family": "dream", "shard": "30KB"}),
        ("qwen2", save_qwen, {"family": "a2d", "tied": True}),
        ("qwen3", save_qwen, {"family": "a2d"}),
        ("qwen3", save_qwen, {"family": "a2d", "tied": True, "shard": "30KB"}),
    ],
)
def test_logits_equal_those_of_transformers(tmp_path, kind, save, options):
    options = dict(options)
    kv, tied = options.pop("kv", 2), options.get("tied", False)
    if save is save_qwen:
        options.pop("tied", None)
    reference = oracle(kind, tied=tied, kv=kv)
    directory = save(reference, tmp_path / "model", **options)
    if "shard" in options:
        assert len(list(directory.glob("*.safetensors"))) > 2
    want = oracle_logits(reference, IDS)
    assert want.std() > 0.5  # the comparison means something
    torch.testing.assert_close(ours(directory), want, atol=1e-5 * want.abs().max().item(), rtol=1e-5)


def test_causal_attention_would_be_noticed(tmp_path):
    reference = oracle("qwen2")
    causal = reference(IDS).logits.detach()
    assert (ours(save_qwen(reference, tmp_path / "m", "a2d")) - causal).abs().max() > 0.1


def test_fused_qkv_and_gate_up_of_the_qwen_layout(tmp_path):
    reference = oracle("qwen2")
    directory = save_qwen(reference, tmp_path / "m", "a2d")
    tensors = load_file(directory / "model.safetensors")
    for i in range(3):
        at = f"model.layers.{i}."
        for leaf in ("weight", "bias"):
            tensors[f"{at}self_attn.qkv_proj.{leaf}"] = torch.cat([tensors.pop(f"{at}self_attn.{p}_proj.{leaf}") for p in "qkv"])
        tensors[f"{at}mlp.gate_up_proj.weight"] = torch.cat([tensors.pop(f"{at}mlp.{p}_proj.weight") for p in ("gate", "up")])
    save_file(tensors, directory / "model.safetensors")
    torch.testing.assert_close(ours(directory), oracle_logits(reference, IDS), atol=1e-4, rtol=1e-5)


def test_a_head_that_is_shipped_is_used_though_the_config_says_tied(tmp_path):
    reference = oracle("qwen2")
    directory = save_qwen(reference, tmp_path / "m", "a2d", tie_word_embeddings=True)
    loaded = load_model(directory, device="cpu", dtype="float32")
    assert not loaded.config.tied_head
    torch.testing.assert_close(loaded.model(IDS).detach(), oracle_logits(reference, IDS), atol=1e-4, rtol=1e-5)


def test_only_dream_shifts(tmp_path):
    dream = families.read_config(save_qwen(oracle("qwen2"), tmp_path / "d", "dream"))
    a2d = families.read_config(save_qwen(oracle("qwen3"), tmp_path / "a", "a2d"))
    llada = families.read_config(save_llada(oracle("llama"), tmp_path / "l"))
    assert (dream.shift, a2d.shift, llada.shift) == (True, False, False)
    assert (dream.qkv_bias, a2d.qkv_bias, llada.qkv_bias) == (True, False, False)
    assert (dream.qk_norm, a2d.qk_norm, llada.qk_norm) == (False, True, False)
    assert a2d.head_dim == 16 and dream.head_dim == 8  # Qwen3 states its own
    assert {c.mask_id for c in (dream, a2d, llada)} == {95}


def test_a_plan_gives_the_logits_of_the_row_that_predicts(tmp_path):
    """Dream: logits asked for position p are the plain pass's row p - 1, position 0 its own."""
    loaded = load_model(save_qwen(oracle("qwen2"), tmp_path / "m", "dream"), device="cpu", dtype="float32")
    store = loaded.model.new_store(37)
    asked = torch.tensor([0, 1, 20, 36])
    result = loaded.model.run(ForwardPlan(kind="entry-full", rows=(0, 37), logits_for=asked), IDS[0], store, PhaseClock(enabled=False))
    torch.testing.assert_close(result.logits, loaded.model(IDS[:1])[0, [0, 0, 19, 35]].detach(), atol=1e-5, rtol=1e-5)


# -- what is published


def published_llada() -> dict[str, list[int]]:
    """Names and shapes of LLaDA-8B's tensors, from its architecture."""
    d, m, v = 4096, 12288, 126464
    out = {f"model.transformer.{n}.weight": s for n, s in (("wte", [v, d]), ("ff_out", [v, d]), ("ln_f", [d]))}
    for i in range(32):
        square, wide = [d, d], [m, d]
        of = dict.fromkeys(("q_proj", "k_proj", "v_proj", "attn_out"), square) | dict.fromkeys(("ff_proj", "up_proj"), wide)
        of |= {"ff_out": [d, m], "attn_norm": [d], "ff_norm": [d]}
        out |= {f"model.transformer.blocks.{i}.{n}.weight": s for n, s in of.items()}
    return out


def published_dream() -> dict[str, list[int]]:
    """Names and shapes of Dream-7B's tensors, from its architecture (Qwen2.5-7B)."""
    d, kv, m, v = 3584, 512, 18944, 152064
    out = {"model.embed_tokens.weight": [v, d], "model.norm.weight": [d], "lm_head.weight": [v, d]}
    for i in range(28):
        at = f"model.layers.{i}."
        for p, rows in (("q", d), ("k", kv), ("v", kv)):
            out |= {f"{at}self_attn.{p}_proj.weight": [rows, d], f"{at}self_attn.{p}_proj.bias": [rows]}
        out |= {
            f"{at}self_attn.o_proj.weight": [d, d], f"{at}mlp.gate_proj.weight": [m, d], f"{at}mlp.up_proj.weight": [m, d],
            f"{at}mlp.down_proj.weight": [d, m], f"{at}input_layernorm.weight": [d], f"{at}post_attention_layernorm.weight": [d],
        }  # fmt: skip
    return out


LLADA_8B = {
    "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": 4096, "n_heads": 32, "n_kv_heads": 32, "n_layers": 32,
    "mlp_hidden_size": 12288, "vocab_size": 126464, "embedding_size": 126464, "mask_token_id": 126336, "eos_token_id": 126081,
    "pad_token_id": 126081, "max_sequence_length": 4096, "rope_theta": 500000.0, "rms_norm_eps": 1e-05, "block_type": "llama",
    "layer_norm_type": "rms", "activation_type": "silu", "weight_tying": False, "include_bias": False, "include_qkv_bias": False,
    "rope": True, "rope_full_precision": True, "alibi": False, "multi_query_attention": None, "mlp_ratio": 4, "block_group_size": 1,
}  # fmt: skip
DREAM_7B = {
    "model_type": "Dream", "architectures": ["DreamModel"], "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
    "num_hidden_layers": 28, "intermediate_size": 18944, "vocab_size": 152064, "mask_token_id": 151666, "eos_token_id": 151643,
    "pad_token_id": 151643, "bos_token_id": 151643, "max_position_embeddings": 131072, "rope_theta": 1000000.0, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "hidden_act": "silu", "tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": None,
    "max_window_layers": 28, "attention_dropout": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "published", "name"),
    [(LLADA_8B, published_llada, "LLaDA-8B-Instruct"), (DREAM_7B, published_dream, "Dream-v0-Instruct-7B")],
)
def test_every_published_name_and_shape_has_its_place(tmp_path, config, published, name):
    write_config(tmp_path, config)
    cfg = families.read_config(tmp_path)
    model = weights.build(cfg)
    assert all(p.is_meta for p in model.parameters())
    shapes = {n: list(p.shape) for n, p in model.named_parameters()}
    names = published()
    placed = {}
    for tensor, shape in names.items():
        (place,) = families.places(tensor, cfg, shape[0])
        assert place.rows is None and shapes[place.parameter] == shape
        assert families.published_name(place.parameter, cfg) == tensor
        placed[place.parameter] = tensor
    assert placed.keys() == shapes.keys()
    assert machine.size_of(model) == registry.find(name).size


def test_the_whole_published_layout_of_llada_8b_is_accepted_without_its_weights(tmp_path, monkeypatch):
    """`fill` walks all tensors of the 8B layout (names and shapes alone); a wrong one is named."""
    write_config(tmp_path, LLADA_8B)
    (tmp_path / "model.safetensors").write_bytes(b"")
    cfg = families.read_config(tmp_path)

    class View:
        def __init__(self, shape):
            self.shape = shape

        def __getitem__(self, _):
            return torch.zeros(1).expand(self.shape)

    layout = published_llada()
    monkeypatch.setattr(weights, "finite", lambda _: True)  # eight thousand million zeros
    monkeypatch.setattr(weights, "tensors", lambda _files: ((n, s, View(s)) for n, s in layout.items()))
    seen = []
    weights.fill(weights.build(cfg), tmp_path, lambda _m, name, t: seen.append((name, tuple(t.shape))))
    assert len(seen) == len(layout) == 3 + 32 * 9
    layout["model.transformer.blocks.31.k_proj.weight"] = [4095, 4096]
    with pytest.raises(weights.CheckpointError, match=r"31\.k_proj\.weight has shape \[4095, 4096\] where .* asks for \[4096, 4096\]"):
        weights.fill(weights.build(cfg), tmp_path, lambda *_: None)


# -- what is refused


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "sdar", "architectures": ["SDARForCausalLM"]}, "block-causal"),
        ({"model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"]}, "block-causal"),
        ({"model_type": "Fast_dLLM_Qwen", "architectures": ["Fast_dLLM_QwenForCausalLM"]}, "block-causal"),
        ({"model_type": "llada_moe", "architectures": ["LLaDAMoEModelLM"]}, "mixture of experts"),
        ({"model_type": "llava_llada", "architectures": ["LlavaLladaForMaskedDiffusion"]}, "images"),
        ({"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"]}, "alternate"),
        ({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}, "no masked diffusion family"),
        ({}, "no masked diffusion family"),
    ],
)
def test_other_families_are_refused_with_the_reason(tmp_path, config, reason):
    write_config(tmp_path, config)
    with pytest.raises(UnsupportedModel, match=reason):
        families.read_config(tmp_path)


def test_a_bd3lm_directory_is_refused_by_its_name(tmp_path):
    """Its config is that of its mdlm sibling; only the name tells."""
    directory = save_qwen(oracle("qwen3"), tmp_path / "Qwen3-0.6B-diffusion-bd3lm-v0.1", "a2d")
    with pytest.raises(UnsupportedModel, match="block-causal"):
        load_model(directory)


@pytest.mark.parametrize("name", ["SDAR-4B-Chat", "JetLM/SDAR-4B-Chat", "inclusionai/llada2.0-mini"])
def test_refused_names_say_why(name):
    with pytest.raises(UnsupportedModel, match="block-causal"):
        load_model(name)


@pytest.mark.parametrize(
    "changes",
    [
        {"alibi": True}, {"layer_norm_type": "default"}, {"include_bias": True}, {"rope": False}, {"attention_layer_norm": True},
        {"block_type": "sequential"}, {"activation_type": "gelu"}, {"scale_logits": True}, {"rope_scaling": {"type": "yarn", "factor": 4}},
    ],
)  # fmt: skip
def test_llada_switches_that_the_transformer_lacks_are_refused(tmp_path, changes):
    directory = save_llada(oracle("llama"), tmp_path / "m", **changes)
    with pytest.raises(UnsupportedModel, match=r"config\.json (says|scales)"):
        families.read_config(directory)


@pytest.mark.parametrize(
    "changes", [{"use_sliding_window": True}, {"hidden_act": "gelu"}, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}]
)
def test_qwen_switches_that_the_transformer_lacks_are_refused(tmp_path, changes):
    directory = save_qwen(oracle("qwen2"), tmp_path / "m", "dream", **changes)
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        families.read_config(directory)


def test_an_incomplete_config_names_what_it_lacks(tmp_path):
    directory = save_llada(oracle("llama"), tmp_path / "m", n_layers="drop")
    with pytest.raises(UnsupportedModel, match="n_layers"):
        families.read_config(directory)
    (directory / "config.json").write_text("{")
    with pytest.raises(UnsupportedModel, match="not valid json"):
        families.read_config(directory)
    (directory / "config.json").write_text("[1]")
    with pytest.raises(UnsupportedModel, match="list"):
        families.read_config(directory)


def test_ids_that_the_config_leaves_out_come_from_the_tokenizer(tmp_path):
    directory = save_qwen(oracle("qwen3"), tmp_path / "m", "a2d", mask_token_id="drop", pad_token_id="drop", eos_token_id=91)
    with pytest.raises(UnsupportedModel, match="mask token"):
        families.read_config(directory)
    tokens = {"89": {"content": "<|mask|>"}, "90": {"content": "<|endoftext|>"}}
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"mask_token": "<|mask|>", "pad_token": {"content": "<|endoftext|>"}, "added_tokens_decoder": tokens})
    )
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [91, 92]}))
    cfg = families.read_config(directory)
    assert (cfg.mask_id, cfg.eos_id, cfg.pad_id, cfg.eos_ids) == (89, 91, 90, (91, 90, 92))


def test_names_of_a_layer_beyond_the_config_and_unknown_names_have_no_place():
    cfg = families.read_config(Path(__file__).parent / "data/golden/llada_tiny")
    assert families.places("model.transformer.blocks.4.q_proj.weight", cfg, 128) is None
    assert families.places("model.transformer.blocks.0.q_norm.weight", cfg, 128) is None
    assert families.places("model.transformer.wte.bias", cfg, 512) is None
    assert families.places("lm_head.weight", cfg, 512) is None


def test_registry_is_consistent():
    names = [e.name for e in registry.REGISTRY]
    assert len(set(names)) == len(names)
    for entry in registry.REGISTRY:
        assert entry.revision == "" or re.fullmatch(r"[0-9a-f]{40}", entry.revision)
        assert entry.family in ("llada", "dream", "a2d")
        assert registry.find(entry.name.lower()) is entry
    assert not {r.split("/")[1] for r in registry.REFUSED} & set(names)


def test_no_code_of_a_checkpoint_is_ever_trusted():
    root = Path(__file__).parents[1]
    files = [f for folder in ("polestar", "ui", "kernels") for f in (root / folder).rglob("*.py")] + [root / "app.py"]
    assert len(files) > 20
    word = "trust_" + "remote_code"
    assert not [f for f in files if word in f.read_text()]


def test_llada_names_cover_the_oracle():
    model = oracle("llama")
    assert len(llada_tensors(model)) == len(dict(model.named_parameters())) == 3 + 3 * 9
    assert dataclasses.is_dataclass(registry.REGISTRY[0])

"""Random tiny checkpoints of each family, in the layout that is published, and the oracle that knows nothing of our transformer.

The oracle is `transformers`' own Llama, Qwen2 or Qwen3 class given a full (bidirectional) 4-D mask.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

SIZES = dict(
    vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6, max_position_embeddings=256,
    rms_norm_eps=1e-6, attention_dropout=0.0, use_cache=False,
)  # fmt: skip
IDS = {"mask_token_id": 95, "eos_token_id": 94, "pad_token_id": 94, "bos_token_id": 93}


def oracle(kind: str, *, tied: bool = False, kv: int = 2, seed: int = 0):
    """A random transformers model: kind "llama", "qwen2" or "qwen3". Every weight is random, norms and biases too."""
    cls, config = {
        "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig),
        "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config),
        "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config),
    }[kind]
    more = {"head_dim": 16} if kind == "qwen3" else {}
    cfg = config(**SIZES, **more, num_key_value_heads=kv, tie_word_embeddings=tied, attn_implementation="eager")
    cfg.rope_parameters = {"rope_type": "default", "rope_theta": 20000.0}
    model = cls(cfg).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 if parameter.dim() > 1 else 0.2
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread + (1.0 if parameter.dim() == 1 else 0.0))
    return model


@torch.inference_mode()
def oracle_logits(model, ids: torch.Tensor) -> torch.Tensor:
    """Logits [N, L, V] with every position attending to every other."""
    n, length = ids.shape
    return model(input_ids=ids, attention_mask=torch.zeros(n, 1, length, length), position_ids=torch.arange(length)[None]).logits


def save_qwen(model, directory: Path, family: str, *, shard: str = "1GB", **changes) -> Path:
    """A Dream or A2D directory: the class's own `save_pretrained`, then the config as the family publishes it."""
    model.save_pretrained(directory, max_shard_size=shard)
    config = json.loads((directory / "config.json").read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    qwen3 = config["model_type"] == "qwen3"
    names = {
        "dream": {"model_type": "Dream", "architectures": ["DreamModel"]},
        "a2d": {"model_type": f"a2d-qwen{3 if qwen3 else 2}", "architectures": [f"A2DQwen{3 if qwen3 else 2}LMHeadModel"]},
    }[family]
    write_config(directory, {**config, **IDS, "rope_theta": theta, "rope_scaling": None, **names, **changes})
    (directory / "generation_config.json").unlink(missing_ok=True)
    return directory


def write_config(directory: Path, config: dict) -> None:
    """Write config.json; keys whose value is the string "drop" are left out."""
    (directory / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "drop"}))


_LLADA_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ff_norm", "self_attn.q_proj": "q_proj", "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj", "self_attn.o_proj": "attn_out", "mlp.gate_proj": "ff_proj", "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
}  # fmt: skip


def llada_tensors(model) -> dict[str, torch.Tensor]:
    """A Llama model's weights under LLaDA's published names."""
    top = {"model.embed_tokens": "wte", "model.norm": "ln_f", "lm_head": "ff_out"}
    out = {}
    for name, tensor in model.state_dict().items():
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            stem, leaf = rest.rsplit(".", 1)
            out[f"model.transformer.blocks.{layer}.{_LLADA_NAMES[stem]}.{leaf}"] = tensor.clone()
        else:
            out[f"model.transformer.{top[name.rsplit('.', 1)[0]]}.weight"] = tensor.clone()
    return out


def save_llada(model, directory: Path, *, fused: bool = False, tied: bool = False, **changes) -> Path:
    """A LLaDA directory from a Llama model; `fused` as the sequential block type stores it (one qkv, [up; gate])."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = llada_tensors(model)
    if tied:
        del tensors["model.transformer.ff_out.weight"]
    if fused:
        for i in range(model.config.num_hidden_layers):
            at = f"model.transformer.blocks.{i}."
            tensors[f"{at}att_proj.weight"] = torch.cat([tensors.pop(f"{at}{p}_proj.weight") for p in "qkv"])
            tensors[f"{at}ff_proj.weight"] = torch.cat([tensors.pop(f"{at}up_proj.weight"), tensors.pop(f"{at}ff_proj.weight")])
    save_file(tensors, directory / "model.safetensors")
    c = model.config
    write_config(
        directory,
        {
            "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": c.hidden_size, "n_layers": c.num_hidden_layers,
            "n_heads": c.num_attention_heads, "n_kv_heads": c.num_key_value_heads, "vocab_size": c.vocab_size,
            "embedding_size": c.vocab_size,
            "mlp_hidden_size": c.intermediate_size * (2 if fused else 1), "block_type": "sequential" if fused else "llama",
            "activation_type": "swiglu" if fused else "silu", "layer_norm_type": "rms", "rope": True, "rope_full_precision": True,
            "rope_theta": 20000.0, "rms_norm_eps": c.rms_norm_eps, "max_sequence_length": c.max_position_embeddings, "include_bias": False,
            "include_qkv_bias": False, "weight_tying": tied, "alibi": False, "scale_logits": False, "input_emb_norm": False,
            "attention_layer_norm": False, "block_group_size": 1, **IDS, **changes,
        },
    )  # fmt: skip
    return directory

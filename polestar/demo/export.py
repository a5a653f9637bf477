"""A trained model as a directory in LLaDA's published layout: config.json, model.safetensors (bf16), tokenizer files.

Contract: the directory's files are written beside their final place and moved there one by one when all are complete.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from polestar.demo.tokenizer import EOS_ID, MASK_ID, save_tokenizer
from polestar.models.transformer import ModelConfig

LAYER_NAMES = {
    "attn_norm": "attn_norm",
    "q_proj": "q_proj",
    "k_proj": "k_proj",
    "v_proj": "v_proj",
    "o_proj": "attn_out",
    "mlp_norm": "ff_norm",
    "gate_proj": "ff_proj",
    "up_proj": "up_proj",
    "down_proj": "ff_out",
}


def model_config(*, d_model: int, n_layers: int, n_heads: int, mlp_hidden: int, vocab_size: int) -> ModelConfig:
    """The bundled model's shape as a LLaDA."""
    return ModelConfig(
        family="llada",
        vocab_size=vocab_size,
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=d_model // n_heads,
        mlp_hidden=mlp_hidden,
        max_length=1024,
        rope_theta=10000.0,
        norm_eps=1e-5,
        mask_id=MASK_ID,
        eos_id=EOS_ID,
        pad_id=EOS_ID,
        bos_id=2,
    )


def hub_config(cfg: ModelConfig) -> dict:
    """config.json with the keys of LLaDA-8B."""
    return {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "d_model": cfg.d_model,
        "n_heads": cfg.n_heads,
        "n_kv_heads": cfg.n_kv_heads,
        "n_layers": cfg.n_layers,
        "mlp_hidden_size": cfg.mlp_hidden,
        "mlp_ratio": 4,
        "vocab_size": cfg.vocab_size,
        "embedding_size": cfg.vocab_size,
        "mask_token_id": cfg.mask_id,
        "eos_token_id": cfg.eos_id,
        "pad_token_id": cfg.pad_id,
        "max_sequence_length": cfg.max_length,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": cfg.rope_theta,
        "alibi": False,
        "rms_norm_eps": cfg.norm_eps,
        "layer_norm_type": "rms",
        "block_type": "llama",
        "activation_type": "silu",
        "weight_tying": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "bias_for_layer_norm": False,
        "attention_layer_norm": False,
        "attention_dropout": 0.0,
        "residual_dropout": 0.0,
        "embedding_dropout": 0.0,
        "scale_logits": False,
        "input_emb_norm": False,
        "multi_query_attention": None,
        "torch_dtype": "bfloat16",
        "use_cache": False,
        "flash_attention": False,
        "init_device": "cpu",
    }


def hub_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a `Transformer` under the hub's names."""
    out = {}
    for name, value in state.items():
        parts = name.split(".")
        if parts[0] == "layers":
            new = f"model.transformer.blocks.{parts[1]}.{LAYER_NAMES[parts[2]]}.weight"
        else:
            new = {"embed": "model.transformer.wte.weight", "norm": "model.transformer.ln_f.weight", "head": "model.transformer.ff_out.weight"}[parts[0]]
        out[new] = value
    return out


def export(state: dict[str, Tensor], cfg: ModelConfig, tokenizer: Tokenizer, directory: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write the checkpoint directory."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}-") as name:
        staging = Path(name)
        weights = {k: v.detach().to("cpu", dtype).contiguous() for k, v in hub_names(state).items()}
        save_file(weights, staging / "model.safetensors", metadata={"format": "pt"})
        (staging / "config.json").write_text(json.dumps(hub_config(cfg), indent=1))
        save_tokenizer(tokenizer, staging)
        for file in sorted(staging.iterdir()):
            os.replace(file, directory / file.name)

"""Families of checkpoints: how a published config and published weight names map onto the one transformer.

Contract: `read_config(directory)` turns the directory's json files into a `ModelConfig` or raises `UnsupportedModel` with one sentence
that says why. `places(name, cfg)` says where a published tensor goes; `published_name(parameter, cfg)` is its inverse for messages and saving.
Nothing here reads tensors. Facts that a config does not state (mask id of A2D models) are read from the tokenizer files, never assumed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polestar.models.transformer import ModelConfig


class UnsupportedModel(ValueError):
    """The directory holds a model that this transformer cannot run faithfully. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where (part of) a published tensor goes: our parameter, and the rows of the published tensor that belong to it (None: all)."""

    parameter: str
    rows: tuple[int, int] | None = None


# -- configs


def read_json(path: Path) -> dict[str, Any]:
    """A json object from `path`, {} when there is no such file. Raises UnsupportedModel when it is not a json object."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UnsupportedModel(f"{path} is not valid json ({error}); fetch the file again") from None
    if not isinstance(data, dict):
        raise UnsupportedModel(f"{path} holds a {type(data).__name__} where a json object was expected; fetch the file again")
    return data


def read_config(directory: Path) -> ModelConfig:
    """The `ModelConfig` of a model directory.

    Raises FileNotFoundError when there is no config.json, UnsupportedModel when the family is unknown, block-causal or uses a feature
    that the transformer does not have.
    """
    directory = Path(directory)
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(f"{directory} has no config.json, so it is not a model directory; give a directory with config.json and safetensors files")
    raw = read_json(directory / "config.json")
    family = family_of(raw, directory.name)
    try:
        return _TRANSLATE[family](raw, directory)
    except KeyError as error:
        raise UnsupportedModel(f"{directory / 'config.json'} does not state {error}, which a {family} model needs; use a complete config.json") from None


# Why a known kind of model is refused: (pattern over model_type, architectures and directory name, reason).
_REFUSED = (
    (
        r"sdar|trado|llada2|fast_dllm|bd3lm|nemotron.*diffusion",
        "it is block-causal: a block does not see the blocks after it, so it has no suffix and no local window to keep fresh",
    ),
    (r"llada_?moe", "it is a mixture of experts, which this transformer does not have"),
    (r"llava|llada-?v\b", "it reads images, which this transformer does not"),
    (r"modernbert", "its layers alternate local attention windows, so not every query sees every cached key"),
)


def family_of(raw: dict[str, Any], directory_name: str = "") -> str:
    """"llada", "dream" or "a2d" from a published config. Raises UnsupportedModel for everything else, with the reason."""
    kind = " ".join([str(raw.get("model_type", "")), *map(str, raw.get("architectures") or ())])
    for pattern, reason in _REFUSED:
        if re.search(pattern, f"{kind} {directory_name}", re.IGNORECASE):
            raise UnsupportedModel(f"{directory_name or kind} cannot be decoded here: {reason}; use a fully bidirectional model such as LLaDA-8B-Instruct")
    for pattern, family in ((r"a2d", "a2d"), (r"llada", "llada"), (r"dream", "dream")):
        if re.search(pattern, kind, re.IGNORECASE):
            return family
    raise UnsupportedModel(
        f"{directory_name or 'the model'} has model_type {raw.get('model_type')!r} and architectures {raw.get('architectures')!r}, "
        "which is no masked diffusion family known here (LLaDA, Dream, A2D); use one of those"
    )


def _need(raw: dict[str, Any], **wanted: Any) -> None:
    """Refuse a config in which a switch says something that the transformer does not do."""
    for key, value in wanted.items():
        allowed = value if isinstance(value, tuple) else (value,)
        if key in raw and raw[key] is not None and raw[key] not in allowed:
            raise UnsupportedModel(f"config.json says {key} = {raw[key]!r}, this transformer runs {key} = {allowed[0]!r} only; use another checkpoint")


def _theta(raw: dict[str, Any]) -> float:
    """RoPE base, from the old or the new way of writing it. Raises UnsupportedModel when positions are scaled."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default" or scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) not in (None, 1, 1.0):
        raise UnsupportedModel(f"config.json scales or cuts rotary positions ({scaling or raw.get('partial_rotary_factor')}); use a checkpoint with plain RoPE")
    return float(scaling["rope_theta"] if "rope_theta" in scaling else raw["rope_theta"])


def _first(value: Any) -> int:
    return int(value[0] if isinstance(value, list) else value)


def _ids(*values: Any) -> tuple[int, ...]:
    """Distinct ids in order; lists are flattened, None is dropped."""
    flat = [item for value in values for item in (value if isinstance(value, list) else [value]) if item is not None]
    return tuple(dict.fromkeys(int(item) for item in flat))


def _llada(raw: dict[str, Any], directory: Path) -> ModelConfig:
    _need(
        raw, block_type=("llama", "sequential"), layer_norm_type="rms", rope=True, alibi=False, include_bias=False, attention_layer_norm=False,
        scale_logits=False, input_emb_norm=False, multi_query_attention=False, clip_qkv=(), block_group_size=1, residual_dropout=(0.0, 0),
    )  # fmt: skip
    fused = raw.get("block_type") == "sequential"
    _need(raw, activation_type="swiglu" if fused else "silu")
    d, heads = raw["d_model"], raw["n_heads"]
    hidden = raw.get("mlp_hidden_size") or raw.get("mlp_ratio", 4) * d
    return ModelConfig(
        family="llada",
        vocab_size=raw.get("embedding_size") or raw["vocab_size"],
        d_model=d,
        n_layers=raw["n_layers"],
        n_heads=heads,
        n_kv_heads=raw.get("n_kv_heads") or heads,
        head_dim=d // heads,
        mlp_hidden=hidden // 2 if fused else hidden,  # a fused ff_proj holds both halves
        max_length=raw["max_sequence_length"],
        rope_theta=_theta(raw),
        norm_eps=raw["rms_norm_eps"],
        mask_id=raw["mask_token_id"],
        eos_id=raw["eos_token_id"],
        pad_id=raw["pad_token_id"],
        bos_id=_named_id(directory, "bos_token"),
        eos_ids=_ids(raw["eos_token_id"], raw["pad_token_id"]),
        qkv_bias=bool(raw.get("include_qkv_bias")),
        tied_head=bool(raw.get("weight_tying")),
    )


def _qwen(raw: dict[str, Any], directory: Path, family: str) -> ModelConfig:
    """Dream and A2D: Qwen2 or Qwen3 layers under the same names."""
    _need(raw, hidden_act="silu", use_sliding_window=False, mlp_bias=False)
    third = "qwen3" in f"{raw.get('model_type')} {raw.get('architectures')}".lower()
    if third:
        _need(raw, attention_bias=False)  # Qwen3's switch would add a bias to the output projection as well
    mask, eos = raw.get("mask_token_id"), raw.get("eos_token_id")
    mask = _named_id(directory, "mask_token") if mask is None else mask
    eos = _named_id(directory, "eos_token") if eos is None else eos
    if mask is None:
        raise UnsupportedModel(f"neither config.json nor the tokenizer of {directory} names a mask token; add mask_token_id to config.json")
    if eos is None:
        raise UnsupportedModel(f"neither config.json nor the tokenizer of {directory} names an end token; add eos_token_id to config.json")
    pad = raw.get("pad_token_id")
    pad = _named_id(directory, "pad_token") if pad is None else pad
    stops = read_json(directory / "generation_config.json").get("eos_token_id")
    bos = _named_id(directory, "bos_token")
    return ModelConfig(
        family=family,
        vocab_size=raw["vocab_size"],
        d_model=raw["hidden_size"],
        n_layers=raw["num_hidden_layers"],
        n_heads=raw["num_attention_heads"],
        n_kv_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
        head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        mlp_hidden=raw["intermediate_size"],
        max_length=raw["max_position_embeddings"],
        rope_theta=_theta(raw),
        norm_eps=raw["rms_norm_eps"],
        mask_id=int(mask),
        eos_id=_first(eos),
        pad_id=int(_first(eos) if pad is None else pad),
        bos_id=raw.get("bos_token_id") if bos is None else bos,
        eos_ids=_ids(eos, pad, stops),
        qkv_bias=not third,
        qk_norm=third,
        tied_head=bool(raw.get("tie_word_embeddings", False)),
        shift=family == "dream",
    )


_TRANSLATE = {
    "llada": _llada,
    "dream": lambda raw, directory: _qwen(raw, directory, "dream"),
    "a2d": lambda raw, directory: _qwen(raw, directory, "a2d"),
}


def _named_id(directory: Path, which: str) -> int | None:
    """Id of the tokenizer's `which` ("mask_token", ...), read from its json files; None when it has none."""
    config = read_json(directory / "tokenizer_config.json")
    named = config.get(which) or read_json(directory / "special_tokens_map.json").get(which)
    content = named.get("content") if isinstance(named, dict) else named
    if content is None:
        return None
    for id_, entry in (config.get("added_tokens_decoder") or {}).items():
        if entry.get("content") == content:
            return int(id_)
    added = read_json(directory / "added_tokens.json")
    if content in added:
        return int(added[content])
    for entry in read_json(directory / "tokenizer.json").get("added_tokens") or ():
        if entry["content"] == content:
            return int(entry["id"])
    return None


# -- weight names

_LLADA_TOP = {"wte": "embed.weight", "ln_f": "norm.weight", "ff_out": "head.weight"}
_LLADA_LAYER = {
    "attn_norm": "attn_norm", "ff_norm": "mlp_norm", "q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "attn_out": "o_proj",
    "ff_proj": "gate_proj", "up_proj": "up_proj", "ff_out": "down_proj",
}  # fmt: skip
_QWEN_TOP = {"model.embed_tokens": "embed.weight", "model.norm": "norm.weight", "lm_head": "head.weight"}
_QWEN_LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm", "self_attn.q_proj": "q_proj", "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj", "self_attn.o_proj": "o_proj", "self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm",
    "mlp.gate_proj": "gate_proj", "mlp.up_proj": "up_proj", "mlp.down_proj": "down_proj",
}  # fmt: skip
_LLADA_NAME = re.compile(r"(?:model\.)?transformer\.(?:blocks\.(\d+)\.)?([\w.]+)\.(weight|bias)")
_QWEN_NAME = re.compile(r"(?:model\.layers\.(\d+)\.)?([\w.]+)\.(weight|bias)")


def ignorable(name: str) -> bool:
    """True for published buffers that are computed, not learnt."""
    return name.endswith(("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"))


def places(name: str, cfg: ModelConfig, rows: int) -> tuple[Place, ...] | None:
    """Where the published tensor `name` with `rows` rows goes; None when the family has no such tensor.

    A fused projection goes to several parameters. `rows` decides whether LLaDA's `ff_proj` is the gate alone or [up; gate] (OLMo's order).
    """
    llada = cfg.family == "llada"
    match = (_LLADA_NAME if llada else _QWEN_NAME).fullmatch(name)
    if match is None:
        return None
    layer, stem, leaf = match.groups()
    if layer is None:
        top = (_LLADA_TOP if llada else _QWEN_TOP).get(stem)
        return (Place(top),) if top and leaf == "weight" else None
    if int(layer) >= cfg.n_layers:
        return None
    at = f"layers.{int(layer)}."
    if stem in ("att_proj", "self_attn.qkv_proj"):
        q, kv = cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim
        return tuple(Place(f"{at}{p}.{leaf}", span) for p, span in (("q_proj", (0, q)), ("k_proj", (q, q + kv)), ("v_proj", (q + kv, q + 2 * kv))))
    m = cfg.mlp_hidden
    if stem == "mlp.gate_up_proj":
        return (Place(f"{at}gate_proj.{leaf}", (0, m)), Place(f"{at}up_proj.{leaf}", (m, 2 * m)))
    if llada and stem == "ff_proj" and rows == 2 * m:
        return (Place(f"{at}up_proj.{leaf}", (0, m)), Place(f"{at}gate_proj.{leaf}", (m, 2 * m)))
    own = (_LLADA_LAYER if llada else _QWEN_LAYER).get(stem)
    return (Place(f"{at}{own}.{leaf}"),) if own else None


def published_name(parameter: str, cfg: ModelConfig) -> str:
    """The family's (unfused) published name of one of our parameters."""
    llada = cfg.family == "llada"
    for stem, own in (_LLADA_TOP if llada else _QWEN_TOP).items():
        if own == parameter:
            return f"model.transformer.{stem}.weight" if llada else f"{stem}.weight"
    _, layer, own, leaf = parameter.split(".")
    stem = next(s for s, o in (_LLADA_LAYER if llada else _QWEN_LAYER).items() if o == own)
    return f"model.transformer.blocks.{layer}.{stem}.{leaf}" if llada else f"model.layers.{layer}.{stem}.{leaf}"

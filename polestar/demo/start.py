"""A structured start for small models: what a transformer otherwise spends its first minutes finding out.

Contract: `initialise(model, tokenizer, seed)` fills every weight of a `Transformer`, deterministically. Nothing here is fixed: all weights train.
* One constant channel in every embedding; the heads of layer 0 use it to attend to fixed offsets (rotary positions make that a sum of cosines
  that peaks at the offset).
* Numbers, months, days and letters start on circles of several periods (cos and sin of 2 pi v / p), in embedding and head alike, so that adding is turning.
* Later layers start with keys close to queries (attend to what is alike) and the output the transpose of the value (copy).
"""

from __future__ import annotations

import math

import torch
from tokenizers import Tokenizer
from torch import Tensor

from polestar.demo.words import DAYS, LETTERS, MONTHS, NAMES, ORDINALS
from polestar.models.transformer import Transformer

OFFSETS = (-1, -2, -4, 1, 2, -3, 3, -5)
NUMBER_PERIODS = (2, 5, 10 / 3, 10, 20, 25, 50, 100, 200)
CONSTANT = 1.5  # value of the constant channel before the first norm


def _circle(value: float, periods: tuple[float, ...]) -> list[float]:
    return [f(2 * math.pi * value / p) for p in periods for f in (math.cos, math.sin)]


def _features(size: int) -> dict[str, list[float]]:
    """word -> its ordered features, each group in channels of its own where there is room."""
    out: dict[str, list[float]] = {}
    for n in range(100):
        out[str(n)] = _circle(n, NUMBER_PERIODS)
    for i, word in enumerate(ORDINALS):
        out[word] = _circle(i + 1, NUMBER_PERIODS)
    base = [0.0] * (2 * len(NUMBER_PERIODS))
    for i, word in enumerate(MONTHS):
        out[word] = base + _circle(i, (12, 6, 4, 2.4, 3))
    for i, word in enumerate(DAYS):
        out[word] = base + _circle(i, (7, 3.5, 7 / 3))
    for names in (LETTERS, NAMES):
        for i, word in enumerate(names):
            out[word] = base + _circle(i, (52, 26, 13, 6.5, 3.25))
    return {word: values[:size] for word, values in out.items()}


@torch.no_grad()
def initialise(model: Transformer, tokenizer: Tokenizer, seed: int) -> None:
    """Fill all weights in place."""
    generator = torch.Generator().manual_seed(seed)
    cfg = model.cfg

    def normal(*shape: int, scale: float) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    d, hd = cfg.d_model, cfg.head_dim
    embed = normal(cfg.vocab_size, d, scale=0.5)
    features = _features(d // 2)
    for token, index in tokenizer.get_vocab().items():
        values = features.get(token.removeprefix("Ġ"))
        if values:
            embed[index] *= 0.6
            embed[index, 1 : 1 + len(values)] = 1.5 * torch.tensor(values)
    # Rows of one length: the norm then leaves the constant channel the same for every token, and offset attention stays sharp.
    embed *= 0.5 * d**0.5 / embed.norm(dim=1, keepdim=True)
    embed[:, 0] = CONSTANT
    model.embed.weight.copy_(embed)
    head = embed.clone() * (1.5 / d**0.5)
    head[:, 0] = 0
    model.head.weight.copy_(head)

    theta = 1.0 / cfg.rope_theta ** (torch.arange(0, hd, 2) / hd)
    used = min(8, hd // 2)
    for at, layer in enumerate(model.layers):
        layer.q_proj.weight.copy_(normal(d, d, scale=(0.1 if at == 0 else 1.0) / d**0.5))
        layer.k_proj.weight.copy_(normal(d, d, scale=(0.1 if at == 0 else 0.3) / d**0.5))
        layer.v_proj.weight.copy_(normal(d, d, scale=1 / d**0.5))
        layer.o_proj.weight.copy_(layer.v_proj.weight.T * (0.5 if at else 0.7))
        if at:
            layer.k_proj.weight.add_(layer.q_proj.weight)
        else:
            layer.o_proj.weight.copy_(normal(d, d, scale=0.7 / d**0.5))
            for head_index in range(cfg.n_heads):
                offset = OFFSETS[head_index % len(OFFSETS)]
                row = head_index * hd
                for i in range(used):
                    angle = offset * float(theta[i])
                    layer.q_proj.weight[row + i, 0] = 2.5 * math.cos(angle)
                    layer.q_proj.weight[row + hd // 2 + i, 0] = 2.5 * math.sin(angle)
                    layer.k_proj.weight[row + i, 0] = 2.5
                    layer.k_proj.weight[row + hd // 2 + i, 0] = 0.0
        layer.gate_proj.weight.copy_(normal(cfg.mlp_hidden, d, scale=1 / d**0.5))
        layer.up_proj.weight.copy_(normal(cfg.mlp_hidden, d, scale=1 / d**0.5))
        layer.down_proj.weight.copy_(normal(d, cfg.mlp_hidden, scale=0.3 / cfg.mlp_hidden**0.5))
        layer.attn_norm.weight.fill_(1)
        layer.mlp_norm.weight.fill_(1)
    model.norm.weight.fill_(1)

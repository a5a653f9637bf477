"""A scripted mask predictor: a tiny real network whose predictions are replaced by a script, for tests that need exact numbers.

`Scripted(script)` stands where a `Transformer` does. `script(i, position) -> (token, confidence)` or a row of V logits is what forward pass `i`
(0-based) predicts at `position`; keys, values and attention are those of the random network, unless `attention` scripts them too.
Hidden states *are* logits (d_model = vocabulary), so what a policy computes from hidden states follows the script as well.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from polestar.config import DecodeConfig
from polestar.driver import Decoder
from polestar.models.transformer import ModelConfig, Transformer
from polestar.trace import Trace

V, EOS, MASK = 16, 14, 15


def config(**changes) -> ModelConfig:
    """Vocabulary of 16: ids 0..13 are words, 14 is [EOS], 15 is [MASK]."""
    values = {
        "family": "scripted", "vocab_size": V, "d_model": V, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "head_dim": 8, "mlp_hidden": 8,
        "max_length": 512, "rope_theta": 10000.0, "norm_eps": 1e-5, "mask_id": MASK, "eos_id": EOS, "pad_id": EOS,
    }  # fmt: skip
    return ModelConfig(**(values | changes))


def row(token: int, confidence: float) -> torch.Tensor:
    """Logits [V] whose softmax gives `token` this probability; the rest is shared evenly."""
    rest = max(1e-30, (1 - confidence) / (V - 1))
    logits = torch.full((V,), math.log(rest))
    logits[token] = math.log(max(confidence, 1e-30))
    return logits


class Scripted(Transformer):
    """`attention(i, start, end) -> [heads, end - start, L]` scripts the final layer's attention; `outside` is a (token, confidence) for suffix packets."""

    def __init__(self, script, *, attention=None, outside=(3, 0.0), seed: int = 0, **changes):
        super().__init__(config(**changes))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) * 0.5 if p.dim() > 1 else torch.ones(p.shape))
        self.script, self.scripted_attention, self.outside = script, attention, outside
        self.calls, self.plans = 0, []

    def run(self, plan, tokens, kv, clock):
        self.plans.append(plan)
        # The drift is that of the scripted attentions, not of what they replace.
        result = super().run(plan if self.scripted_attention is None else replace(plan, attention_before=None), tokens, kv, clock)
        shift = int(self.cfg.shift)
        with torch.inference_mode():
            result.hidden = torch.stack([self._row(int(p) + shift) for p in result.rows.index])
            result.logits = result.hidden[result.rows.locate(self.row_for(plan.logits_for))]
            last = self.cfg.n_layers - 1
            if self.scripted_attention is not None and last in result.attentions:
                result.attentions[last] = self.scripted_attention(self.calls, *plan.attention_for).float()
            packet = getattr(plan.hook, "packet", None)
            if packet is not None:  # the last layer's update packet is where suffix predictions come from
                packet.hidden = row(*self.outside).expand_as(packet.hidden).clone()
        self.calls += 1
        return result

    def logits(self, hidden):
        return hidden

    def _row(self, position: int) -> torch.Tensor:
        said = self.script(self.calls, position)
        return row(*said) if isinstance(said, tuple) else torch.as_tensor(said, dtype=torch.float32)


def decode(model: Scripted, *, prompt=(1, 2, 3), level: str = "steps", **values) -> Trace:
    """Run a scripted decode to its end."""
    decoder = Decoder(model, prompt, DecodeConfig.make(**values), level=level)
    trace = Trace(decoder.header)
    while (step := decoder.step()) is not None:
        trace.append(step)
    trace.status = "done"
    return trace

"""What a forward pass is asked to do, and what it answers.

Contract: a `ForwardPlan` names the rows to feed, the rows that want logits and the attention to keep. The model runs plans and
knows no method; a cache policy writes plans; a `LayerHook` lets a policy act between layers. Positions are absolute.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.drift import attention_drift

if TYPE_CHECKING:
    from polestar.cache.kv import KVStore
    from polestar.clock import PhaseClock
    from polestar.models.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Rows:
    """A set of positions with what every layer needs of it, gathered once a pass.

    `span` is (start, end) when the positions are contiguous, so that caches are read and written through views; `index` is the
    int64 tensor [r] of positions either way; `cos`, `sin` are the float32 rotary tables [r, head_dim] of these positions.
    """

    index: Int[Tensor, "r"]
    cos: Float[Tensor, "r hd"]
    sin: Float[Tensor, "r hd"]
    span: tuple[int, int] | None = None

    def __len__(self) -> int:
        return self.index.shape[0]

    def locate(self, positions: Int[Tensor, "m"]) -> Int[Tensor, "m"]:
        """Where `positions` stand among these rows (rows must be sorted). Raises ValueError when one is missing."""
        if self.span is not None:
            start, end = self.span
            if positions.numel() and (int(positions.min()) < start or int(positions.max()) >= end):
                raise ValueError(f"positions {positions.tolist()} are not all among the rows {start}..{end - 1} of this pass; feed them too")
            return positions - start
        at = torch.searchsorted(self.index, positions).clamp_(max=len(self) - 1)
        if not torch.equal(self.index[at], positions):
            raise ValueError(f"positions {positions.tolist()} are not all among the {len(self)} rows of this pass; feed them too")
        return at


class LayerHook:
    """Acts around each layer of a pass. The default runs the layer and nothing else.

    A subclass may read the layer's input, run extra rows, replace the row set for later layers, or supply the output of rows
    that it did not compute.
    """

    def begin(self, call: LayerCall) -> None:
        """Before the first layer."""

    def recording(self) -> Hashable | None:
        """All that fixes which operations the pass runs, and on which memory (`polestar.graphs`); None where it cannot be recorded."""
        return None

    def again(self, recorded: LayerHook, replay: Callable[[], None]) -> None:
        """This pass is that of `recorded`, a hook of equal `recording()`, once more: hand over what differs, replay, take what came out."""
        replay()

    def layer(self, call: LayerCall, layer: int, x: Float[Tensor, "r d"], rows: Rows) -> tuple[Float[Tensor, "r2 d"], Rows]:
        """Run `layer` on hidden states `x` of `rows`; return the next layer's input and its rows."""
        return call.run(layer, x, rows), rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPlan:
    """One forward pass.

    `rows`: (start, end) or an int64 tensor of sorted, unique positions to feed; their K/V are written in place.
    `logits_for`: positions that want logits (after the family's shift: the model is asked for the row that predicts them).
    `attention_for`: (start, end) whose attention over all keys is kept, or None; in the final layer, or in `attention_layers`.
    `attention_before`: the final layer's kept attention of the pass before, [heads, b, L] float32, where its drift is wanted.
    """

    kind: str
    rows: tuple[int, int] | Tensor
    logits_for: Int[Tensor, "m"]
    attention_for: tuple[int, int] | None = None
    attention_layers: frozenset[int] | None = None
    attention_before: Float[Tensor, "heads b L"] | None = None
    refresh: bool = False
    reason: str = ""
    hook: LayerHook | None = None


@dataclass(slots=True)
class LayerCall:
    """What a hook needs of the pass it is in; `run` is the ordinary layer, which also keeps the attention that the plan asked for.

    A hook that computes fewer rows than it hands on says so in `fed`; one that decides inside the pass to refresh says why in `reason`.
    """

    model: Transformer
    kv: KVStore
    clock: PhaseClock
    tokens: Int[Tensor, "L"]
    keep: tuple[int, int] | None
    keep_layers: frozenset[int]
    attentions: dict[int, Tensor]
    fed: list[int] = field(default_factory=list)  # rows computed in each layer so far
    reason: str = ""
    before: Float[Tensor, "heads b L"] | None = None  # the final layer's attention of the pass before
    drift: Float[Tensor, "b"] | None = None  # how far the final layer's is from it (nats)

    def run(self, layer: int, x: Float[Tensor, "r d"], rows: Rows) -> Float[Tensor, "r d"]:
        """The layer on `rows`: K/V written in place, queries attend to every key."""
        if self.keep is None or layer not in self.keep_layers:
            return self.model.run_layer(layer, x, rows, self.kv, clock=self.clock)
        x, self.attentions[layer] = self.model.run_layer_keeping(layer, x, rows, self.kv, self.keep, attention=self.attention, clock=self.clock)
        return x

    def attention(self, layer: int, queries: Float[Tensor, "heads b hd"]) -> Float[Tensor, "heads b L"]:
        """Attention (float32) over every key of the kept rows' rotated queries.

        In the final layer from scores in float32, and its drift from `before` with it: on a GPU one pass over the keys.
        """
        keys = self.kv.k[layer]
        if layer < self.model.cfg.n_layers - 1:
            return self.model.layers[layer].scores(queries, keys)
        probs, self.drift = attention_drift(queries, keys, self.before)
        return probs


@dataclass(slots=True, kw_only=True)
class LayersResult:
    """What the layers of a plan gave, before the head: last-layer hidden states of `rows`, and what the final layer was given."""

    call: LayerCall
    rows: Rows
    hidden: Float[Tensor, "r d"]
    last_input: Float[Tensor, "r d"]


@dataclass(slots=True, kw_only=True)
class PassResult:
    """What a plan gave: last-layer hidden states of the fed rows, logits [m, V], kept attention {layer: [heads, b, L]} (float32)."""

    hidden: Float[Tensor, "r d"]
    rows: Rows
    logits: Float[Tensor, "m V"]
    attentions: dict[int, Tensor]
    attention_for: tuple[int, int] | None = None  # the rows of `attentions`, [start, end)
    last_input: Float[Tensor, "r d"] | None = None  # what the final layer was given, for whoever inspects the pass
    layer_rows: list[int]  # rows computed in each layer
    reason: str = ""  # why a hook refreshed within the pass
    drift: Float[Tensor, "b"] | None = None  # of the final layer's kept attention from the plan's `attention_before`, where one was given

    @property
    def attention(self) -> Float[Tensor, "heads b L"] | None:
        """The deepest attention kept, or None."""
        return self.attentions[max(self.attentions)] if self.attentions else None

    def attention_of(self, layer: int, start: int, end: int) -> Float[Tensor, "heads b L"] | None:
        """Kept attention of the rows [start, end) at `layer`, or None where it was not kept."""
        if layer not in self.attentions or self.attention_for is None or not self.attention_for[0] <= start <= end <= self.attention_for[1]:
            return None
        return self.attentions[layer][:, start - self.attention_for[0] : end - self.attention_for[0]]


class LogitsView:
    """Logits of a few positions, seen as predictions.

    `token`: argmax of each position (of the noised logits when the temperature is above 0); `confidence`: softmax probability of that token
    under the plain logits, in `dtype` (float64 on devices that have it, as Fast-dLLM; float32 as the Polestar release).
    """

    def __init__(
        self,
        positions: Int[Tensor, "m"],
        logits: Float[Tensor, "m V"],
        *,
        dtype: torch.dtype = torch.float32,
        exclude: int | None = None,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
    ):
        self.positions = positions
        if logits.device.type == "mps":
            dtype = torch.float32
        self.logits = logits.to(dtype)
        scores = self.logits
        if temperature > 0:
            # Gumbel noise in float64 on the CPU, so that a seed means the same on every device.
            u = torch.rand(logits.shape, dtype=torch.float64, generator=generator).clamp_(min=1e-300)
            noise = -torch.log(u)
            scores = (logits.double().cpu() - temperature * torch.log(noise)).to(logits.device)
        if exclude is not None:
            scores = scores.clone() if scores is self.logits else scores
            scores[:, exclude] = float("-inf")
        self.token: Int[Tensor, "m"] = scores.argmax(-1)
        chosen = self.logits.gather(-1, self.token[:, None])[:, 0]
        self.confidence: Float[Tensor, "m"] = (chosen - torch.logsumexp(self.logits, -1)).exp()

    def __len__(self) -> int:
        return self.positions.shape[0]

    def before(self, end: int) -> LogitsView:
        """The same view of the positions before `end` only."""
        keep = self.positions < end
        new = object.__new__(LogitsView)
        new.positions, new.token, new.confidence = self.positions[keep], self.token[keep], self.confidence[keep]
        new.logits = self.logits[keep.to(self.logits.device)]
        return new

    def best_but(self, excluded: int) -> int:
        """Index of the most confident position whose token is not `excluded`; where all are, the best one takes its next best token."""
        other = self.token != excluded
        if bool(other.any()):
            return int(self.confidence.masked_fill(~other, -1.0).argmax())
        scores = self.logits.clone()
        scores[:, excluded] = float("-inf")
        top, token = scores.max(-1)
        confidence = (top - torch.logsumexp(self.logits, -1)).exp().cpu()
        best = int(confidence.argmax())
        self.token[best], self.confidence[best] = int(token[best]), float(confidence[best])
        return best

    def probabilities(self) -> Float[Tensor, "m V"]:
        """Full softmax of the plain logits: only for the rules that need more than the top candidate."""
        return torch.softmax(self.logits, -1)

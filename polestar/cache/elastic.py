"""Elastic-Cache: recompute all rows from the layer after which attention drifted (arXiv 2510.14973).

Contract: goes with `SlidingWindow` (W = block_length). The first pass feeds all rows. A later pass feeds the tracked tokens (those that the window
attends to most, by layer), the positions just committed and the window; after each layer the attention of the tracked tokens is
compared with what their cached query and the keys before this pass give. Below gamma, every following layer recomputes all rows, from kept layer
inputs in which only the fed rows are fresh. K/V of masks outside the window stay as that layer's last full computation left them.

Drift of layer l is seen only after layer l, so layer 0 is recomputed in full by the first pass alone: gamma > 1 is not the same as no cache.
`reset_layer` = 0 is. Sources differ on the cosine: across heads, averaged over keys (`heads`, the public code), or over keys, averaged over heads
(`keys`, the paper). The shortening of the canvas at the first [EOS] is off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polestar.cache.policy import CachePolicy, rows_of
from polestar.config import Param
from polestar.models.transformer import rotate
from polestar.plan import ForwardPlan, LayerCall, LayerHook, Rows

if TYPE_CHECKING:
    from polestar.driver import Run
    from polestar.trace.step import Commit, Step

ELASTIC_PARAMS = (
    Param(name="gamma", symbol="γ", kind=float, default=0.9, minimum=-1.0, maximum=2.0, step=0.01, group="cache", live="pass",
          help="Recompute every later layer when the cosine of tracked attention falls below this; -1 never does."),
    Param(name="track_num", symbol="tracked", kind=int, default=1, minimum=0, maximum=64, step=1, group="cache", live="pass",
          help="How many most-attended known tokens are tracked in each layer."),
    Param(name="sim_axis", symbol="cosine over", kind=str, default="heads", choices=("heads", "keys"), group="cache", live="pass", expert=True,
          help="Compare attention across heads, key by key (public code), or across keys, head by head (paper)."),
    Param(name="block_caching", symbol="cache far masks", kind=bool, default=True, group="cache", live="pass", expert=True,
          help="Keep K/V of masks outside the window; off feeds every mask each pass."),
    Param(name="reset_layer", symbol="reset layer", kind=int, default=-1, minimum=-1, maximum=1024, group="cache", live="pass", expert=True,
          help="Recompute from this layer in every pass instead of watching drift; 0 is no cache, -1 watches."),
)


class ElasticHook(LayerHook):
    """One pass. `window`: rows whose attention chooses the tracked tokens; `known` [L]: positions that may be tracked."""

    def __init__(self, policy: ElasticCache, run: Run, window: Int[Tensor, "w"], known: Bool[Tensor, "L"], track: Int[Tensor, "t"]):
        self.policy, self.config, self.length = policy, run.config, run.length
        self.window, self.known, self.track = window, known, track
        self.similarity: list[float] = []
        self.reset: int | None = None

    def layer(self, call: LayerCall, layer: int, x: Float[Tensor, "r d"], rows: Rows) -> tuple[Tensor, Rows]:
        policy, model = self.policy, call.model
        block, kv, inputs, queries = model.layers[layer], call.kv, policy.inputs[layer], policy.queries[layer]
        full = len(rows) == self.length
        if not full:
            inputs.index_copy_(0, rows.index, x)
        elif x.data_ptr() != inputs.data_ptr():
            inputs.copy_(x)
        watch = not full and self.config.reset_layer < 0 and self.track.numel() > 0
        # The attention before this pass, read before its K/V are written: no copy of the keys is needed.
        before = block.scores(queries[:, self.track], kv.k[layer]) if watch else None
        normed = block.attn_norm(x)
        model.write_kv(layer, normed, rows, kv)
        q = rotate(block.queries(normed), rows.cos, rows.sin)
        queries.index_copy_(1, rows.index, q)
        at = rows.locate(self.window)
        if full:
            mixed, seen = block.attend(q, kv.k[layer], kv.v[layer]), block.scores(q[:, at], kv.k[layer])
        else:
            probs = block.scores(q, kv.k[layer])
            mixed, seen = block.weigh(probs, kv.v[layer]), probs[:, at]
        x = x + block.o_proj(mixed)
        call.clock.lap("attention")
        policy.most[layer] = self.most_attended(seen)
        drifted = watch and self.drifted(before, probs[:, rows.locate(self.track)])
        call.clock.lap("tracking")
        x = x + block.mlp(x)
        call.clock.lap("mlp")
        following = layer + 1
        if full or following == len(model.layers) or not (drifted or self.config.reset_layer == following):
            return x, rows
        self.reset = following
        call.reason = f"recomputed from layer {following}"
        if drifted:
            call.reason = f"similarity {self.similarity[-1]:.4f} < γ = {self.config.gamma:g} at layer {layer}; {call.reason}"
        whole = policy.inputs[following]
        whole.index_copy_(0, rows.index, x)
        return whole, model.rows((0, self.length), self.length)

    def most_attended(self, seen: Float[Tensor, "h w L"]) -> Int[Tensor, "t"]:
        """The known positions that the window's rows attend to most, in this layer."""
        weight = seen.sum((0, 1)).masked_fill(~self.known, 0.0)
        return weight.topk(min(self.config.track_num, self.length)).indices

    def drifted(self, before: Float[Tensor, "h t L"], now: Float[Tensor, "h t L"]) -> bool:
        """Is the attention of the tracked tokens less similar to the cached one than gamma?"""
        axis = 0 if self.config.sim_axis == "heads" else -1
        # In float64: squares of small probabilities vanish in float32, and the cosine with them.
        self.similarity.append(float(F.cosine_similarity(before.double(), now.double(), dim=axis, eps=1e-30).mean()))
        return self.similarity[-1] < self.config.gamma


class ElasticCache(CachePolicy):
    """State by layer: input, rotated query (rotated keys and values are the store's) of every row, and the most attended tokens."""

    def __init__(self):
        self.inputs: Float[Tensor, "n L d"] | None = None
        self.queries: Float[Tensor, "n h L hd"] | None = None
        self.most: list[Int[Tensor, "t"]] = []
        self.decoded: list[int] = []  # positions that the previous pass committed
        self.hook: ElasticHook | None = None

    def plan(self, run: Run, masked: Int[Tensor, "m"]) -> ForwardPlan:
        model, config, cfg, device = run.model, run.config, run.model.cfg, run.model.device
        first = not run.kv.filled
        if first:
            kind = {"dtype": model.dtype, "device": device}
            self.inputs = torch.zeros(cfg.n_layers, run.length, cfg.d_model, **kind)
            self.queries = torch.zeros(cfg.n_layers, cfg.n_heads, run.length, cfg.head_dim, **kind)
            self.most = [torch.empty(0, dtype=torch.int64, device=device)] * cfg.n_layers
        known = run.canvas.host != run.canvas.mask_id
        track = torch.cat(self.most).unique()
        self.hook = ElasticHook(self, run, model.row_for(masked), known.to(device), track)
        if first or config.reset_layer == 0:
            reason = "" if first else "recomputed from layer 0"
            return ForwardPlan(
                kind="entry-full" if run.entering else "within", rows=(0, run.length), logits_for=masked, refresh=not first, reason=reason,
                hook=self.hook,
            )
        wanted = torch.zeros(run.length, dtype=torch.bool)
        at = masked.cpu() if config.block_caching else run.canvas.masked(run.prompt_length, run.length)
        wanted[model.row_for(at)] = wanted[track.cpu()] = True
        wanted[self.decoded] = True
        return ForwardPlan(kind="within", rows=rows_of(wanted, device), logits_for=masked, hook=self.hook)

    def committed(self, run: Run, commits: list[Commit]) -> None:
        self.decoded = [c.position for c in commits]

    def log(self, run: Run, step: Step) -> None:
        hook = self.hook
        step.extra["tracked"] = hook.track.cpu().numpy().astype(np.int32)
        step.extra["most_attended"] = [layer.tolist() for layer in self.most]
        step.extra["similarity"] = list(hook.similarity)
        # The layer from which all rows were computed; None when no layer was.
        step.extra["reset_layer"] = 0 if step.rows == run.length else hook.reset

"""Dynamic-dLLM's cache: each layer recomputes a window around the last commit and the rows that drifted most (arXiv 2606.26120, DCU).

Contract: every pass carries all rows through the residual stream. In layer 0, and when an interval is due, all rows of prompt or generation are
computed. Otherwise values are projected for all generated rows, and queries, keys, attention and MLP only for the chosen ones: a
run of `window_size` rows centred on the last committed position, and outside it the b rows whose value turned most (1 - cosine to the cached
value). The others reuse their attention and MLP output, so every mask gets logits, some of them stale.

The budget b of a layer is `layer_budget` n w with w = softmax(scale x mean drift of each layer in the pass before). The public code's scale is so small
that w is uniform, which scale 0 (the default) is. `rows` counts chosen rows; the value projection of the rest is not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from polestar.cache.policy import CachePolicy
from polestar.config import Param
from polestar.models.transformer import rotate
from polestar.plan import ForwardPlan, LayerCall, LayerHook, Rows

if TYPE_CHECKING:
    from polestar.driver import Run
    from polestar.trace.step import Commit, Step

DYNAMIC_PARAMS = (
    Param(name="window_size", symbol="window", kind=int, default=32, minimum=0, maximum=8192, step=1, group="cache", live="pass",
          help="How many generated rows around the last committed position are recomputed in every layer; 0 is no window."),
    Param(name="layer_budget", symbol="budget", kind=int, default=32, minimum=0, maximum=8192, step=1, group="cache", live="pass",
          help="How many of the most drifting generated rows outside the window a layer recomputes, on average over layers."),
    Param(name="layer_weight_scale", symbol="budget scale", kind=float, default=0.0, minimum=0.0, maximum=1e6, step=10, group="cache", live="pass",
          help="How strongly a layer's drift draws budget from other layers; 0 gives every layer the same."),
    Param(name="prompt_interval", symbol="prompt interval", kind=int, default=5000, minimum=1, maximum=10**6, step=1, group="cache", live="pass",
          help="Every prompt row is recomputed once in this many passes."),
    Param(name="gen_interval", symbol="generation interval", kind=int, default=5000, minimum=1, maximum=10**6, step=1, group="cache", live="pass",
          help="Every generated row is recomputed once in this many passes."),
)


class DynamicHook(LayerHook):
    """One pass: which rows each layer computes, and what it supplies for the others."""

    def __init__(self, policy: DynamicCache, run: Run, prompt: bool, generation: bool):
        self.policy, self.start, self.length = policy, run.prompt_length, run.length
        self.prompt, self.generation = prompt, generation
        self.window = policy.window(run)
        self.budgets = policy.budgets(run)
        self.used: list[int | None] = []  # drifting rows that each layer chose; None where it computed all
        self.drift: list[float] = []

    def layer(self, call: LayerCall, layer: int, x: Float[Tensor, "L d"], rows: Rows) -> tuple[Tensor, Rows]:
        policy, model, kv = self.policy, call.model, call.kv
        block, start = model.layers[layer], self.start
        prompt, generation = self.prompt or layer == 0, self.generation or layer == 0
        low = 0 if prompt else start
        normed = block.attn_norm(x[low:])
        values = block.values(normed)
        turned = turn(values[:, start - low :], kv.v[layer, :, start:])
        self.drift.append(float(turned.mean()) if policy.passes else 0.0)
        if generation:
            index = rows.index[low:]
            self.used.append(None)
        else:
            chosen = self.choose(turned, self.budgets[layer]) + start
            index = torch.cat([rows.index[:start], chosen]) if prompt else chosen
        kv.v[layer, :, low:].copy_(values)
        some = rows if index.shape[0] == self.length else model.rows(index, self.length)
        call.fed[layer] = len(some)
        call.clock.lap("selection")
        if len(some):
            local = index - low
            picked = normed[local]
            raw = block.keys(picked)
            kv.write(layer, some, raw, rotate(raw, some.cos, some.sin), values[:, local])
            q = rotate(block.queries(picked), some.cos, some.sin)
            policy.attention[layer].index_copy_(0, index, block.o_proj(block.attend(q, kv.k[layer], kv.v[layer])))
        x = x + policy.attention[layer]
        call.clock.lap("attention")
        if len(some):
            policy.mlp[layer].index_copy_(0, index, block.mlp(x[index]))
        x = x + policy.mlp[layer]
        call.clock.lap("mlp")
        return x, rows

    def choose(self, turned: Float[Tensor, "G"], budget: int) -> Int[Tensor, "s"]:
        """Generated rows (counted from the prompt's end, sorted): the window and the `budget` most turned outside it."""
        a, b = self.window
        wanted = torch.zeros(turned.shape[0], dtype=torch.bool, device=turned.device)
        wanted[a:b] = True
        count = min(budget, turned.shape[0] - (b - a))
        self.used.append(count)
        if count:
            wanted[turned.masked_fill(wanted, -torch.inf).topk(count).indices] = True
        return wanted.nonzero()[:, 0]


def turn(new: Float[Tensor, "kv r hd"], old: Float[Tensor, "kv r hd"]) -> Float[Tensor, "r"]:
    """1 - cosine of each row's value, heads joined, in float32."""
    a, b = (t.transpose(0, 1).flatten(1).float() for t in (new, old))
    return 1 - F.cosine_similarity(a, b, dim=-1)


class DynamicCache(CachePolicy):
    """State by layer: attention-block and MLP output of every row (K/V are the store's), and the mean drift of the pass before."""

    def __init__(self):
        self.attention: Float[Tensor, "n L d"] | None = None
        self.mlp: Float[Tensor, "n L d"] | None = None
        self.passes = 0
        self.centre = 0  # the last position committed
        self.drift: list[float] = []  # mean turn of each layer's values in the pass before
        self.hook: DynamicHook | None = None

    def plan(self, run: Run, masked: Int[Tensor, "m"]) -> ForwardPlan:
        config, cfg = run.config, run.model.cfg
        if not self.passes:
            shape = (cfg.n_layers, run.length, cfg.d_model)
            self.attention, self.mlp = (torch.zeros(shape, dtype=run.model.dtype, device=run.model.device) for _ in range(2))
            self.centre = run.prompt_length - 1
        prompt, generation = self.passes % config.prompt_interval == 0, self.passes % config.gen_interval == 0
        self.hook = DynamicHook(self, run, prompt, generation)
        due = " and ".join(name for name, is_due in (("prompt", prompt), ("generation", generation)) if is_due and self.passes)
        # Every pass carries all rows; `rows` of the log counts what its layers computed.
        return ForwardPlan(
            kind="entry-full" if not self.passes else "entry-window" if run.entering else "within", rows=(0, run.length), logits_for=masked,
            refresh=bool(due), reason=f"interval of the {due}" if due else "", hook=self.hook,
        )

    def window(self, run: Run) -> tuple[int, int]:
        """[start, end) of the window among generated rows, shifted inwards at the ends."""
        size, G = run.config.window_size, run.length - run.prompt_length
        if size == 0:
            return 0, 0
        if size >= G:
            return 0, G
        width = min(2 * (size // 2) + 1, G)
        start = max(0, min(self.centre - run.prompt_length - size // 2, G - width))
        return start, start + width

    def budgets(self, run: Run) -> list[int]:
        """Drifting rows that each layer may recompute."""
        n, G, budget = run.model.cfg.n_layers, run.length - run.prompt_length, run.config.layer_budget
        if run.config.layer_weight_scale == 0 or self.passes < 2:  # the first pass had nothing to turn from
            return [min(budget, G)] * n
        weights = torch.softmax(torch.tensor(self.drift, dtype=torch.float64) * run.config.layer_weight_scale, 0)
        return [min(int(budget * n * w + 1e-6), G) for w in weights.tolist()]

    def committed(self, run: Run, commits: list[Commit]) -> None:
        self.passes += 1
        self.drift = self.hook.drift
        if commits:
            self.centre = max(c.position for c in commits)

    def log(self, run: Run, step: Step) -> None:
        hook, start = self.hook, run.prompt_length
        step.extra["budgets"] = list(hook.used)
        step.extra["value_drift"] = list(hook.drift)
        if hook.window[0] < hook.window[1]:
            step.extra["window"] = [hook.window[0] + start, hook.window[1] + start]

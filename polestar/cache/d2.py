"""d2Cache: recompute the masks that are likely next, what was just decoded, and what attention flows through (arXiv 2509.23094).

Contract: the first pass feeds all rows; every later pass feeds (a) the k masked positions of highest confidence times certainty density, those of
the current block first, (b) the positions committed by the pass before, (c) of all other rows those that carry the first rollout_p of
attention rollout, and (d) gaps of at most inflate_w between fed rows. Only masks whose predicting row is fed can be committed. There is no
full pass at block entries. Rows of the next block's masks are chosen when a block is done, so k >= 1 suffices to go on.

Confidences are updated for every mask that was computed; `stale_conf` keeps those of the first pass, as the public code does in effect. With a
logit shift the rows *before* the chosen masks are fed (so also the prompt's last row while the first generated position is chosen).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polestar.cache.policy import CachePolicy, rows_of
from polestar.config import Param
from polestar.plan import ForwardPlan, LayerCall, LayerHook, LogitsView, PassResult, Rows

if TYPE_CHECKING:
    from polestar.driver import Run
    from polestar.trace.step import Commit, Step

D2_PARAMS = (
    Param(name="masks", symbol="k masks", kind=int, default=32, minimum=1, maximum=8192, step=1, group="cache", live="pass",
          help="How many masked positions are recomputed each pass, those of the block first."),
    Param(name="rollout_p", symbol="p rollout", kind=float, default=0.1, minimum=0.0, maximum=1.0, step=0.01, group="cache", live="pass",
          help="Other rows are recomputed until together they carry this share of attention rollout; 1 recomputes all."),
    Param(name="sigma", symbol="σ", kind=float, default=10.0, minimum=0.1, maximum=1000.0, step=1, group="cache", live="pass",
          help="Width in positions of the Gaussian by which known neighbours make a masked position certain."),
    Param(name="inflate_w", symbol="w inflate", kind=int, default=4, minimum=0, maximum=256, step=1, group="cache", live="pass",
          help="Rows between two recomputed rows at most this far apart are recomputed too; 0 fills no gap."),
    Param(name="stale_conf", symbol="stale confidence", kind=bool, default=False, group="cache", live="pass", expert=True,
          help="Rank masks by the confidences of the first pass for the whole decode, as the public code does."),
)


class RolloutHook(LayerHook):
    """Keeps each layer's attention of the fed rows, mean over heads: [r, L] each."""

    def __init__(self):
        self.attention: list[Float[Tensor, "r L"]] = []

    def layer(self, call: LayerCall, layer: int, x: Float[Tensor, "r d"], rows: Rows) -> tuple[Tensor, Rows]:
        x, probs = call.model.run_layer_keeping(layer, x, rows, call.kv, None, clock=call.clock)
        self.attention.append(probs.mean(0))
        call.clock.lap("rollout")
        return x, rows


def rollout_columns(attention: list[Float[Tensor, "r L"]], index: Int[Tensor, "r"], length: int) -> Float[Tensor, "L"]:
    """Column sums of the rollout R = A_n ... A_1, A = rownorm(E + I), E the identity with the fed rows replaced by their attention.

    Evaluated as the row vector 1^T A_n ... A_1 from the last layer back, so no L x L matrix is made.
    """
    flow = torch.ones(length, device=index.device)
    for layer in reversed(attention):
        half = flow[index] / 2
        flow[index] = half
        flow += half @ layer
    return flow


def certainty_density(known: Bool[Tensor, "G"], sigma: float) -> Float[Tensor, "G"]:
    """Gaussian-weighted share of known positions around each generated one; left of the generation all is known, right of it all is as
    the last position is. The kernel ends after 8 sigma (its tail is below float32) or G."""
    radius = min(known.shape[0], math.ceil(8 * sigma))
    kernel = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / sigma) ** 2)
    padded = torch.cat([torch.ones(radius), known.float(), known[-1:].float().expand(radius)])
    return F.conv1d(padded[None, None], kernel[None, None])[0, 0] / kernel.sum()


def nucleus(importance: Float[Tensor, "L"], open_: Bool[Tensor, "L"], share: float) -> Bool[Tensor, "L"]:
    """Of the `open_` rows, the most important ones whose cumulative share of importance stays within `share`; at least one, if any is open."""
    if share >= 1:
        return open_.clone()
    at = open_.nonzero()[:, 0]
    taken = torch.zeros_like(open_)
    if at.numel():
        value, order = importance[at].sort(descending=True, stable=True)
        count = max(1, int((value.cumsum(0) / value.sum() <= share).sum()))
        taken[at[order[:count]]] = True
    return taken


def gaps(fed: Bool[Tensor, "L"], width: int) -> Bool[Tensor, "L"]:
    """Rows not in `fed` that lie between two fed rows at most `width` apart."""
    index, far = torch.arange(fed.shape[0]), 4 * fed.shape[0]
    before = torch.where(fed, index, -far).cummax(0).values
    after = torch.where(fed, index, far).flip(0).cummin(0).values.flip(0)
    return (after - before <= width) & ~fed


class D2Cache(CachePolicy):
    """State: confidence of every generated position, column sums of the last rollout, what the last pass committed and in which block."""

    def __init__(self):
        self.hook: RolloutHook | None = None
        self.conf: Float[Tensor, "G"] | None = None
        self.importance: Float[Tensor, "L"] | None = None
        self.last: list[int] = []
        self.block = (0, 0)
        self.parts: dict[str, np.ndarray] = {}

    def plan(self, run: Run, masked: Int[Tensor, "m"]) -> ForwardPlan:
        self.hook, self.parts = RolloutHook(), {}
        if not run.kv.filled:
            return ForwardPlan(kind="entry-full", rows=(0, run.length), logits_for=masked, hook=self.hook)
        wanted = self.choose(run)
        at = masked.cpu()
        ready = wanted[run.model.row_for(at)]
        if not bool(ready.any()):  # a block length changed during the run left this block out
            wanted[run.model.row_for(at)] = ready[:] = True
        kind = "entry-window" if run.entering else "within"
        reason = ", ".join(f"{len(rows)} {name}" for name, rows in self.parts.items() if len(rows))
        rows = rows_of(wanted, run.model.device)
        return ForwardPlan(kind=kind, rows=rows, logits_for=masked[ready.to(masked.device)], reason=reason, hook=self.hook)

    def choose(self, run: Run) -> Bool[Tensor, "L"]:
        """The rows of the next pass, and in `parts` which rule chose them."""
        config, length = run.config, run.length
        wanted = torch.zeros(length, dtype=torch.bool)

        def add(name: str, rows: Bool[Tensor, "L"]) -> None:
            self.parts[name] = (rows & ~wanted).nonzero()[:, 0].numpy().astype(np.int32)
            wanted.logical_or_(rows)

        def marked(positions: Tensor) -> Bool[Tensor, "L"]:
            rows = torch.zeros(length, dtype=torch.bool)
            rows[positions] = True
            return rows

        add("masks", marked(run.model.row_for(self.likely(run))))
        add("committed", marked(torch.tensor(self.last, dtype=torch.int64)))
        add("rollout", nucleus(self.importance, ~wanted, config.rollout_p))
        add("between", gaps(wanted, config.inflate_w))
        return wanted

    def likely(self, run: Run) -> Int[Tensor, "s"]:
        """Rule (a): masked positions from the block just worked on to the block boundary after the k-th mask, the best k of them."""
        config, start = run.config, run.prompt_length
        masked = run.canvas.masked(start, run.length)
        a, b = self.block
        score = self.conf * certainty_density(run.canvas.host[start:] != run.canvas.mask_id, config.sigma)
        score[a - start : b - start] += score.max()
        limit = run.length
        if masked.numel() >= config.masks:
            beyond = max(0, int(masked[config.masks - 1]) + 1 - b)
            limit = b + math.ceil(beyond / config.block_length) * config.block_length
        near = masked[(masked >= a) & (masked < limit)]
        best = score[near - start].topk(min(config.masks, near.shape[0])).indices
        return near[best]

    def observe(self, run: Run, result: PassResult) -> None:
        start = run.prompt_length
        self.importance = rollout_columns(self.hook.attention, result.rows.index, run.length).cpu()
        self.hook.attention = []
        if self.conf is not None and run.config.stale_conf:
            return
        fed = torch.zeros(run.length, dtype=torch.bool)
        fed[result.rows.index.cpu()] = True
        if self.conf is None:
            self.conf = torch.zeros(run.length - start)
        masked = run.canvas.masked(start, run.length)
        masked = masked[fed[run.model.row_for(masked)]]
        # The driver asked for logits of the block only; those of masks after it are what ranks them.
        inside = masked < run.block_end
        outside = masked[~inside]
        logits = result.logits
        if outside.numel():
            at = result.rows.locate(run.model.row_for(outside).to(run.model.device))
            logits = torch.cat([logits, run.model.logits(result.hidden[at])])
        view = LogitsView(masked, logits, exclude=run.canvas.mask_id if run.config.exclude_mask else None)
        self.conf[masked - start] = view.confidence.cpu()

    def committed(self, run: Run, commits: list[Commit]) -> None:
        self.last = [c.position for c in commits]
        self.block = (run.block_start, run.block_end)

    def log(self, run: Run, step: Step) -> None:
        if self.parts:
            step.extra["chosen"] = dict(self.parts)

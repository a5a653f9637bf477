"""dKV-Cache: a token's keys and values are kept one pass after it was decoded (arXiv 2505.15781, the variant `decode`).

Contract: the first two passes of a block, and every `cache_steps`-th pass of it, are full. The others feed all masked positions of the canvas and what
the pass before committed, whose K/V were those of [MASK] until then; everything decoded earlier is read from the store. With a logit
shift the row before each mask is fed too. The public code commits on a fixed schedule; here it is the confidence threshold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from polestar.cache.policy import CachePolicy, rows_of
from polestar.config import Param
from polestar.plan import ForwardPlan

if TYPE_CHECKING:
    from polestar.driver import Run
    from polestar.trace.step import Commit

DKV_PARAMS = (
    Param(name="cache_steps", symbol="reload", kind=int, default=16, minimum=1, maximum=8192, step=1, group="cache", live="pass",
          help="Every row is recomputed once in this many passes of a block; 1 is no cache."),
)


class DKVCache(CachePolicy):
    """State: the pass's number in its block, and what the pass before committed."""

    def __init__(self):
        self.number = 0
        self.last: list[int] = []

    def plan(self, run: Run, masked: Int[Tensor, "m"]) -> ForwardPlan:
        self.number = 0 if run.entering else self.number + 1
        if self.number < 2 or self.number % run.config.cache_steps == 0:
            reason = "the second pass of the block" if self.number == 1 else f"pass {self.number} of the block" if self.number else ""
            return ForwardPlan(
                kind="entry-full" if run.entering else "within", rows=(0, run.length), logits_for=masked, refresh=not run.entering, reason=reason
            )
        wanted = torch.zeros(run.length, dtype=torch.bool)
        left = run.canvas.masked(run.prompt_length, run.length)
        wanted[left] = wanted[run.model.row_for(left)] = True
        wanted[self.last] = True
        return ForwardPlan(kind="within", rows=rows_of(wanted, run.model.device), logits_for=masked)

    def committed(self, run: Run, commits: list[Commit]) -> None:
        self.last = [c.position for c in commits]

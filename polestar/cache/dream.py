"""Fast-dLLM's caches as its Dream code has them: windows that start at the block, without the row that predicts its first position.

Contract: the entry pass settles the first position of the block (`polestar.commit.dream.FirstThenThreshold`), so that no later pass needs the row
before the block. The plain caches (`polestar.cache.policy`) feed that row instead, and hold the first position to the same rule as the others.
Source: Fast-dLLM's cached generation for Dream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Int
from torch import Tensor

from polestar.cache.policy import CachePolicy
from polestar.plan import ForwardPlan

if TYPE_CHECKING:
    from polestar.driver import Run


class DreamPrefixCache(CachePolicy):
    """Between entries, block and suffix are fed."""

    def plan(self, run: Run, masked: Int[Tensor, "m"]) -> ForwardPlan:
        if run.entering:
            return ForwardPlan(kind="entry-full", rows=(0, run.length), logits_for=masked)
        return ForwardPlan(kind="within", rows=(run.block_start, self.last(run)), logits_for=masked)

    def last(self, run: Run) -> int:
        """The end of the rows fed."""
        return run.length


class DreamDualCache(DreamPrefixCache):
    """Between entries, the block alone is fed."""

    def last(self, run: Run) -> int:
        return run.block_end

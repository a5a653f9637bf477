"""Cache policies: which rows each forward pass feeds, hence which keys and values are fresh.

Contract: a policy writes the plan of every pass and watches its result. It never picks tokens. Policies of single methods live in files
of their own; here are the base and the three simple ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polestar.plan import ForwardPlan, PassResult

if TYPE_CHECKING:
    from polestar.driver import Run
    from polestar.trace.step import Commit, Step


def rows_of(wanted: Bool[Tensor, "L"], device: torch.device) -> tuple[int, int] | Tensor:
    """The rows marked in `wanted` (on the host) as a plan takes them: (start, end) where they are contiguous, else sorted positions."""
    index = wanted.nonzero()[:, 0]
    first, last = int(index[0]), int(index[-1])
    return (first, last + 1) if last - first + 1 == index.shape[0] else index.to(device)


class CachePolicy:
    """Base: no cache. Every pass feeds all L rows."""

    raw_keys = False  # does the policy read un-rotated keys

    def plan(self, run: Run, masked: Int[Tensor, "m"]) -> ForwardPlan:
        """The next pass. `masked`: [MASK] positions of the block, which want logits."""
        return ForwardPlan(kind="entry-full" if run.entering else "within", rows=(0, run.length), logits_for=masked)

    def observe(self, run: Run, result: PassResult) -> None:
        """After the forward pass, before tokens are picked."""

    def outside(self, run: Run) -> tuple[Int[Tensor, "s"], Float[Tensor, "s d"]] | None:
        """Positions outside the block whose final hidden states this pass produced, or None."""
        return None

    def committed(self, run: Run, commits: list[Commit]) -> None:
        """After tokens were put on the canvas."""

    def memory(self, run: Run) -> dict:
        """Bytes that the decode holds beside the model: {"device": sum, "host": offloaded, "parts": {part: bytes on the device}}."""
        return {"device": run.kv.nbytes, "host": 0, "parts": {"kv": run.kv.nbytes}}

    def log(self, run: Run, step: Step) -> None:
        """Add what the policy did to the step; copies only."""


class PrefixCache(CachePolicy):
    """Fast-dLLM prefix cache: everything before the block stays as the entry pass left it; block and suffix are fed every pass."""

    def plan(self, run: Run, masked: Int[Tensor, "m"]) -> ForwardPlan:
        if run.entering:
            return ForwardPlan(kind="entry-full", rows=(0, run.length), logits_for=masked)
        return ForwardPlan(kind="within", rows=run.model.span_for(run.block_start, run.length), logits_for=masked)


class DualCache(CachePolicy):
    """Fast-dLLM dual cache: only the block is fed between two entries; prefix and suffix stay as the entry pass left them."""

    def plan(self, run: Run, masked: Int[Tensor, "m"]) -> ForwardPlan:
        if run.entering:
            return ForwardPlan(kind="entry-full", rows=(0, run.length), logits_for=masked)
        return ForwardPlan(kind="within", rows=run.model.span_for(run.block_start, run.block_end), logits_for=masked)

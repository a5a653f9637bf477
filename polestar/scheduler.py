"""Where the current block is.

Contract: `next(canvas, block_length)` gives the next block [start, end) that still holds [MASK], or None when the canvas is full.
A block without [MASK] (finished by pre-commits) costs no forward pass. A scheduler that needs logits of the entry pass to size the
block implements `refine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polestar.driver import Run
    from polestar.plan import LogitsView
    from polestar.trace.step import Step


class BlockScheduler:
    """Contiguous blocks of the configured length; the last one may be shorter."""

    refines = False  # does it want entry logits of positions after the block start, as far as `horizon`
    shape = "fixed"  # how blocks lie, for who tells it before a run: "fixed", "whole" (one), "sliding" (a window), "text" (they end where the text does)
    slides = False  # is `next` asked before every pass; then only the first pass is an entry

    def __init__(self):
        self.number = -1
        self.end: int | None = None

    def next(self, run: Run) -> tuple[int, int, int] | None:
        """(block number, start, end) of the next block that holds a [MASK]."""
        end = run.prompt_length if self.end is None else self.end
        while end < run.length:
            self.number += 1
            start, end = end, min(end + run.config.block_length, run.length)
            self.end = end
            if run.canvas.masked(start, end).numel():
                return self.number, start, end
        return None

    def horizon(self, run: Run) -> int:
        """The end of the positions whose entry logits `refine` reads. Only asked when `refines`."""
        return run.length

    def refine(self, run: Run, view: LogitsView) -> int:
        """The end of the current block, at most `horizon`, decided from the entry logits. Only asked when `refines`."""
        return run.block_end

    def log(self, run: Run, step: Step) -> None:
        """Add what the scheduler decided to the step; copies only."""


class WholeCanvas(BlockScheduler):
    """The whole generation is one block."""

    shape = "whole"

    def next(self, run: Run) -> tuple[int, int, int] | None:
        if self.end is not None or not run.canvas.masked(run.prompt_length, run.length).numel():
            return None
        self.number, self.end = 0, run.length
        return 0, run.prompt_length, run.length

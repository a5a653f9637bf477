"""A window of the first W masked positions that moves every pass (Elastic-Cache, arXiv 2510.14973, section 3).

Contract: a `BlockScheduler` asked before every pass; only the first pass of a decode is an entry. W is `block_length`. [start, end) spans from the
first to the W-th masked position: committed positions in between belong to the span and hold no [MASK]. The block number is that
of the nominal block in which the span begins, so it never falls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polestar.scheduler import BlockScheduler

if TYPE_CHECKING:
    from polestar.driver import Run


class SlidingWindow(BlockScheduler):
    """The first `block_length` masked positions, or all that are left."""

    slides = True
    shape = "sliding"

    def next(self, run: Run) -> tuple[int, int, int] | None:
        masked = run.canvas.masked(run.prompt_length, run.length)
        if not masked.numel():
            return None
        window = masked[: run.config.block_length]
        start, self.end = int(window[0]), int(window[-1]) + 1
        self.number = max(self.number, (start - run.prompt_length) // run.config.block_length)
        return self.number, start, self.end

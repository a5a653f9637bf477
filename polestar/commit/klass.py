"""KLASS: commit what is confident and has stopped changing (arXiv 2511.05664).

Contract: the KL divergence of each masked position's token distribution from that of the previous pass is kept for the last passes, over the whole
run; a position of the block is ready when all of the last H are below the KL threshold and its confidence exceeds tau_conf. All ready ones are
committed; when there is none, the schedule's most confident ones. Every row is fed every pass, so that later blocks build up history too.

State is kept for positions that are still masked, in float32 (the public code keeps every row in float64; decisions are the same).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from polestar.commit.policy import SCHEDULE_PARAMS, Schedule, Selection
from polestar.config import Param
from polestar.plan import LogitsView, PassResult

if TYPE_CHECKING:
    from polestar.driver import Run

FLOOR = 1e-12
LONGEST = 16

KLASS_PARAMS = (
    Param(name="tau_conf", symbol="τ_conf", kind=float, default=0.9, minimum=0.0, maximum=2.0, step=0.01, group="commit",
          help="Confidence that a stable token must exceed (strictly, as the public code has it). GSM8K and MATH: 0.6, MBPP: 0.7."),
    Param(name="kl_threshold", symbol="τ_KL", kind=float, default=0.01, minimum=0.0, step=0.001, group="commit",
          help="A position is stable when its distribution moved by less than this (nats) in each of the last H passes; inf asks nothing."),
    Param(name="kl_history", symbol="H", kind=int, default=2, minimum=1, maximum=LONGEST, step=1, group="commit",
          help="How many passes in a row a position must be stable; the first H - 1 passes of a block commit by schedule."),
    *SCHEDULE_PARAMS,
)  # fmt: skip


class Klass(Schedule):
    """State over the whole run: probabilities [m, V] of the last pass and the last KL values [m, 16] of the m positions still masked."""

    def __init__(self):
        super().__init__()
        self.passes = 0  # passes of this block so far
        self.positions: Int[Tensor, "m"] | None = None
        self.before: Float[Tensor, "m V"] | None = None
        self.history: Float[Tensor, "m H"] | None = None

    def enter(self, run: Run) -> None:
        super().enter(run)
        self.passes = 0

    def select(self, run: Run, view: LogitsView, result: PassResult) -> Selection:
        config, H = run.config, run.config.kl_history
        self._update(run, result)
        # The canvas is masked from the block on, so the block's masked positions come first.
        history = self.history[: len(view)]
        stable = (history[:, -H:] < config.kl_threshold).all(1) if self.passes >= H - 1 else torch.zeros(len(view), dtype=torch.bool)
        ready = stable & (view.confidence > config.tau_conf)
        self.passes += 1
        extra = {} if run.level == "off" else {"klass": self._log(run, view, stable)}
        quota = self.quota.pop(0) if self.quota else 1
        if bool(ready.any()):
            return Selection(chosen=ready, extra=extra)
        chosen = torch.zeros(len(view), dtype=torch.bool)
        best = torch.argsort(view.confidence, descending=True, stable=True)[:quota]
        chosen[best] = True
        return Selection(chosen=chosen, reasons=dict.fromkeys(best.tolist(), "forced"), extra=extra)

    def _update(self, run: Run, result: PassResult) -> None:
        """KL of every masked position against the previous pass, into the history; the distributions become the previous ones."""
        masked = run.canvas.masked(run.block_start, run.length)
        rows = result.rows.locate(run.model.row_for(masked.to(run.model.device)))
        now = torch.softmax(run.model.logits(result.hidden[rows]).float(), -1)
        if self.positions is None:
            # The public code compares the first pass with zeros: its KL is near 27 nats, hence unstable.
            before, history = torch.zeros_like(now), torch.zeros(len(masked), LONGEST)
        else:
            # Within a decode positions are only ever unmasked (after an edit by hand, policies begin anew).
            kept = torch.searchsorted(self.positions, masked)
            before, history = self.before[kept.to(self.before.device)], self.history[kept]
        kl = (now * ((now + FLOOR).log() - (before + FLOOR).log())).sum(-1).clamp_(min=0).cpu()
        self.history = torch.cat([history[:, 1:], kl[:, None]], 1)
        self.positions, self.before = masked, now

    def _log(self, run: Run, view: LogitsView, stable: Tensor) -> dict:
        kl = np.full(run.block_end - run.block_start, np.nan, dtype=np.float32)
        kl[(view.positions - run.block_start).numpy()] = self.history[: len(view), -1].numpy()
        return {"kl": kl, "stable": view.positions[stable].numpy().astype(np.int32)}

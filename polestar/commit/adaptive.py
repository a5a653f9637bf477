"""Dynamic-dLLM's adaptive parallel decoding: a threshold that follows how predictions move (arXiv 2606.26120, APD).

Contract: `apd` = fixed is plain threshold decoding (what the public demo runs). Otherwise every masked position's distribution p is compared with
that of the pass before: peak = 1 - its second largest probability, shift = 1 - cosine(p, p before); the threshold starts at tau_s and
changes by -apd_alpha peak + apd_beta shift each pass, by the mean over the block's masks (mean), or position by position over all masks (each).
It is not clipped: peak is near 1, so it falls by about apd_alpha a pass. The most confident position is always committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from polestar.commit.policy import Selection, Threshold
from polestar.config import Param
from polestar.plan import LogitsView, PassResult

if TYPE_CHECKING:
    from polestar.driver import Run

APD_PARAMS = (
    Param(name="apd", symbol="threshold", kind=str, default="fixed", choices=("fixed", "mean", "each"), group="commit", live="block",
          help="Keep τ_s fixed, or let one threshold (mean) or one per position (each) follow how predictions move."),
    Param(name="apd_alpha", symbol="α peak", kind=float, default=0.01, minimum=0.0, maximum=1.0, step=0.01, group="commit", live="pass",
          help="How much a peaked prediction lowers its threshold each pass."),
    Param(name="apd_beta", symbol="β shift", kind=float, default=0.15, minimum=0.0, maximum=10.0, step=0.01, group="commit", live="pass",
          help="How much a prediction that moved raises its threshold each pass."),
)


class AdaptiveThreshold(Threshold):
    """State: a threshold per generated position, and the distributions of the positions that are still masked."""

    def __init__(self):
        self.thresholds: Float[Tensor, "G"] | None = None
        self.positions: Int[Tensor, "m"] | None = None
        self.table: Float[Tensor, "m V"] | None = None

    def select(self, run: Run, view: LogitsView, result: PassResult) -> Selection:
        config, start = run.config, run.prompt_length
        if config.apd == "fixed":
            self.thresholds = self.table = None
            return super().select(run, view, result)
        if self.thresholds is None:
            self.thresholds = torch.full((run.length - start,), config.tau_s, dtype=torch.float64)
        moved = self.follow(run, result)
        at = view.positions - start
        chosen = view.confidence >= self.thresholds[at]
        best, reasons = int(view.confidence.argmax()), {}
        if not bool(chosen[best]):
            chosen[best], reasons[best] = True, "forced"
        thresholds = np.full(run.block_end - run.block_start, np.nan, dtype=np.float32)
        thresholds[(view.positions - run.block_start).numpy()] = self.thresholds[at].numpy()
        return Selection(chosen=chosen, reasons=reasons, extra={"thresholds": thresholds, **moved})

    def follow(self, run: Run, result: PassResult) -> dict[str, float]:
        """Bring the thresholds up to this pass; the mean peak and shift of the block's masks, from the second pass on."""
        config, start, model = run.config, run.prompt_length, run.model
        positions = run.canvas.masked(start, run.length)
        logits = model.logits(result.hidden[result.rows.locate(model.row_for(positions).to(model.device))])
        table = torch.softmax(logits.float(), -1)
        before, known, self.positions, self.table = self.table, self.positions, positions, table
        if before is None:
            return {}
        then = before[torch.searchsorted(known, positions).to(before.device)]  # masks never return, so each was known before
        peak = (1 - table.topk(2).values[:, 1]).double().cpu()
        shift = (1 - F.cosine_similarity(table, then, dim=-1)).double().cpu()
        change, inside = config.apd_beta * shift - config.apd_alpha * peak, positions < run.block_end
        if config.apd == "mean":
            self.thresholds += change[inside].mean()
        else:
            self.thresholds[positions - start] += change
        return {"peak": float(peak[inside].mean()), "shift": float(shift[inside].mean())}

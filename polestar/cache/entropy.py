"""EntropyCache: the entropy of the tokens just decoded decides whether the next pass is full (arXiv 2603.18489).

Contract: a partial pass feeds the block's masked positions and the k most recently committed ones; all other K/V are read as they stand.
After every commit E = the largest entropy (nats, of the plain softmax) among the distributions that the new tokens came from; E > tau_e makes
the next pass full. Reconstructed from the paper's text (there is no published code): tau_e is not published.
The default comes from a scan (`bench methods --n 60 --methods parallel entropycache --scan tau_e=...`) on the bundled model: ten held-out problems a
family, L_G = 128, B = 32, fp32. Accuracies differ by chance at this number; 0.5 is where rows are saved and lists not yet lost (70 %; at 1: 50 %).

    tau_e            parallel   0.1   0.25  0.5   1     2
    right, %         46.7       48.3  48.3  51.7  46.7  48.3
    NFE              13.0       13.0  13.0  13.1  13.3  13.2
    rows per token   15.9       13.5  12.8  10.6  9.1   8.0

tau_e = -1 recomputes every pass (parallel decoding); inf never recomputes after the first pass.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from polestar.cache.policy import CachePolicy, rows_of
from polestar.config import Param
from polestar.plan import ForwardPlan, PassResult

if TYPE_CHECKING:
    from polestar.driver import Run
    from polestar.trace.step import Commit, Step

ENTROPY_PARAMS = (
    Param(name="tau_e", symbol="τ_E", kind=float, default=0.5, minimum=-1.0, step=0.05, group="cache", live="pass",
          help="The next pass recomputes every row when a newly decoded token's entropy (nats) is above this; -1 always does, inf never."),
    Param(name="recent", symbol="k recent", kind=int, default=64, minimum=0, maximum=8192, step=1, group="cache", live="pass",
          help="How many of the most recently committed positions are recomputed in a partial pass."),
    Param(name="refresh_on_block", symbol="refresh on block", kind=bool, default=False, group="cache", live="block", expert=True,
          help="Recompute every row at each block entry too; the paper's text does not ask for it."),
)


class EntropyCache(CachePolicy):
    """State: committed positions in commit order, and E of the last commit (inf before the first pass)."""

    def __init__(self):
        self.history: list[int] = []
        self.entropies: list[float] = []  # of the last commit, in commit order
        self.worst = math.inf
        self.positions: Tensor | None = None
        self.logits: Tensor | None = None

    def plan(self, run: Run, masked: Int[Tensor, "m"]) -> ForwardPlan:
        config = run.config
        first, new_block = not run.kv.filled, run.entering and config.refresh_on_block
        if first or new_block or self.worst > config.tau_e:
            reason = "" if first else f"E = {self.worst:.3g} > τ_E = {config.tau_e:g}" if self.worst > config.tau_e else "a new block"
            kind = "entry-full" if run.entering else "within"
            return ForwardPlan(kind=kind, rows=(0, run.length), logits_for=masked, refresh=not run.entering, reason=reason)
        wanted = torch.zeros(run.length, dtype=torch.bool)
        at = masked.cpu()
        wanted[at] = wanted[run.model.row_for(at)] = True
        if config.recent:
            wanted[self.history[-config.recent :]] = True
        return ForwardPlan(kind="entry-window" if run.entering else "within", rows=rows_of(wanted, run.model.device), logits_for=masked)

    def observe(self, run: Run, result: PassResult) -> None:
        self.positions, self.logits = run.canvas.masked(run.block_start, run.block_end), result.logits

    def committed(self, run: Run, commits: list[Commit]) -> None:
        at = torch.searchsorted(self.positions, torch.tensor([c.position for c in commits], dtype=torch.int64))
        self.entropies = entropy(self.logits[at.to(self.logits.device)]).tolist()
        self.worst = max(self.entropies, default=0.0)
        self.history += [c.position for c in commits]
        self.positions = self.logits = None

    def log(self, run: Run, step: Step) -> None:
        step.extra["entropy"] = self.worst
        step.extra["entropies"] = list(self.entropies)


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of softmax(logits) over the last axis, in float32."""
    log_p = torch.log_softmax(logits.float(), -1)
    return -(log_p.exp() * log_p).sum(-1)

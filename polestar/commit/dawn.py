"""DAWN: commit together what does not depend on each other (arXiv 2602.06953).

Contract: attention of the last layers, averaged over heads and layers, is read as dependencies: k -> q when q attends to k by at least tau_edge
and k is no sink. Committed are the confident (c >= tau_s), the induced (c >= tau_induce, with an edge from a settled token), and of the
rest above tau_low a set without edges between its members. Edges of the pass go to the log, so that the page can draw them.

The public code goes on after the independent set is exhausted and then overwrites token 0 of the prompt; that fault is not reproduced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polestar.commit.policy import CommitPolicy, Selection
from polestar.config import Param
from polestar.plan import LogitsView, PassResult

if TYPE_CHECKING:
    from polestar.driver import Run

DAWN_PARAMS = (
    Param(name="tau_low", symbol="τ_low", kind=float, default=0.7, minimum=0.0, maximum=2.0, step=0.01, group="commit",
          help="Least confidence of a token that may be committed when nothing else that is chosen depends on it. Dream: 0.8."),
    Param(name="tau_induce", symbol="τ_induce", kind=float, default=0.7, minimum=0.0, maximum=2.0, step=0.01, group="commit",
          help="Least confidence of a token that depends on an already settled one. Dream: 0.75."),
    Param(name="tau_edge", symbol="τ_edge", kind=float, default=0.07, minimum=0.0, maximum=2.0, step=0.01, group="commit",
          help="Attention of at least this much is a dependency; above 1 nothing depends on anything. Dream: 0.1."),
    Param(name="tau_sink", symbol="τ_sink", kind=float, default=0.01, minimum=0.0, maximum=2.0, step=0.005, group="commit",
          help="A position whose mean attention over all queries exceeds this is a sink: nothing depends on it. Dream: 0.03."),
    Param(name="attention_depth", symbol="layers", kind=int, default=4, minimum=1, maximum=256, step=1, group="commit",
          help="How many of the last layers give the attention that dependencies are read from."),
    Param(name="block_from", symbol="block from", kind=str, default="and", choices=("and", "or"), group="commit", expert=True,
          help="Which chosen tokens hold back what depends on them: induced and confident ones (and, the public code), or either (or, the paper)."),
)  # fmt: skip


class Dependencies(NamedTuple):
    """Edges k -> q of one pass. `attention` [m, e]: of the m candidates over positions before the block end, sinks and self removed."""

    attention: Float[Tensor, "m e"]
    edge: Bool[Tensor, "m e"]
    sinks: int


class Dawn(CommitPolicy):
    """No state: every pass is decided from its own attention and logits."""

    def attention_wanted(self, run: Run) -> tuple[tuple[int, int], frozenset[int] | None]:
        n = run.model.cfg.n_layers
        # Sinks are told by the mean over all queries, so every row's attention is needed.
        return (0, run.length), frozenset(range(max(0, n - run.config.attention_depth), n))

    def select(self, run: Run, view: LogitsView, result: PassResult) -> Selection:
        config, c = run.config, view.confidence
        found = dependencies(list(result.attentions.values()), view.positions, run.block_end, config.tau_edge, config.tau_sink)
        high = c >= config.tau_s
        anchors = self._anchors(run, view, result, found.edge)
        dependent = found.edge[:, anchors].any(1)
        induced = dependent & (c >= config.tau_induce)
        among = found.edge[:, view.positions]  # [q, k] of the candidates
        source = high & induced if config.block_from == "and" else high | induced
        held = among[:, source].any(1)
        rest = (c >= config.tau_low) & ~(high | induced | held)
        picked = independent(rest, c, among)
        reasons = {i: "independent" for i in picked.nonzero()[:, 0].tolist()} | {i: "induced" for i in (induced & ~high).nonzero()[:, 0].tolist()}
        extra = {} if run.level == "off" else {"dawn": self._log(view, found, anchors, held & ~high & ~induced)}
        return Selection(chosen=high | induced | picked, reasons=reasons, extra=extra)

    def _anchors(self, run: Run, view: LogitsView, result: PassResult, edge: Bool[Tensor, "m e"]) -> Int[Tensor, "a"]:
        """Known positions with an edge to a candidate, whose argmax has now a probability of at least tau_s (whichever token it is)."""
        known = edge.any(0)
        known[view.positions] = False
        at = known.nonzero()[:, 0]
        if not at.numel():
            return at
        rows = result.rows.locate(run.model.row_for(at.to(run.model.device)))
        mask = run.model.cfg.mask_id if run.config.exclude_mask else None
        seen = LogitsView(at, run.model.logits(result.hidden[rows]), dtype=self.dtype, exclude=mask)
        return at[seen.confidence.cpu() >= run.config.tau_s]

    def _log(self, view: LogitsView, found: Dependencies, anchors: Int[Tensor, "a"], held: Bool[Tensor, "m"]) -> dict:
        # Edges among candidates and from anchors are those that decide; the page draws nothing else.
        counts = torch.zeros(found.edge.shape[1], dtype=torch.bool)
        counts[view.positions] = counts[anchors] = True
        q, k = (found.edge & counts).nonzero(as_tuple=True)
        return {
            "edges": torch.stack([k, view.positions[q]], 1).numpy().astype(np.int32),
            "weights": found.attention[q, k].numpy().astype(np.float32),
            "anchors": anchors.numpy().astype(np.int32),
            "held": view.positions[held].numpy().astype(np.int32),
            "sinks": found.sinks,
        }


def dependencies(
    attentions: list[Float[Tensor, "heads L L"]], positions: Int[Tensor, "m"], end: int, tau_edge: float, tau_sink: float
) -> Dependencies:
    """Edges into `positions` from positions before `end`, on the host. `attentions`: one tensor a layer, rows = queries."""
    device = attentions[0].device
    mean = torch.stack([a.mean(0).to(device) for a in attentions]).mean(0)
    sinks = mean.mean(0) > tau_sink
    attention = mean[positions.to(device)].masked_fill(sinks, 0.0)[:, :end].cpu()
    attention[torch.arange(len(positions)), positions] = 0.0
    return Dependencies(attention, attention >= tau_edge, int(sinks.sum()))


def independent(candidates: Bool[Tensor, "m"], confidence: Float[Tensor, "m"], edge: Bool[Tensor, "m m"]) -> Bool[Tensor, "m"]:
    """A greedy independent set: the most confident candidate (lowest index among equals), then the next without an edge to one taken."""
    conflict = edge | edge.T
    open_, taken = candidates.clone(), torch.zeros_like(candidates)
    for i in torch.argsort(confidence, descending=True, stable=True).tolist():
        if bool(open_[i]):
            taken[i] = True
            open_ &= ~conflict[i]
    return taken

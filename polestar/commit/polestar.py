"""Polestar-Commit: commit on confidence, on drift events, and ahead in the suffix (paper, section 4.2).

Contract: at block entry confidence alone decides. Afterwards a masked position below tau_s is committed when its drift delta reaches the
gate alpha (tau_s - c)^2. The most confident position is always committed. Suffix positions need confidence alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kernels.drift import mean_kl
from polestar.commit.policy import CommitPolicy, Selection
from polestar.plan import LogitsView, PassResult

if TYPE_CHECKING:
    from polestar.driver import Run


class PolestarCommit(CommitPolicy):
    """State: the previous pass's final-layer attention of the block, and up to h past drifts (Theta)."""

    dtype = torch.float32
    attention = True
    drift = staticmethod(mean_kl)
    fused = True  # the pass measures the drift where it makes the attention

    def __init__(self):
        self.before: Float[Tensor, "heads b L"] | None = None
        self.history: list[Float[Tensor, "b"]] = []

    def enter(self, run: Run) -> None:
        self.before, self.history = None, []

    def attention_before(self, run: Run) -> Float[Tensor, "heads b L"] | None:
        return self.before if self.fused else None

    def select(self, run: Run, view: LogitsView, result: PassResult) -> Selection:
        config, c = run.config, view.confidence
        chosen = c >= config.tau_s
        reasons = {}
        if not bool(chosen.any()):
            best = int(c.argmax())
            chosen[best] = True
            reasons[best] = "forced"
        now, before = result.attention, self.before
        self.before = now
        if run.entering or before is None or now is None:
            return Selection(chosen=chosen, reasons=reasons)
        delta_t = (self.drift(now, before) if result.drift is None else result.drift).cpu()
        past = self.history[-config.h :] if config.h else []
        delta = delta_t - torch.stack(past).mean(0) if past else delta_t.clone()
        # Kept long enough for an h that a person raises during the run; the mean reads the last h.
        self.history = [*self.history, delta_t][-max(config.h, 64) :]
        at = view.positions - run.block_start
        gate = config.alpha * (config.tau_s - c) ** 2
        event = (delta[at] >= gate) & (c < config.tau_s) & (c > config.drift_min_confidence) & (delta[at] < config.drift_max_delta)
        if config.drift_commit:
            for i in (event & ~chosen).nonzero()[:, 0].tolist():
                reasons[i] = "drift"
            chosen = chosen | event
        gates = np.full(run.block_end - run.block_start, np.nan, dtype=np.float32)
        gates[at.numpy()] = gate.numpy()
        return Selection(
            chosen=chosen, reasons=reasons, delta=delta[at], gate=gate,
            drift=delta_t.numpy().copy(), delta_block=delta.numpy().copy(), gate_block=gates,
        )

    def select_outside(self, run: Run, view: LogitsView) -> Bool[Tensor, "s"]:
        return view.confidence >= run.config.tau_suf

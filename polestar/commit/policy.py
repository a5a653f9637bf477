"""Commit policies: which masked positions of the block become tokens in this pass.

Contract: a policy reads a `LogitsView` of the block's masked positions (on the host) and its own small state, and answers a `Selection`. At
least one token per pass is the driver's business: when nothing is chosen it commits the most confident position as `forced`, unless the
selection `waits` (a published schedule that spends a pass on nothing).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from polestar.config import Param
from polestar.plan import LogitsView, PassResult

if TYPE_CHECKING:
    from polestar.driver import Run


@dataclass(slots=True, kw_only=True)
class Selection:
    """What a policy chose among the m positions of a view.

    `reasons` overrides "confidence" by index; `delta`, `gate` [m] are the drift rule's two sides; `drift`, `delta_block`, `gate_block` are the
    block-long arrays for the log; `extra` goes to the step as it is.
    """

    chosen: Bool[Tensor, "m"]
    reasons: dict[int, str] = field(default_factory=dict)
    delta: Float[Tensor, "m"] | None = None
    gate: Float[Tensor, "m"] | None = None
    drift: np.ndarray | None = None
    delta_block: np.ndarray | None = None
    gate_block: np.ndarray | None = None
    extra: dict = field(default_factory=dict)
    waits: bool = False


class CommitPolicy(ABC):
    """Base class. `dtype` is the precision of confidences, `attention` says that final-layer attention of the block is wanted."""

    dtype = torch.float64
    attention = False

    def enter(self, run: Run) -> None:  # noqa: B027  (most policies keep nothing from block to block)
        """A new block begins."""

    def attention_wanted(self, run: Run) -> tuple[tuple[int, int], frozenset[int] | None] | None:
        """Rows [start, end) whose attention over all keys the policy reads, and in which layers (None: the final one); None reads none."""
        return ((run.block_start, run.block_end), None) if self.attention else None

    def attention_before(self, run: Run) -> Float[Tensor, "heads b L"] | None:
        """Final-layer attention of those rows in the pass before, where the policy wants this pass's drift from it; None: it does not."""
        return None

    @abstractmethod
    def select(self, run: Run, view: LogitsView, result: PassResult) -> Selection:
        """Choose among the block's masked positions."""

    def select_outside(self, run: Run, view: LogitsView) -> Bool[Tensor, "s"]:
        """Choose among masked positions after the block that the cache policy produced."""
        return torch.zeros(len(view), dtype=torch.bool)


class Threshold(CommitPolicy):
    """Every position whose confidence reaches tau_s (Fast-dLLM; "parallel" decoding)."""

    def select(self, run: Run, view: LogitsView, result: PassResult) -> Selection:
        return Selection(chosen=view.confidence >= run.config.tau_s)


FACTOR_PARAMS = (
    Param(name="rule", symbol="rule", kind=str, default="threshold", choices=("threshold", "factor"), group="commit",
          help="Commit by a fixed confidence (threshold), or by a confidence that falls with the number of tokens (factor)."),
    Param(name="factor", symbol="f", kind=float, default=1.0, minimum=0.0, maximum=64.0, step=0.1, group="commit",
          help="With the factor rule: the n-th most confident token needs a confidence of at least 1 - f / (n + 1)."),
)


class ThresholdOrFactor(Threshold):
    """Fast-dLLM's two rules. Factor: sorted confidences must stay above 1 - f/(n + 1); the run of the first that do is committed."""

    def select(self, run: Run, view: LogitsView, result: PassResult) -> Selection:
        if run.config.rule == "threshold":
            return super().select(run, view, result)
        order = torch.argsort(view.confidence, descending=True, stable=True)
        count = factor_count(view.confidence[order].tolist(), run.config.factor)
        chosen = torch.zeros(len(view), dtype=torch.bool)
        chosen[order[:count]] = True
        return Selection(chosen=chosen)


def factor_count(confidences: list[float], factor: float) -> int:
    """How many of the descending `confidences` the factor rule accepts.

    Fast-dLLM's code: stop at the first rank n >= 2 with c_n < 1 - f/(n + 1); when only the very last rank fails, it is accepted too.
    """
    m = len(confidences)
    for rank in range(2, m + 1):
        if confidences[rank - 1] < 1 - factor / (rank + 1):
            return m if rank == m else rank - 1
    return m


SCHEDULE_PARAMS = (
    Param(name="steps", symbol="steps", kind=int, default=0, minimum=0, maximum=8192, group="commit", live="block",
          help="Forward passes for the whole generation, spread over blocks by their length; 0 means one token per pass."),
)


class Schedule(CommitPolicy):
    """LLaDA's own decoding: the n_i most confident positions at pass i, n_i fixed by the number of steps."""

    def __init__(self):
        self.quota: list[int] = []

    def enter(self, run: Run) -> None:
        size, left = run.block_end - run.block_start, run.canvas.masked(run.block_start, run.block_end).shape[0]
        generation = run.length - run.prompt_length
        # Steps that are not a multiple of the blocks are spread by position, so that the total is the number asked for.
        if run.config.steps:
            before = run.block_start - run.prompt_length
            passes = run.config.steps * (before + size) // generation - run.config.steps * before // generation
        else:
            passes = left
        passes = max(1, min(passes, left))
        self.quota = [left // passes + (i < left % passes) for i in range(passes)]

    def select(self, run: Run, view: LogitsView, result: PassResult) -> Selection:
        count = self.quota.pop(0) if self.quota else 1
        order = torch.argsort(view.confidence, descending=True, stable=True)
        chosen = torch.zeros(len(view), dtype=torch.bool)
        chosen[order[:count]] = True
        return Selection(chosen=chosen)

"""The state of a decode in progress: what the driver keeps and policies may read, and how a decode ends that cannot go on.

Contract: only the driver changes a `Run`. `where_not_finite` is for the way out: it runs the pass again, layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from polestar.canvas import Canvas
from polestar.clock import PhaseClock
from polestar.config import DecodeConfig
from polestar.models.transformer import Transformer
from polestar.plan import ForwardPlan
from polestar.trace.step import ParamChange


class DecodeError(RuntimeError):
    """A decode cannot go on (or start). The message is one sentence."""


@dataclass(slots=True)
class Run:
    """What policies may read of a decode in progress. Positions are absolute."""

    model: Transformer
    config: DecodeConfig
    canvas: Canvas
    kv: Any
    level: str
    clock: PhaseClock
    cluster_rng: torch.Generator
    sample_rng: torch.Generator
    block: int = -1
    block_start: int = 0
    block_end: int = 0
    entering: bool = True
    index: int = 0
    project: Callable | None = None
    token_text: Callable[[int], str] | None = None  # display text of an id, where a tokenizer is at hand
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def prompt_length(self) -> int:
        return self.canvas.prompt_length

    @property
    def length(self) -> int:
        return len(self.canvas)


@dataclass(slots=True)
class Planned:
    """What was done by hand before a pass of a recording, to be done again: parameter changes that took effect and edits of the canvas."""

    changes: list[ParamChange] = field(default_factory=list)
    edits: list[tuple[int, int]] = field(default_factory=list)


def where_not_finite(run: Run, plan: ForwardPlan) -> str | None:
    """Which part of `plan`'s pass makes a value that is not finite; None where none does."""
    rows = run.model.rows(plan.rows, run.kv.length)
    x = run.model.embed(run.canvas.tokens[rows.index])
    if not bool(torch.isfinite(x).all()):
        return "the embedding"
    for layer in range(run.model.cfg.n_layers):
        x = run.model.run_layer(layer, x, rows, run.kv, clock=PhaseClock(enabled=False))
        if not bool(torch.isfinite(x).all()):
            return f"layer {layer}"
    return None if bool(torch.isfinite(run.model.logits(x)).all()) else "the head"


def not_finite(run: Run, where: str) -> str:
    """The sentence for logits that are not finite."""
    return (
        f"pass {run.index} gave logits that are not finite, first in {where} ({str(run.model.dtype).removeprefix('torch.')}); "
        "use float32 or bfloat16, or check the checkpoint"
    )

"""Passes within a block, recorded once and replayed: CUDA graphs. Off unless `use(decoder)` asks for them; never run on a GPU so far.

Contract: tokens are those of a decode without recordings. What is recorded is the layers of a pass (`Transformer.run_layers`): which operations they
are, and on which memory, depends on the block and on the kind of pass alone. The head, picking and the log stay outside. The first pass of a kind in
a block runs as ever (kernels are compiled and libraries set up then); the second is recorded, which runs nothing, and replayed at once, as are all later
ones. Recordings are dropped at each block entry (hence after an edit, too) and when a parameter changes. Passes whose work is not known beforehand run
as ever: entries, rows that are not one span, hooks but a refresh of fixed-size packets whose states lie on the device, attention of several layers,
observed runs. What a recording hands out lies in memory that its next replay overwrites: attention and drift, which policies keep, are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kernels._dispatch import triton
from polestar.clock import PhaseClock
from polestar.plan import ForwardPlan, LayersResult, PassResult
from polestar.state import DecodeError

if TYPE_CHECKING:
    from polestar.config import DecodeConfig
    from polestar.driver import Decoder
    from polestar.models.transformer import Transformer
    from polestar.state import Run


class Handle(Protocol):
    """A recording."""

    def replay(self) -> None:
        """Run the recorded operations on the memory that they were recorded on."""


class Recorder(Protocol):
    """Takes down device work."""

    def record(self, work: Callable[[], None]) -> Handle:
        """Call `work` and take down the operations it gives the device, without running them. Raises RuntimeError where one cannot be taken down."""

    def nbytes(self) -> int:
        """Bytes of device memory that recordings hold, kept or dropped: what a later one would reuse."""


class CudaRecorder:
    """CUDA graphs on a stream of their own. All share one memory pool: no two run at once, and what outlives a replay is copied.

    Capture mode "thread_local": other threads (the page's, or another decode) may allocate meanwhile, which in the default mode would spoil the capture.
    `torch.cuda.graph` would collect garbage and empty the allocator's cache before each of them, a price too high for a few dozen replays.
    """

    def __init__(self, device: torch.device):
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        torch.zeros(1, device=device)
        # A pool ends with its last graph, and cannot be used again then: this one stays.
        self.anchor = self.record(lambda: torch.zeros(1, device=device))

    def record(self, work: Callable[[], None]) -> Handle:
        """A CUDA graph of `work`. Raises RuntimeError where an operation cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with suppress(RuntimeError):  # the capture is spoilt; the first error tells why
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    def nbytes(self) -> int:
        """The pool's segments, as the allocator counts them."""
        return sum(segment["total_size"] for segment in torch.cuda.memory_snapshot(self.pool))


@dataclass(slots=True)
class Recording:
    """A recorded pass. `before`: where it reads the attention of the pass before."""

    plan: ForwardPlan
    before: Float[Tensor, "heads b L"] | None
    layers: LayersResult
    handle: Handle


class Recordings:
    """The recordings of one decode, for the block it is in. `recorded` and `replayed` count since the decode began."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.kept: dict[Hashable, Recording | None] = {}  # by kind; None: one such pass was run
        self.config: DecodeConfig | None = None
        self.recorded = self.replayed = 0
        self.counted = 0  # recordings in the memory told last

    def drop(self) -> None:
        """Forget all recordings."""
        self.kept.clear()

    @property
    def grew(self) -> bool:
        """Has a pass been recorded since memory was told?"""
        return self.recorded > self.counted

    def memory(self, found: dict) -> dict:
        """What `CachePolicy.memory` found, and the recordings beside it."""
        self.counted, kept = self.recorded, self.recorder.nbytes()
        return found | {"device": found["device"] + kept, "parts": found["parts"] | {"graphs": kept}}

    def run(self, run: Run, plan: ForwardPlan) -> PassResult:
        """As `Transformer.run`, replayed where a pass of this kind was recorded. Raises DecodeError where one cannot be recorded."""
        if run.entering or run.config is not self.config:
            self.drop()
            self.config = run.config
        kind = kind_of(plan)
        if kind is None or kind not in self.kept:
            if kind is not None:
                self.kept[kind] = None
            return run.model.run(plan, run.canvas.tokens, run.kv, run.clock)
        if self.kept[kind] is None:
            self.kept[kind] = self._record(run, plan)
        return self._replay(run, plan, self.kept[kind])

    def _record(self, run: Run, plan: ForwardPlan) -> Recording:
        before = None if plan.attention_before is None else plan.attention_before.clone()
        plan = replace(plan, attention_before=before)
        rows, layers = run.model.rows(plan.rows, run.kv.length), []

        def work() -> None:
            layers.append(run.model.run_layers(plan, rows, run.canvas.tokens, run.kv, PhaseClock(enabled=False)))

        try:
            handle = self.recorder.record(work)
        except RuntimeError as problem:
            raise DecodeError(f"pass {run.index} cannot be recorded ({str(problem).splitlines()[0]}); decode without graphs") from problem
        self.recorded += 1
        return Recording(plan, before, layers[0], handle)

    def _replay(self, run: Run, plan: ForwardPlan, found: Recording) -> PassResult:
        if found.before is not None:
            found.before.copy_(plan.attention_before)
        if plan.hook is None:
            found.handle.replay()
        else:
            plan.hook.again(found.plan.hook, found.handle.replay)
        self.replayed += 1
        run.clock.lap("layers")
        result = run.model.answer(plan, found.layers, run.clock)
        result.attentions = {layer: kept.clone() for layer, kept in result.attentions.items()}
        result.drift = None if result.drift is None else result.drift.clone()
        result.layer_rows = list(result.layer_rows)
        return result


def kind_of(plan: ForwardPlan) -> Hashable | None:
    """What passes of a block have in common that one recording can stand for; None for a pass that is not recorded."""
    if plan.kind != "within" or not isinstance(plan.rows, tuple) or plan.attention_layers is not None:
        return None
    hook = None if plan.hook is None else plan.hook.recording()
    if plan.hook is not None and hook is None:
        return None
    return plan.rows, plan.attention_for, plan.attention_before is not None, hook


def why_not(model: Transformer) -> str | None:
    """Why passes of `model` cannot be recorded as CUDA graphs, in one sentence; None where they can."""
    if model.device.type != "cuda":
        return f"CUDA graphs need a model on a CUDA GPU, and this one is on {model.device.type}; choose --device cuda or leave graphs out"
    if triton is None:
        return "CUDA graphs need Triton's kernels, and Triton cannot be imported here; install triton or leave graphs out"
    for name, module in model.named_modules():
        if name.endswith("_proj") and (type(module) is not nn.Linear or module.weight.device != model.device):
            return f"CUDA graphs need plain weights on one GPU, and {name} is quantised or on another device; leave graphs, or --quantize, out"
    return None


def use(decoder: Decoder, recorder: Recorder | None = None) -> Decoder:
    """Let a decoder record and replay its passes. Without a `recorder`, as CUDA graphs: raises ValueError, one sentence, where that cannot be."""
    if recorder is None:
        why = why_not(decoder.run.model)
        if why is not None:
            raise ValueError(why)
        recorder = CudaRecorder(decoder.run.model.device)
    if decoder.observer is None:
        decoder.graphs = Recordings(recorder)
    return decoder

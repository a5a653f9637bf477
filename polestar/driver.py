"""The one loop: plan, forward, pick, commit, log.

Contract: `Decoder.step()` runs one forward pass and returns its `Step`, or None when the canvas holds no [MASK]; `decode()` runs to the end and returns
the `Trace`. Every method goes through here. The driver guarantees at least one token per pass, counts nothing but forward passes, and keeps
the clock: seconds of a step are decode work, without the log's own cost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from polestar.analysis.observe import Observer
from polestar.canvas import Canvas
from polestar.clock import PhaseClock
from polestar.config import DecodeConfig
from polestar.decoders import method_named
from polestar.inspector import Inspector
from polestar.models.transformer import Transformer
from polestar.plan import ForwardPlan, LogitsView, PassResult
from polestar.request import check_edits, check_request, versions
from polestar.state import DecodeError, Planned, Run, not_finite, where_not_finite
from polestar.trace.step import Commit, ParamChange, Step
from polestar.trace.trace import Header, Trace

if TYPE_CHECKING:
    from polestar.graphs import Recordings


class Decoder:
    """One decode, a pass at a time. `planned` maps a pass number to what is done by hand before it."""

    def __init__(
        self,
        model: Transformer,
        prompt_ids: Sequence[int],
        config: DecodeConfig,
        *,
        level: str = "steps",
        model_name: str = "",
        revision: str | None = None,
        prompt_text: str | None = None,
        token_text: Callable[[int], str] | None = None,
        observe: bool = False,
    ):
        """`observe`: a shadow full pass beside every pass (`polestar.analysis.observe`), at level full only.

        Raises ValueError, before any work, when prompt, length or level do not fit the model.
        """
        check_request(model, prompt_ids, config, level)
        if observe and level != "full":
            raise ValueError(f"observe mode needs the level full, not {level}; set the level to full or turn observe mode off")
        cfg = model.cfg
        row = method_named(config.method)
        self.scheduler, self.cache, self.commit = row.scheduler(), row.cache(), row.commit()
        canvas = Canvas(prompt_ids, config.gen_length, cfg.mask_id, model.device)
        self.run = Run(
            model=model,
            config=config,
            canvas=canvas,
            kv=model.new_store(len(canvas), raw_keys=self.cache.raw_keys),
            level=level,
            clock=PhaseClock(model.device, enabled=level != "off"),
            cluster_rng=torch.Generator().manual_seed(config.seed),
            sample_rng=torch.Generator().manual_seed(config.seed),
            token_text=token_text,
        )
        self.inspector = Inspector(self.run) if level == "full" else None
        if self.inspector is not None:
            self.run.project = self.inspector.project
        self.observer = Observer(self.run) if observe else None
        self.graphs: Recordings | None = None  # set by `polestar.graphs.use`: passes are recorded and replayed
        self.lock = threading.Lock()
        self.pending: dict[str, Any] = {}
        self.at_block: dict[str, Any] = {}
        self.edits: dict[int, int] = {}
        self.planned: dict[int, Planned] = {}
        self.fresh = True  # nothing is cached: the next pass is an entry and feeds every row
        self.elapsed = 0.0
        self.needs_block = True
        prompt = len(prompt_ids)
        self.header = Header(
            method=config.method, title=row.title, preset=config.preset, config=config.as_dict(), model=model_name, revision=revision,
            prompt_ids=tuple(int(i) for i in prompt_ids), prompt_text=prompt_text, gen_length=config.gen_length, block_length=config.block_length,
            blocks=tuple((s, min(s + config.block_length, len(canvas))) for s in range(prompt, len(canvas), config.block_length)),
            n_layers=cfg.n_layers, n_heads=cfg.n_heads, mask_id=cfg.mask_id, eos_ids=cfg.eos_ids, shift=int(cfg.shift), seed=config.seed,
            level=level, device=str(model.device.type), dtype=str(model.dtype).removeprefix("torch."), versions=versions(),
            created=datetime.now(UTC).isoformat(timespec="seconds"), extra={"observe": self.observer.about()} if self.observer else {},
        )

    # -- live changes

    def set(self, name: str, value: Any) -> str:
        """Change a parameter of the running decode; returns when it takes effect ("pass" or "block"). Raises ValueError."""
        specs = method_named(self.run.config.method).specs
        if name not in specs:
            raise ValueError(f"{self.run.config.method} has no parameter {name!r}; it takes {', '.join(sorted(specs))}")
        live = specs[name].live
        if live == "run":
            raise ValueError(f"{name} cannot change during a run; stop, set it to {value!r} and run again")
        self.run.config.replace(**{name: value})  # validates
        with self.lock:
            (self.pending if live == "pass" else self.at_block)[name] = value
            if name == "k":  # above the K in force it is held to it; the next block may bring a K that lets it be
                self.at_block.pop("k", None)
                self.at_block |= {"k": value} if specs["k"].parse(value) > self.run.config.K else {}
        return live

    def _take_changes(self, changes: dict[str, Any]) -> list[ParamChange]:
        with self.lock:
            wanted = dict(changes)
            changes.clear()
        return self._change(wanted) if wanted else []

    def _change(self, wanted: dict[str, Any]) -> list[ParamChange]:
        before = self.run.config
        self.run.config = before.replace(**wanted)
        if self.run.config.seed != before.seed:  # only a fork may: the draws from here on are those of the new seed
            self.run.cluster_rng.manual_seed(self.run.config.seed)
            self.run.sample_rng.manual_seed(self.run.config.seed)
        return [ParamChange(n, before[n], self.run.config[n]) for n in before if before[n] != self.run.config[n]]

    # -- the canvas by hand

    def edit(self, edits: Mapping[int, int | None]) -> None:
        """Put tokens on the canvas before the next pass; None puts [MASK] back, and the position is decoded again.

        The next pass is then the entry of the first block that holds a [MASK] and feeds every row: nothing cached outlives an edit.
        Raises ValueError in one sentence.
        """
        checked = check_edits(self.run.canvas, self.run.model.cfg.vocab_size, edits)
        with self.lock:
            self.edits.update(checked)

    def start_from(self, tokens: Sequence[int], passes: int, elapsed: float) -> None:
        """Begin on a canvas that another decode left after `passes` passes and `elapsed` seconds. Before the first pass only."""
        run = self.run
        if not self.fresh or len(tokens) != run.length:
            raise ValueError(f"a canvas of {len(tokens)} positions cannot start this decode of {run.length}; start a new decode of that length")
        every = torch.arange(run.prompt_length, run.length)
        run.canvas.put(every, torch.as_tensor(list(tokens), dtype=torch.int64)[every])
        run.index, self.elapsed = passes, elapsed

    def _take_edits(self) -> list[tuple[int, int]]:
        canvas = self.run.canvas
        with self.lock:
            wanted, self.edits = self.edits, {}
        edits = [(p, t) for p, t in sorted(wanted.items()) if int(canvas.host[p]) != t]
        if not edits:
            return []
        positions = torch.tensor([p for p, _ in edits])
        before = canvas.host[positions].clone()
        canvas.put(positions, torch.tensor([t for _, t in edits]))
        if not canvas.masked(0, len(canvas)).numel():  # no pass would follow, hence none could record them
            canvas.put(positions, before)
            return []
        self._begin_again()
        return edits

    def _begin_again(self) -> None:
        """The canvas is not what the policies left: they start as in a new decode, and the scheduler looks from the prompt on."""
        run, row = self.run, method_named(self.run.config.method)
        self.scheduler, self.cache, self.commit = row.scheduler(), row.cache(), row.commit()
        run.kv.filled, run.entering = False, False
        self.fresh = self.needs_block = True
        if self.inspector is not None:
            self.inspector.before = None

    # -- passes

    @torch.inference_mode()
    def step(self) -> Step | None:
        """Run one forward pass. None when nothing is masked any more."""
        run, started = self.run, perf_counter()
        planned = self.planned.pop(run.index, None)
        changes = self._take_changes(self.pending)
        if planned is not None:
            self._change({c.name: c.new for c in planned.changes})
            changes += planned.changes
            self.edits.update(planned.edits)
        edits = self._take_edits()
        if self.needs_block:
            changes += self._take_changes(self.at_block)
            block = self.scheduler.next(run)
            if block is None:
                return None
            run.block, run.block_start, run.block_end = block
            run.entering, self.needs_block, self.fresh = self.fresh or not self.scheduler.slides, False, False
            if run.entering:
                self.commit.enter(run)
        if self.observer is not None:
            started += self.observer.look()
        run.clock.start()
        masked = run.canvas.masked(run.block_start, run.block_end)
        result = self._forward(masked)
        view, commits, step = self._pick(masked, result)
        self._apply(commits)
        self.cache.committed(run, commits)
        run.clock.lap("commit")
        if run.model.device.type == "cuda":
            torch.cuda.current_stream(run.model.device).synchronize()  # side streams go on
        step.seconds = perf_counter() - started
        self.elapsed += step.seconds
        step.elapsed, step.edits = self.elapsed, edits
        self._finish(step, view, result, changes, commits)
        return step

    def _forward(self, masked: torch.Tensor) -> PassResult:
        run = self.run
        wanted = masked
        if run.entering and self.scheduler.refines:
            wanted = run.canvas.masked(run.block_start, self.scheduler.horizon(run))
        self.plan = self.cache.plan(run, wanted.to(run.model.device))
        wish = self.commit.attention_wanted(run)
        if wish is not None:
            self.plan = replace(self.plan, attention_for=wish[0], attention_layers=wish[1], attention_before=self.commit.attention_before(run))
        try:
            if self.graphs is None:
                result = run.model.run(self.plan, run.canvas.tokens, run.kv, run.clock)
            else:
                result = self.graphs.run(run, self.plan)
            run.kv.filled = run.kv.filled or self.plan.rows == (0, run.length)
            self.cache.observe(run, result)
        except ValueError as problem:
            # A store of hidden states refuses values that are not finite; say where they came from instead.
            where = where_not_finite(run, self.plan)
            if where is None:
                raise
            raise DecodeError(not_finite(run, where)) from problem
        return result

    def _view(self, positions: torch.Tensor, logits: torch.Tensor) -> LogitsView:
        run, config = self.run, self.run.config
        view = LogitsView(
            positions.cpu(), logits, dtype=self.commit.dtype, exclude=run.model.cfg.mask_id if config.exclude_mask else None,
            temperature=config.temperature, generator=run.sample_rng,
        )
        view.token, view.confidence = view.token.cpu(), view.confidence.cpu()
        if not bool(torch.isfinite(view.confidence).all()):
            raise DecodeError(not_finite(run, where_not_finite(run, self.plan) or "the head"))
        return view

    def _pick(self, masked: torch.Tensor, result: PassResult) -> tuple[LogitsView, list[Commit], Step]:
        run = self.run
        view = self._view(self.plan.logits_for.cpu(), result.logits)
        if run.entering and self.scheduler.refines:
            run.block_end = self.scheduler.refine(run, view)
            view = view.before(run.block_end)
        step = Step(
            index=run.index, block=run.block, block_start=run.block_start, block_end=run.block_end, kind=self.plan.kind,
            refresh=self.plan.refresh or bool(result.reason), refresh_reason=result.reason or self.plan.reason,
            rows=round(sum(result.layer_rows) / len(result.layer_rows)),
        )
        if len(set(result.layer_rows)) > 1:
            step.extra["layer_rows"] = list(result.layer_rows)
        commits: list[Commit] = []
        if len(view):
            selection = self.commit.select(run, view, result)
            # [MASK] can be the argmax where it is not excluded; putting it on the canvas would be no commit.
            selection.chosen &= view.token != run.canvas.mask_id
            if not selection.waits and not bool(selection.chosen.any()):
                best = view.best_but(run.canvas.mask_id)
                selection.chosen[best], selection.reasons[best] = True, "forced"
            for i in selection.chosen.nonzero()[:, 0].tolist():
                commits.append(
                    Commit(
                        int(view.positions[i]), int(view.token[i]), float(view.confidence[i]), selection.reasons.get(i, "confidence"),
                        None if selection.delta is None else float(selection.delta[i]), None if selection.gate is None else float(selection.gate[i]),
                    )
                )
            step.drift, step.delta, step.gate = selection.drift, selection.delta_block, selection.gate_block
            step.extra.update(selection.extra)
        outside = self.cache.outside(run)
        if outside is not None:
            commits += self._pick_outside(*outside)
        return view, commits, step

    def _pick_outside(self, positions: torch.Tensor, hidden: torch.Tensor) -> list[Commit]:
        run = self.run
        inside = positions < run.length
        positions, hidden = positions[inside], hidden[inside]
        masked = (run.canvas.host[positions.cpu()] == run.canvas.mask_id).to(positions.device)
        if not bool(masked.any()):
            return []
        view = self._view(positions[masked], run.model.logits(hidden[masked]))
        chosen = (self.commit.select_outside(run, view) & (view.token != run.canvas.mask_id)).nonzero()[:, 0].tolist()
        return [Commit(int(view.positions[i]), int(view.token[i]), float(view.confidence[i]), "suffix") for i in chosen]

    def _apply(self, commits: list[Commit]) -> None:
        if commits:
            self.run.canvas.put(torch.tensor([c.position for c in commits]), torch.tensor([c.token for c in commits]))

    def _finish(self, step: Step, view: LogitsView, result: PassResult, changes: list[ParamChange], commits: list[Commit]) -> None:
        run, started = self.run, perf_counter()
        step.phases, step.changes, step.commits = dict(run.clock.close()), changes, commits
        self.cache.log(run, step)
        if run.level != "off":
            size, at = step.block_end - step.block_start, (view.positions - step.block_start).numpy()
            step.conf, step.argmax = np.full(size, np.nan, dtype=np.float32), np.full(size, -1, dtype=np.int32)
            step.conf[at], step.argmax[at] = view.confidence.numpy(), view.token.numpy()
            self.scheduler.log(run, step)
            if self.graphs is not None and (run.entering or self.graphs.grew):
                step.extra["memory"] = self.graphs.memory(self.cache.memory(run))
            elif run.entering:
                step.extra["memory"] = self.cache.memory(run)
            if self.inspector is not None:
                self.inspector.log(step, view, result)
            step.phases["log"] = perf_counter() - started
            if self.observer is not None:
                step.phases["observe"] = self.observer.log(step)
        extra = run.entering and run.config.get("extra_pass", False)
        run.entering = False
        run.index += 1
        self.needs_block = self.scheduler.slides or (not extra and run.canvas.masked(run.block_start, run.block_end).numel() == 0)

    def release(self) -> None:
        """Drop keys, values and windows: the decode cannot go on, its log stays."""
        self.run.kv = self.run.extra = None
        self.cache = self.commit = self.inspector = self.observer = self.plan = self.graphs = None

    def warm_up(self) -> None:
        """One untimed full pass on a spare store, so that the first timed pass does not pay for first-use costs."""
        run = self.run
        plan = ForwardPlan(kind="entry-full", rows=(0, run.length), logits_for=torch.arange(run.length - 1, run.length, device=run.model.device))
        run.model.run(plan, run.canvas.tokens, run.model.new_store(run.length), PhaseClock(enabled=False))


def decode(
    model: Any, prompt_ids: Sequence[int], config: DecodeConfig | None = None, *, level: str = "steps", warm_up: bool = False,
    on_step: Callable[[Step], None] | None = None, observe: bool = False, graphs: bool = False,
) -> Trace:
    """Run a whole decode. `model`: a `Transformer` or a loaded checkpoint. Returns its `Trace`; `on_step` sees each pass as it ends.

    `graphs`: record and replay passes as CUDA graphs (`polestar.graphs`). Raises ValueError, one sentence, where the request cannot run.
    """
    decoder = decoder_for(model, prompt_ids, config or DecodeConfig.make(), level=level, observe=observe, graphs=graphs)
    if warm_up:
        decoder.warm_up()
    trace = Trace(decoder.header)
    while (step := decoder.step()) is not None:
        trace.append(step)
        if on_step is not None:
            on_step(step)
    trace.status = "done"
    return trace


def decoder_for(
    model: Any, prompt_ids: Sequence[int], config: DecodeConfig, *, level: str = "steps", prompt_text: str | None = None, observe: bool = False,
    graphs: bool = False,
) -> Decoder:
    """A `Decoder` on a bare `Transformer` or on a loaded checkpoint (whose name and revision go into the header); `graphs` as for `decode`."""
    if isinstance(model, Transformer):
        decoder = Decoder(model, prompt_ids, config, level=level, prompt_text=prompt_text, observe=observe)
    else:
        decoder = Decoder(
            model.model, prompt_ids, config, level=level, model_name=model.name, revision=model.revision, prompt_text=prompt_text,
            token_text=model.codec.token_text, observe=observe,
        )
    if graphs:
        from polestar.graphs import use

        use(decoder)
    return decoder

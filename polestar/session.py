"""A run as a debugger sees it: run, pause, step, run to an event, continue, stop, change a parameter, edit the canvas.

Contract: `steps()` is consumed by one thread, which does the forward passes; every other method may be called from any thread and acts
between passes. What was decoded before a stop or an error stays in `trace`. Waiting (paused, or pacing) is not decode time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

from polestar.breakpoints import EVENTS, Breakpoint, Breakpoints
from polestar.config import DecodeConfig
from polestar.driver import Decoder, decoder_for
from polestar.trace.step import Step
from polestar.trace.trace import STATUSES, Trace

Pause = Callable[[Step, Trace], str | None]
STATES = ("ready", "running", "paused", "done", "stopped", "error")


class Session:
    """One decode under control.

    `breakpoints` may be changed at any time, from any thread; `breaks` holds them and whatever else is to be asked after every pass. One that
    answers a sentence pauses the run *at* that pass. `loaded`: a loaded checkpoint or a bare `Transformer`; `pace`: passes a second, or None for
    full speed; `graphs`: as for `polestar.driver.decode`; `past`: passes that the decoder has behind it (a fork).
    """

    def __init__(
        self,
        loaded: Any,
        prompt_ids: Sequence[int],
        config: DecodeConfig,
        *,
        level: str = "full",
        prompt_text: str | None = None,
        pace: float | None = None,
        paused: bool = False,
        warm_up: bool = False,
        observe: bool = False,
        graphs: bool = False,
        decoder: Decoder | None = None,
        past: Sequence[Step] = (),
    ):
        """Raises ValueError before any work when the request cannot run."""
        self.decoder = decoder or decoder_for(loaded, prompt_ids, config, level=level, prompt_text=prompt_text, observe=observe, graphs=graphs)
        self.trace = Trace(self.decoder.header, past)
        self.breakpoints = Breakpoints(self.decoder.header, getattr(loaded, "codec", None))
        self.breaks: list[Pause] = [self.breakpoints]
        self.pace = pace
        self.error: str | None = None
        self.fired: str | None = None  # what the last breakpoint said
        self._warm_up = warm_up
        self._lock = threading.Condition()
        self._status = "ready"
        self._allowed = 0 if paused else -1  # passes that may still run; -1 means no limit
        self._stop = False
        self._until: Pause | None = None  # where `run_to` is heading

    @property
    def status(self) -> str:
        """One of STATES."""
        return self._status

    @property
    def config(self) -> DecodeConfig:
        """The config as it stands (changes waiting for the next block are not in it yet)."""
        return self.decoder.run.config

    # -- the decoding thread

    def steps(self) -> Iterator[Step]:
        """Run the decode; yields each pass as it ends. Raises what the engine raises, after noting it in `error`."""
        self._become("running")
        try:
            if self._warm_up and not self._stop:
                self.decoder.warm_up()
            due = monotonic()
            while self._wait_for_turn(due):
                due = monotonic() + (1 / self.pace if self.pace else 0.0)
                step = self.decoder.step()
                if step is None:
                    self._become("done")
                    return
                self.trace.append(step)
                self._break_at(step)
                yield step
            self._become("stopped")
        except GeneratorExit:
            self._become("stopped")
            raise
        except Exception as problem:
            self.error = str(problem)
            self._become("error")
            raise
        finally:
            self.close()

    def _wait_for_turn(self, due: float) -> bool:
        with self._lock:
            while not self._stop:
                left = due - monotonic()
                if self._allowed == 0:
                    self._status = "paused"
                    self._lock.notify_all()
                    self._lock.wait()
                elif left > 0:
                    self._lock.wait(left)
                else:
                    self._status = "running"
                    self._allowed -= self._allowed > 0
                    return True
        return False

    def _break_at(self, step: Step) -> None:
        until = self._until
        said = [s for ask in (*self.breaks, until) if ask is not None and (s := ask(step, self.trace))]
        if said:
            with self._lock:
                self._allowed, self.fired, self._until = 0, "; ".join(said), None

    def _become(self, status: str) -> None:
        with self._lock:
            self._status = status
            if status in STATUSES:
                self.trace.status, self.trace.error = status, self.error
            self._lock.notify_all()

    # -- from any thread

    def pause(self) -> None:
        """Stop before the next pass; `resume` or `step_once` goes on."""
        with self._lock:
            self._allowed, self._until = 0, None
            self._lock.notify_all()

    def resume(self) -> None:
        """Run on until the end, a pause or a breakpoint."""
        self._go(-1, None)

    def step_once(self, passes: int = 1) -> None:
        """Run `passes` more passes, then pause."""
        with self._lock:
            self._go(max(self._allowed, 0) + passes, None)

    def run_to(self, event: str | Mapping[str, Any] | Breakpoint) -> None:
        """Run on to the next pass that holds an event (a name of `polestar.breakpoints.EVENTS`, or a breakpoint's conditions), and pause there.

        Forgotten when anything else pauses the run first. Raises ValueError.
        """
        if not isinstance(event, str):
            self._go(-1, event if isinstance(event, Breakpoint) else Breakpoint.from_json(event, header=self.trace.header, codec=self.breakpoints.codec))
            return
        if event not in EVENTS:
            raise ValueError(f"no event is called {event!r}; choose one of {', '.join(EVENTS)}")

        def ask(step: Step, trace: Trace) -> str | None:
            before = trace[step.index - 1] if step.index else None
            return f"{event} at pass {step.index}, block {step.block}" if EVENTS[event](step, before) else None

        self._go(-1, ask)

    def step_block(self) -> None:
        """Run on to the first pass of the next block, and pause there."""
        self.run_to("block")

    def _go(self, allowed: int, until: Pause | None) -> None:
        with self._lock:
            self._allowed, self.fired, self._until = allowed, None, until
            if self._status == "paused":
                self._status = "running"  # at once, so that who waits for the next pause does not see the last one
            self._lock.notify_all()

    def stop(self) -> None:
        """End after the pass that is running now."""
        with self._lock:
            self._stop = True
            self._lock.notify_all()

    def set(self, name: str, value: Any) -> str:
        """Change a parameter: takes effect at the next "pass" or "block" (returned), as an event in the log. Raises ValueError."""
        return self.decoder.set(name, value)

    def edit(self, edits: Mapping[int, int | None]) -> None:
        """Put tokens on the canvas before the next pass (None: [MASK] again), which then feeds every row. Raises ValueError."""
        self.decoder.edit(edits)

    def wait(self, *states: str, timeout: float = 10.0) -> bool:
        """Wait until the status is one of `states`; False on timeout."""
        with self._lock:
            return self._lock.wait_for(lambda: self._status in states, timeout)

    def close(self) -> None:
        """Let go of the key/value store; the trace stays."""
        self.decoder.release()

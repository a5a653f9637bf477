"""Where the time of a pass went.

Contract: `lap(name)` charges the time since the previous lap to `name`; `aside(name)` charges what is done within, which on a side stream
may run beside the laps. On CUDA both are events, resolved by `close`, so that nothing is synchronised inside a pass. A clock that is off costs one
attribute test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch


class PhaseClock:
    """Seconds by phase for one pass at a time. `enabled=False` measures nothing."""

    def __init__(self, device: torch.device | str = "cpu", *, enabled: bool = True):
        self.enabled = enabled
        self.cuda = torch.device(device).type == "cuda"
        self.phases: dict[str, float] = {}
        self._last = 0.0
        self._events: list[tuple[str, torch.cuda.Event]] = []
        self._asides: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        """Begin a pass; forget the previous one."""
        self.phases = {}
        if not self.enabled:
            return
        if self.cuda:
            self._events, self._asides = [("", self._event())], []
        else:
            self._last = perf_counter()

    def lap(self, name: str) -> None:
        """Charge the time since the last lap (or start) to `name`."""
        if not self.enabled:
            return
        if self.cuda:
            self._events.append((name, self._event()))
            return
        now = perf_counter()
        self.phases[name] = self.phases.get(name, 0.0) + now - self._last
        self._last = now

    @contextmanager
    def aside(self, name: str) -> Iterator[None]:
        """Charge what is done within to `name`, not to the lap that follows. On CUDA: work of the current stream, which may be a side stream."""
        if not self.enabled:
            yield
        elif self.cuda:
            before = self._event()
            yield
            self._asides.append((name, before, self._event()))
        else:
            before = perf_counter()
            yield
            spent = perf_counter() - before
            self.phases[name] = self.phases.get(name, 0.0) + spent
            self._last += spent

    def close(self) -> dict[str, float]:
        """End the pass: seconds by phase. On CUDA this waits for the pass to finish."""
        if self.enabled and self.cuda and self._events:
            torch.cuda.synchronize()
            for (_, before), (name, after) in zip(self._events, self._events[1:], strict=False):
                self.phases[name] = self.phases.get(name, 0.0) + before.elapsed_time(after) / 1e3
            for name, before, after in self._asides:
                self.phases[name] = self.phases.get(name, 0.0) + before.elapsed_time(after) / 1e3
            self._events, self._asides = [], []
        return self.phases

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

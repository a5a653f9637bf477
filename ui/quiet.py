"""How often gradio's queue looks for work.

Contract: by itself it looks a thousand times a second; a `Quiet` lets it look 50 times, and while it is entered (by any number of runs that
decode) four times. Each look takes the interpreter from the decode, and handing it over costs more than the look: fifty a second are a fortieth of its
speed. Only runs go through the queue; controls and buttons do not (ui/wiring.py), so nothing waits for it but the run of another tab.
"""

from __future__ import annotations

from typing import Any

REST, BUSY = (0.02, 0.1), (0.25, 0.5)  # seconds between two looks for events, and for their progress


class Quiet:
    """Entered, in the event loop's thread, while a decode goes on. `queue` is that of a gr.Blocks (there is no public setting), or None."""

    def __init__(self, queue: Any = None) -> None:
        self._queue, self._runs = queue, 0
        self._set(REST)

    def _set(self, seconds: tuple[float, float]) -> None:
        if self._queue is not None:
            self._queue.sleep_when_free, self._queue.progress_update_sleep_when_free = seconds

    def __enter__(self) -> None:
        self._runs += 1
        self._set(BUSY)

    def __exit__(self, *_: object) -> None:
        self._runs -= 1
        if not self._runs:
            self._set(REST)

"""What one browser tab is sent: numbered messages, in order, none lost.

Contract: `put` and `put_step` may be called from any thread and cost next to nothing; encoding happens in `messages`, in the event loop,
so that a decode never waits for it. Messages are stream version 1 (docs/architecture.md); `seq` counts from 0 within a run, without
gaps. What was sent is kept until the next run begins, so that a tab that missed something can ask for it again (`behind`).
Knows no gradio and no model.
"""

from __future__ import annotations

import base64
import itertools
import threading
from collections.abc import Iterable
from typing import Any

from polestar.trace import wire

STEPS_PER_MESSAGE = 32
BYTES_PER_VALUE = 1 << 20
_numbers = itertools.count(1)


class Channel:
    """The stream of one tab. `run` names what is shown now (r1, r2, ... through the life of the server)."""

    def __init__(self) -> None:
        self.run = ""
        self.state = "empty"  # of the last status
        self._lock = threading.Lock()
        self._pending: list[Any] = []
        self._sent: list[str] = []
        self._repeat: int | None = None

    def begin(self, *events: dict[str, Any]) -> str:
        """Forget what was shown; a new run starts with a reset and `events`. Returns its name."""
        with self._lock:
            self.run = f"r{next(_numbers)}"
            self._pending = [{"type": "reset"}, *events]
            self._sent = []
            self._repeat = None
            self.state = "empty"
            self._note(events)
            return self.run

    def put(self, *events: dict[str, Any] | None, run: str | None = None) -> None:
        """Queue events; None is skipped. With `run`, only while that run is still the one shown."""
        with self._lock:
            if run is None or run == self.run:
                self._pending.extend(e for e in events if e is not None)
                self._note(events)

    def _note(self, events: Iterable[dict[str, Any] | None]) -> None:
        for e in events:
            if e is not None and e["type"] == "status":
                self.state = e["state"]

    def put_step(self, lane: str, step: Any, header: Any, vocab: Any, *, run: str) -> None:
        """Queue one step of a lane; `vocab` (a VocabSender) adds what the tab cannot name yet."""
        with self._lock:
            if run == self.run:
                self._pending.append((lane, step, header, vocab))

    def behind(self, run: str, seq: int) -> None:
        """The tab has everything of `run` before `seq` and nothing after it: the next `take` sends the rest again."""
        with self._lock:
            if run != self.run:
                seq = 0
            self._repeat = seq if self._repeat is None else min(seq, self._repeat)

    @property
    def idle(self) -> bool:
        """Is there nothing to send?"""
        return not self._pending and self._repeat is None

    def take(self) -> str | None:
        """The next value for the tab: base64 of messages, one a line; None when there is nothing to say.

        Base64, because text of a model must pass gradio's templates and its client as data that nothing there can read.
        """
        out = self.messages()
        return base64.b64encode("\n".join(out).encode()).decode() if out else None

    def messages(self) -> list[str]:
        """The next messages for the tab, in order, each one line of JSON; at most about BYTES_PER_VALUE."""
        with self._lock:
            out: list[str] = []
            size = 0
            if self._repeat is not None:
                missed, self._repeat = self._sent[self._repeat :], None
                out.extend(missed)
            while self._pending and size < BYTES_PER_VALUE:
                text = wire.message(self.run, len(self._sent), self._next_events())
                self._sent.append(text)
                out.append(text)
                size += len(text)
        return out

    def _next_events(self) -> list[dict[str, Any]]:
        """Events of one message off the queue, runs of steps of a lane gathered into one event."""
        events: list[dict[str, Any]] = []
        steps = 0
        used = 0
        for item in self._pending:
            if isinstance(item, dict):
                if item["type"] == "steps":  # a batch that is encoded already (a replay)
                    if steps + len(item["steps"]) > STEPS_PER_MESSAGE:
                        break
                    steps += len(item["steps"])
                events.append(item)
            else:
                if steps == STEPS_PER_MESSAGE:
                    break
                lane, step, header, vocab = item
                words = vocab.for_step(step)
                if words is not None:
                    events.append(words)
                last = events[-1] if events else None
                if last is None or last["type"] != "steps" or last["lane"] != lane:
                    last = {"type": "steps", "lane": lane, "steps": []}
                    events.append(last)
                last["steps"].append(wire.encode_step(step, header))
                steps += 1
            used += 1
        del self._pending[:used]
        return events


def unpack(value: str) -> list[str]:
    """The messages in a value made by `take` (the page does the same in javascript)."""
    return base64.b64decode(value).decode().split("\n")


def status(state: str, text: str = "", place: int | None = None) -> dict[str, Any]:
    """A status event."""
    return {"type": "status", "state": state, "text": text, "place": place}


def replay(traces: Any, codec: Any = None) -> Iterable[dict[str, Any]]:
    """The events of a whole replay (see `polestar.trace.wire.messages`), without reset."""
    import json

    for text in wire.messages(traces, codec):
        for event in json.loads(text)["events"]:
            if event["type"] != "reset":
                yield event

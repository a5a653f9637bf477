"""Breakpoints of a tab: kept between runs, asked by every lane's session.

Contract: thread-safe. A breakpoint belongs to no run, so its position is checked against a run only by never holding there; the list names it, and the
page says where what it shows has no such position. `ask(codec)` is what a session calls after every pass: it answers what fired, in one sentence, or
None. `event()` is the list as the page has it; it names tokens by the texts of the model that was asked last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from polestar.breakpoints import Breakpoint, Breakpoints

MOST = 100


class Book:
    """The breakpoints of one tab. `changed()` is called, from any thread, whenever the list is another one."""

    def __init__(self, changed: Callable[[], None]):
        self._all = Breakpoints()
        self._fired: dict[int, str] = {}
        self._lock = threading.Lock()
        self._changed = changed
        self._codec: Any = None  # of the model that was asked last

    def act(self, command: dict[str, Any]) -> None:
        """The page's command `breakpoint`: op add, remove, enable, disable or clear. Raises ValueError in one sentence."""
        op = command.get("op")
        if op == "add":
            if len(self._all) >= MOST:
                raise ValueError(f"there are {MOST} breakpoints already; remove some first")
            self._all.add(command.get("breakpoint"))
        elif op == "remove":
            self._all.remove(command.get("id"))
        elif op in ("enable", "disable"):
            self._all.enable(command.get("id"), op == "enable")
        elif op == "clear":
            self._all.clear()
        else:
            raise ValueError(f"breakpoints have no operation {op!r}; use add, remove, enable, disable or clear")
        self._changed()

    def ask(self, codec: Any) -> Callable[[Any, Any], str | None]:
        """A question for `Session.breaks`. `codec` gives the bytes of tokens, for conditions on text."""
        made: dict[Breakpoint, Breakpoint] = {}
        known, self._codec = self._codec, codec
        if codec is not known and any(b.token is not None for b in self._all):
            self._changed()

        def ask(step: Any, trace: Any) -> str | None:
            said = []
            for b in self._all:
                if b not in made:
                    made[b] = _with(b, codec)
                sentence = made[b](step, trace)
                if sentence:
                    said.append(sentence)
                    with self._lock:
                        self._fired[b.id] = sentence
                    if b.once:
                        self._all.remove(b.id)
            if said:
                self._changed()
            return "; ".join(said) or None

        return ask

    def forget(self) -> None:
        """The run went on: none of them holds it any more."""
        with self._lock:
            had, self._fired = bool(self._fired), {}
        if had:
            self._changed()

    def event(self) -> dict[str, Any]:
        """The event `breakpoints`."""
        with self._lock:
            fired = dict(self._fired)
            codec = self._codec
        return {
            "type": "breakpoints",
            "list": [
                {"id": b.id, "text": _with(b, codec).describe(), "enabled": b.enabled, "fired": fired.get(b.id), "position": b.position} for b in self._all
            ],
        }


def _with(b: Breakpoint, codec: Any) -> Breakpoint:
    """The breakpoint with the tokens' texts of a codec."""
    return b if codec is None else Breakpoint.from_json(b.to_json(), codec=codec)

"""Breakpoints: conditions on a pass and on one position of it, combined by "and", and the events that a debugger steps between.

Contract: pure functions of a `Step` and its `Trace`; nothing here runs a pass. A `Breakpoint` is called with (step, trace) after every pass and answers
a sentence that says what fired, or None. Conditions on a position must all hold for *one* position: "drift commit" and "Δ above 0.5" means a token
committed on a drift event whose own Δ is above 0.5. "Above" and "below" are strict. Every error is a ValueError of one sentence.

A breakpoint as JSON (any of these, at least one condition):

    {"pass": 12}                    the pass with this number
    {"block": 3}                    a pass of this block
    {"block_entry": true}           the first pass of a block
    {"refresh": true}               a pass in which the cache policy refreshed
    {"commit": "drift"}             a commit of this reason: confidence, forced, drift, suffix, a method's own, or "any"
    {"delta": {"above": 0.5}}       Δ of the position (nats); {"below": ...} and both together work too
    {"confidence": {"below": 0.6}}  confidence of the position
    {"position": 77}                this position (absolute)
    {"token": 123}                  this token id
    {"text": "Paris"}               this text, completed by the committed token, alone or with its neighbours
    {"of": "masked"}                read the position conditions for any masked position of the block (its argmax is the token), not for committed ones
    {"enabled": false, "once": true, "id": 4}
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from polestar.text import token_named
from polestar.trace.header import Header
from polestar.trace.step import Step
from polestar.trace.trace import Trace

OF = ("committed", "masked")
CONDITIONS = ("pass", "block", "block_entry", "refresh", "commit", "delta", "confidence", "position", "token", "text")
OTHERS = ("of", "enabled", "once", "id")


def first_of_block(step: Step, before: Step | None) -> bool:
    """Is this the first pass of a block (or of a window that slid on)? `before` is the pass before it."""
    return step.kind.startswith("entry") or before is None or (before.block, before.block_start) != (step.block, step.block_start)


def _committed(reason: str) -> Callable[[Step, Step | None], bool]:
    return lambda step, _: any(c.reason == reason for c in step.commits)


# What a person steps to: name -> does the pass (given the one before it) hold such an event.
EVENTS: dict[str, Callable[[Step, Step | None], bool]] = {
    "pass": lambda step, _: True,
    "block": first_of_block,
    "refresh": lambda step, _: step.refresh,
    "drift": _committed("drift"),
    "suffix": _committed("suffix"),
    "forced": _committed("forced"),
    "change": lambda step, _: bool(step.changes or step.edits),
}


@dataclass(frozen=True, kw_only=True)
class Breakpoint:
    """One breakpoint; None means "no such condition". Make it with `from_json`, which checks."""

    id: int | None = None
    enabled: bool = True
    once: bool = False  # gone after it fired
    number: int | None = None  # the pass
    block: int | None = None
    block_entry: bool = False
    refresh: bool = False
    commit: str | None = None
    delta: tuple[float, float] | None = None  # (above, below), -inf and inf where open
    confidence: tuple[float, float] | None = None
    position: int | None = None
    token: int | None = None
    text: str | None = None
    of: str = "committed"
    pieces: Callable[[int, Trace | None], bytes] = field(default=None, compare=False, repr=False)  # bytes of a token, where `text` asks

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, header: Header | None = None, codec: Any = None) -> Breakpoint:
        """A checked breakpoint. `header` lets positions, blocks and tokens be checked; `codec` gives the texts of tokens (else the trace's own).

        Raises ValueError in one sentence.
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"a breakpoint is {_short(data)}; it must be a table of conditions")
        data = {name: value for name, value in data.items() if value is not None}
        unknown = sorted(set(map(str, data)) - {*CONDITIONS, *OTHERS})
        if unknown:
            raise ValueError(f"a breakpoint has no condition {_short(unknown[0])}; use some of {', '.join(CONDITIONS)}")
        out: dict[str, Any] = {"pieces": pieces_of(codec)}
        for name in ("block_entry", "refresh", "enabled", "once"):
            if name in data:
                out[name] = _flag(name, data[name])
        length = None if header is None else header.length
        limits = {"pass": None, "block": None, "position": None if length is None else length - 1, "token": None, "id": None}
        lows = {"position": 0 if header is None else header.prompt_length}
        for name, high in limits.items():
            if name in data:
                out["number" if name == "pass" else name] = _whole(name, data[name], lows.get(name, 0), high)
        for name in ("delta", "confidence"):
            if name in data:
                out[name] = _range(name, data[name])
        for name in ("commit", "text"):
            if name in data:
                if not isinstance(data[name], str) or not data[name]:
                    raise ValueError(f"the condition {name} takes text, not {_short(data[name])}; write some")
                out[name] = data[name]
        if data.get("of", OF[0]) not in OF:
            raise ValueError(f"the condition of takes {' or '.join(OF)}, not {_short(data['of'])}; give one of those")
        out["of"] = data.get("of", OF[0])
        if out["of"] == "masked" and ("commit" in out or "text" in out):
            wrong = "commit" if "commit" in out else "text"
            raise ValueError(f"the condition {wrong} is about committed tokens and cannot hold of masked positions; drop it or set of to committed")
        if not _condition(out):
            raise ValueError(f"the breakpoint {_short(dict(data))} has no condition and would never say anything; give at least one of {', '.join(CONDITIONS)}")
        if out["of"] == "masked" and not _about_position(out):
            raise ValueError("of is masked, but nothing is asked of the position; add delta, confidence, position or token")
        return cls(**out)

    def to_json(self) -> dict[str, Any]:
        """The inverse of `from_json`, with id and enabled."""
        out: dict[str, Any] = {"id": self.id, "enabled": self.enabled}
        if self.once:
            out["once"] = True
        for name in ("block_entry", "refresh"):
            if getattr(self, name):
                out[name] = True
        for name in ("number", "block", "commit", "position", "token", "text"):
            if getattr(self, name) is not None:
                out["pass" if name == "number" else name] = getattr(self, name)
        for name in ("delta", "confidence"):
            if getattr(self, name) is not None:
                above, below = getattr(self, name)
                out[name] = {word: v for word, v in (("above", above), ("below", below)) if math.isfinite(v)}
        if self.of != OF[0]:
            out["of"] = self.of
        return out

    def describe(self, trace: Trace | None = None) -> str:
        """The conditions in words, joined by "and"; `trace` knows the texts of tokens where no codec does."""
        said = []
        if self.number is not None:
            said.append(f"pass {self.number}")
        if self.block is not None:
            said.append(f"block {self.block}")
        if self.block_entry:
            said.append("block entry")
        if self.refresh:
            said.append("refresh")
        if self._about_position():
            who = "a masked position" if self.of == "masked" else "a commit" if self.commit in (None, "any") else f"a {self.commit} commit"
            if self.position is not None:
                who = who.replace("a masked position", f"masked position {self.position}").replace("commit", f"commit at position {self.position}")
            if self.token is not None:
                who += f" {'predicting' if self.of == 'masked' else 'of'} {self._named(self.token, trace)}"
            if self.text is not None:
                who += f" that completes {self.text!r}"
            for name, sign in (("delta", "Δ"), ("confidence", "confidence")):
                limits = getattr(self, name)
                if limits is not None:
                    words = [f"{word} {v:g}" for word, v in zip(("above", "below"), limits, strict=True) if math.isfinite(v)]
                    who += f" with {sign} {' and '.join(words)}"
            said.append(who)
        return " and ".join(said)

    def __call__(self, step: Step, trace: Trace) -> str | None:
        """What fired in this pass, in one sentence, or None. `trace` ends with `step` or goes beyond it."""
        if not self.enabled:
            return None
        if (self.number is not None and step.index != self.number) or (self.block is not None and step.block != self.block):
            return None
        if self.refresh and not step.refresh:
            return None
        if self.block_entry and not first_of_block(step, trace[step.index - 1] if step.index else None):
            return None
        name = "breakpoint" if self.id is None else f"breakpoint {self.id}"
        if not self._about_position():
            why = f" ({step.refresh_reason})" if self.refresh and step.refresh_reason else ""
            return f"{name} ({self.describe(trace)}) at pass {step.index}, block {step.block}{why}"
        for position, token, confidence, reason, delta in _committed_of(step) if self.of == "committed" else _masked_of(step):
            if self._holds(position, token, confidence, reason, delta) and (self.text is None or self._completes(position, step, trace)):
                what = "masked" if self.of == "masked" else f"committed ({reason})"
                shown = "" if delta is None or math.isnan(delta) else f", Δ {delta:.3g}"
                which = self._named(token, trace)
                return f"{name} ({self.describe(trace)}) at pass {step.index}: position {position} {what}, {which}, confidence {confidence:.3g}{shown}"
        return None

    def _named(self, token: int, trace: Trace | None) -> str:
        return token_named(token, lambda known: b"" if self.pieces is None else self.pieces(known, trace))

    def _about_position(self) -> bool:
        return _about_position({f: getattr(self, f) for f in ("commit", "delta", "confidence", "position", "token", "text")})

    def _holds(self, position: int, token: int, confidence: float, reason: str, delta: float | None) -> bool:
        return (
            (self.position is None or position == self.position)
            and (self.token is None or token == self.token)
            and (self.commit in (None, "any") or reason == self.commit)
            and _inside(confidence, self.confidence)
            and _inside(delta, self.delta)
        )

    def _completes(self, position: int, step: Step, trace: Trace) -> bool:
        """Does the text stand on the canvas after this pass, made partly by the token at `position`?"""
        h, wanted = trace.header, self.text.encode()
        canvas = trace.canvas_at(step.index)

        def text(p: int) -> bytes | None:
            return None if not h.prompt_length <= p < h.length or canvas[p] == h.mask_id else self.pieces(int(canvas[p]), trace)

        middle = text(position)
        if middle is None:
            return False
        left = right = b""
        at = position - 1
        while len(left) < len(wanted) - 1 and (piece := text(at)) is not None:
            left, at = piece + left, at - 1
        at = position + 1
        while len(right) < len(wanted) - 1 and (piece := text(at)) is not None:
            right, at = right + piece, at + 1
        # The last len - 1 bytes before it and as many after: any match in here touches the token itself.
        reach = len(wanted) - 1
        return wanted in left[len(left) - min(reach, len(left)) :] + middle + right[:reach]


class Breakpoints:
    """The breakpoints of a session, by id. Thread-safe; called like one breakpoint, it answers what all that fire say."""

    def __init__(self, header: Header | None = None, codec: Any = None):
        self.header, self.codec = header, codec
        self._lock = threading.Lock()
        self._all: dict[int, Breakpoint] = {}
        self._next = 1

    def add(self, data: Mapping[str, Any] | Breakpoint) -> Breakpoint:
        """Add one from JSON or as it is; it gets the next free id. Raises ValueError in one sentence."""
        new = data if isinstance(data, Breakpoint) else Breakpoint.from_json(data, header=self.header, codec=self.codec)
        with self._lock:
            new = replace(new, id=self._next)
            self._all[self._next] = new
            self._next += 1
        return new

    def remove(self, id: int) -> None:
        """Raises ValueError when there is no such breakpoint."""
        with self._lock:
            del self._all[self._known(id)]

    def enable(self, id: int, on: bool = True) -> Breakpoint:
        """Switch one on or off. Raises ValueError when there is no such breakpoint."""
        with self._lock:
            new = self._all[id] = replace(self._all[self._known(id)], enabled=bool(on))
        return new

    def clear(self) -> None:
        """Remove all; ids are not used again."""
        with self._lock:
            self._all.clear()

    def _known(self, id: int) -> int:
        if id not in self._all:
            known = ", ".join(map(str, self._all)) or "none"
            raise ValueError(f"there is no breakpoint {id!r}; the ids are: {known}")
        return id

    def to_json(self) -> list[dict[str, Any]]:
        """All of them, with "say": the conditions in words."""
        return [b.to_json() | {"say": b.describe()} for b in self]

    def __iter__(self) -> Iterator[Breakpoint]:
        with self._lock:
            return iter(list(self._all.values()))

    def __len__(self) -> int:
        return len(self._all)

    def __call__(self, step: Step, trace: Trace) -> str | None:
        said = []
        for b in self:
            sentence = b(step, trace)
            if sentence:
                said.append(sentence)
                if b.once:
                    with self._lock:
                        self._all.pop(b.id, None)
        return "; ".join(said) or None


def next_event(trace: Trace, start: int, kind: str | Mapping[str, Any] | Breakpoint, direction: int = 1) -> int | None:
    """The nearest pass after (`direction` 1) or before (-1) pass `start` that holds an event; None when there is none.

    `kind`: a name of EVENTS, or the conditions of a breakpoint. `start` may be -1 (before the first pass). On the log alone: answers at once.
    Raises ValueError.
    """
    if direction not in (1, -1):
        raise ValueError(f"the direction is {direction!r}; give 1 (forward) or -1 (back)")
    if isinstance(kind, str):
        if kind not in EVENTS:
            raise ValueError(f"no event is called {kind!r}; choose one of {', '.join(EVENTS)}")
        happened = EVENTS[kind]
    else:
        ask = kind if isinstance(kind, Breakpoint) else Breakpoint.from_json(kind, header=trace.header)

        def happened(step: Step, before: Step | None) -> bool:
            return ask(step, trace) is not None

    i, end = start + direction, len(trace)
    while 0 <= i < end:
        if happened(trace[i], trace[i - 1] if i else None):
            return i
        i += direction
    return None


def _committed_of(step: Step) -> Iterator[tuple[int, int, float, str, float | None]]:
    for c in step.commits:
        yield c.position, c.token, c.confidence, c.reason, c.delta


def _masked_of(step: Step) -> Iterator[tuple[int, int, float, str, float | None]]:
    """Positions of the block that held [MASK] when the pass began."""
    if step.conf is None:
        return
    for j in np.flatnonzero(~np.isnan(step.conf)).tolist():
        delta = None if step.delta is None else float(step.delta[j])
        yield step.block_start + j, int(step.argmax[j]), float(step.conf[j]), "", delta


def _inside(value: float | None, limits: tuple[float, float] | None) -> bool:
    # NaN is inside nothing.
    return limits is None or (value is not None and limits[0] < value < limits[1])


def _condition(out: Mapping[str, Any]) -> bool:
    return _about_position(out) or any(out.get(n) is not None and out[n] is not False for n in ("number", "block", "block_entry", "refresh"))


def _about_position(out: Mapping[str, Any]) -> bool:
    return any(out.get(n) is not None for n in ("commit", "delta", "confidence", "position", "token", "text"))


def pieces_of(codec: Any) -> Callable[[int, Trace | None], bytes]:
    """The bytes of a token, of the codec where there is one, else as the trace has them."""

    def pieces(token: int, trace: Trace | None) -> bytes:
        if codec is not None:
            return codec.token_bytes(token)
        entry = {} if trace is None else trace.vocab.get(token, {})
        return bytes.fromhex(entry["b"]) if "b" in entry else entry.get("t", "").encode()

    return pieces


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"the condition {name} takes true or false, not {_short(value)}; give one of those")
    return value


def _whole(name: str, value: Any, low: int, high: int | None) -> int:
    wanted = f"a whole number from {low}" + ("" if high is None else f" to {high}")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or math.isinf(value) or int(value) != value:
        raise ValueError(f"the condition {name} takes {wanted}, not {_short(value)}; give one of those")
    if value < low or (high is not None and value > high):
        raise ValueError(f"the condition {name} takes {wanted}, not {_short(value)}; give one of those")
    return int(value)


def _range(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, Mapping) or not value or set(value) - {"above", "below"}:
        raise ValueError(f"the condition {name} takes above, below or both, as {{\"above\": 0.5}}, not {_short(value)}; write it so")
    for word, v in value.items():
        if isinstance(v, bool) or not isinstance(v, (int, float)) or not math.isfinite(v):
            raise ValueError(f"{name} {word} takes a number, not {_short(v)}; give one")
    above, below = float(value.get("above", -math.inf)), float(value.get("below", math.inf))
    if above >= below:
        raise ValueError(f"{name} above {above:g} and below {below:g} can never hold; let above be less than below")
    return above, below


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

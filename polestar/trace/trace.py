"""A decode as a whole: a header and its forward passes.

Contract: a trace grows by `append` only; every step is checked as it comes in, so that what is in a trace can be saved, loaded
and drawn. The canvas (token ids of all L positions) after any pass is rebuilt from keyframes kept every 32 passes. Knows no
model, no tokenizer and no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from .check import check_notes, check_step
from .header import Header, TraceError
from .step import Step

KEYFRAME_EVERY = 32
STATUSES = ("running", "done", "stopped", "error")


class Trace:
    """A header and its steps; NFE = len(trace).

    Attributes: `status` (running, done, stopped, error; unless set, done once every position is unmasked), `error` (a sentence or
    None), `notes` (dicts with pass, position, text),
    `vocab` (token id -> {"t": text, "s": 1 if special, "b": hex bytes}: what a file needs to be read without the model),
    `seconds` (decode wall time; None means the last step's `elapsed`).
    """

    def __init__(self, header: Header, steps: Sequence[Step] = ()) -> None:
        self.header = header
        self.steps: list[Step] = []
        self.notes: list[dict[str, Any]] = []
        self.vocab: dict[int, dict[str, Any]] = {}
        self._status: str | None = None
        self.error: str | None = None
        self._seconds: float | None = None
        self._canvas = np.full(header.length, header.mask_id, np.int32)
        self._canvas[: header.prompt_length] = header.prompt_ids
        self._keyframes = [self._canvas.copy()]  # canvas before pass 0, 32, 64, ...
        for step in steps:
            self.append(step)

    def append(self, step: Step) -> None:
        """Add the next pass. Raises TraceError, and adds nothing, when it does not fit the header or the order."""
        check_step(step, self.header, len(self.steps))
        _apply(self._canvas, step)
        if (step.index + 1) % KEYFRAME_EVERY == 0:
            self._keyframes.append(self._canvas.copy())
        self.steps.append(step)  # last, so that a reader in another thread never sees a step whose keyframe is missing

    def canvas_at(self, i: int) -> np.ndarray:
        """Token ids int32 [L] after pass i; i = -1 gives the canvas before the first pass. A copy. Raises TraceError."""
        if not -1 <= i < len(self.steps):
            raise TraceError(f"pass {i} is not in this trace; it holds passes 0 to {len(self.steps) - 1}")
        key = (i + 1) // KEYFRAME_EVERY
        canvas = self._keyframes[key].copy()
        for step in self.steps[key * KEYFRAME_EVERY : i + 1]:
            _apply(canvas, step)
        return canvas

    @property
    def tokens(self) -> np.ndarray:
        """The generated ids int32 [L_G] as they stand after the last pass ([MASK] where nothing was committed). A copy."""
        return self.canvas_at(len(self.steps) - 1)[self.header.prompt_length :]

    @property
    def status(self) -> str:
        """One of STATUSES."""
        return self._status or ("done" if self.complete else "running")

    @status.setter
    def status(self, value: str | None) -> None:
        if value is not None and value not in STATUSES:
            raise TraceError(f"a trace's status cannot be {value!r}; use one of {', '.join(STATUSES)}")
        self._status = value

    @property
    def seconds(self) -> float:
        """Decode wall time in seconds."""
        if self._seconds is not None:
            return self._seconds
        return self.steps[-1].elapsed if self.steps else 0.0

    @seconds.setter
    def seconds(self, value: float | None) -> None:
        self._seconds = None if value is None else float(value)

    @property
    def complete(self) -> bool:
        """Is every generated position unmasked?"""
        return not bool((self._canvas[self.header.prompt_length :] == self.header.mask_id).any())

    def prefix(self, passes: int) -> Trace:
        """A new trace of the first `passes` passes (steps shared, not copied), as a fork needs."""
        out = Trace(self.header, self.steps[:passes])
        out.vocab = dict(self.vocab)
        return out

    def note(self, passno: int, text: str, position: int | None = None) -> dict[str, Any]:
        """Pin a note to a pass and, if given, a position. Raises TraceError outside the trace."""
        entry = {
            "pass": int(passno),
            "position": None if position is None else int(position),
            "text": str(text),
        }
        check_notes([entry], len(self.steps), self.header.length)
        self.notes.append(entry)
        return entry

    def used_ids(self) -> list[int]:
        """Every token id the trace mentions, ascending: prompt, [MASK], [EOS], commits, edits, argmax and candidates."""
        ids = {*self.header.prompt_ids, *self.header.eos_ids, self.header.mask_id}
        for step in self.steps:
            ids.update(step_ids(step))
        return sorted(ids)

    def metrics(self, tokenizer: Any = None) -> dict[str, Any]:
        """Figures of section D.1; see `polestar.trace.metrics.metrics`."""
        from .metrics import metrics

        return metrics(self, tokenizer)

    def to_pandas(self) -> dict[str, Any]:
        """Tidy tables steps, commits, drift, clusters; see `polestar.trace.frames.to_pandas`."""
        from .frames import to_pandas

        return to_pandas(self)

    def save(self, path: Any, codec: Any = None) -> None:
        """Write one safetensors file; see `polestar.trace.file.save`."""
        from .file import save

        save(self, path, codec=codec)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    @overload
    def __getitem__(self, at: int) -> Step: ...
    @overload
    def __getitem__(self, at: slice) -> list[Step]: ...
    def __getitem__(self, at: int | slice) -> Step | list[Step]:
        return self.steps[at]

    def __repr__(self) -> str:
        h = self.header
        return f"Trace({h.method}, {h.preset}, {len(self)} passes, {h.prompt_length} + {h.gen_length} positions, {self.status})"


def _apply(canvas: np.ndarray, step: Step) -> None:
    for position, token in step.edits:
        canvas[position] = token
    for c in step.commits:
        canvas[c.position] = c.token


def step_ids(step: Step) -> set[int]:
    """Token ids that a view of this pass may need to name."""
    ids = {c.token for c in step.commits}
    ids.update(token for _, token in step.edits)
    for a in (step.argmax, step.candidate_ids):
        if a is not None:
            ids.update(t for t in set(a.ravel().tolist()) if t >= 0)
    return ids

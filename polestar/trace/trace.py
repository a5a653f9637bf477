"""A decode as a whole: what was run (`Header`) and its forward passes (`Trace`).

Contract: a header says everything needed to run the decode again. A trace grows by `append` only; every step is checked as it
comes in, so that what is in a trace can be saved, loaded and drawn. The canvas (token ids of all L positions) after any pass is
rebuilt from keyframes kept every 32 passes. Knows no model, no tokenizer and no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, overload

import numpy as np

from .step import KINDS, LEVELS, Step

KEYFRAME_EVERY = 32
STATUSES = ("running", "done", "stopped", "error")
MAX_LENGTH = 1 << 20  # positions; far above any dLLM's maximum, low enough that a damaged file cannot ask for all memory


class TraceError(ValueError):
    """A trace, or a file that should hold one, is not what it must be. The message is one sentence for the person."""


def _int(name: str, value: Any, low: int, high: int = 2**31 - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise TraceError(f"header field {name} is {_short(value)}; it must be a whole number from {low} to {high}")
    return int(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True, kw_only=True)
class Header:
    """What was run. Positions [0, L_p) are the prompt, [L_p, L) the generation; L = L_p + L_G.

    Sequences become tuples. `created` is an ISO 8601 time and takes no part in equality, digests or the deterministic part of a
    file. `blocks` holds [start, end) of every block as planned; a scheduler that sets blocks as it goes may leave it empty, and
    each step says its own block. Raises TraceError when a field has the wrong type or lies outside its range.
    """

    method: str
    prompt_ids: Sequence[int]
    gen_length: int
    block_length: int
    mask_id: int
    version: int = 1
    preset: str = "paper"
    title: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    revision: str | None = None
    prompt_text: str | None = None
    blocks: Sequence[Sequence[int]] = ()
    n_layers: int = 1
    n_heads: int = 1
    eos_ids: Sequence[int] = ()
    shift: int = 0  # 1 where logits at row i predict position i + 1 (Dream), else 0
    seed: int | None = 0
    level: str = "steps"
    device: str = "cpu"
    dtype: str = "float32"
    versions: dict[str, str] = field(default_factory=dict)
    parent: dict[str, Any] | None = None  # a fork: {"digest", "pass", "edits", "changes"}
    extra: dict[str, Any] = field(default_factory=dict)  # JSON values a method or an analysis adds
    created: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)  # the dataclass is frozen

        for name in ("method", "preset", "title", "model", "level", "device", "dtype"):
            if not isinstance(getattr(self, name), str):
                raise TraceError(f"header field {name} is {_short(getattr(self, name))}; it must be text")
        for name in ("revision", "prompt_text", "created"):
            if not isinstance(getattr(self, name), (str, type(None))):
                raise TraceError(f"header field {name} is {_short(getattr(self, name))}; it must be text or nothing")
        for name in ("config", "versions", "extra"):
            if not isinstance(getattr(self, name), dict):
                raise TraceError(f"header field {name} is {_short(getattr(self, name))}; it must be a table of names and values")
        if not isinstance(self.parent, (dict, type(None))):
            raise TraceError(f"header field parent is {_short(self.parent)}; it must be a table or nothing")
        if self.level not in LEVELS:
            raise TraceError(f"header field level is {_short(self.level)}; it must be one of {', '.join(LEVELS)}")
        put("prompt_ids", self._ids("prompt_ids", MAX_LENGTH))
        put("eos_ids", self._ids("eos_ids", 1024))
        put("mask_id", _int("mask_id", self.mask_id, 0))
        put("version", _int("version", self.version, 1))
        put("gen_length", _int("gen_length", self.gen_length, 1, MAX_LENGTH))
        put("block_length", _int("block_length", self.block_length, 1, MAX_LENGTH))
        put("n_layers", _int("n_layers", self.n_layers, 1, 4096))
        put("n_heads", _int("n_heads", self.n_heads, 1, 65536))
        put("shift", _int("shift", int(self.shift) if isinstance(self.shift, bool) else self.shift, 0, 1))
        if self.seed is not None:
            put("seed", _int("seed", self.seed, -(2**63), 2**64 - 1))
        put("blocks", self._spans())

    def _ids(self, name: str, most: int) -> tuple[int, ...]:
        value = getattr(self, name)
        value = value.tolist() if isinstance(value, np.ndarray) else value
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) > most:
            raise TraceError(f"header field {name} is {_short(value)}; it must be a list of at most {most} token ids")
        return tuple(_int(name, v, 0) for v in value)

    def _spans(self) -> tuple[tuple[int, int], ...]:
        if isinstance(self.blocks, str) or not isinstance(self.blocks, Sequence):
            raise TraceError(f"header field blocks is {_short(self.blocks)}; it must be a list of [start, end] pairs")
        spans, at = [], self.prompt_length
        for pair in self.blocks:
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise TraceError(f"header field blocks holds {_short(pair)}; it must hold [start, end] pairs")
            s, e = _int("blocks", pair[0], at, self.length), _int("blocks", pair[1], 0, self.length)
            if e <= s:
                raise TraceError(f"header field blocks holds [{s}, {e}]; a block must end after its start")
            spans.append((s, e))
            at = e
        return tuple(spans)

    @property
    def prompt_length(self) -> int:
        """L_p, positions."""
        return len(self.prompt_ids)

    @property
    def length(self) -> int:
        """L = L_p + L_G, positions."""
        return len(self.prompt_ids) + self.gen_length

    def to_dict(self, *, created: bool = True) -> dict[str, Any]:
        """Plain lists, dicts and numbers; without `created` on request."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out["prompt_ids"], out["eos_ids"] = list(self.prompt_ids), list(self.eos_ids)
        out["blocks"] = [list(b) for b in self.blocks]
        if not created:
            del out["created"]
        return out

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Header:
        """The inverse of `to_dict`. Raises TraceError on unknown, missing or wrong fields."""
        if not isinstance(data, dict):
            raise TraceError(f"the header is {_short(data)}; it must be a table of names and values")
        unknown = sorted(set(map(str, data)) - {f.name for f in fields(cls)})
        if unknown:
            raise TraceError(f"the header has an unknown field {_short(unknown[0])}; it may come from a newer version")
        missing = [n for n in ("method", "prompt_ids", "gen_length", "block_length", "mask_id") if n not in data]
        if missing:
            raise TraceError(f"the header lacks the field {missing[0]}; this is no complete trace")
        return cls(**data)


def check_step(step: Step, header: Header, index: int) -> None:
    """Raise TraceError unless `step` can be pass number `index` of a decode with this header (shapes, ranges, kinds)."""

    def fail(what: str) -> None:
        raise TraceError(f"pass {index}: {what}")

    length, lp, n = header.length, header.prompt_length, header.n_layers
    if step.index != index:
        fail(f"the step says index {step.index}, but the trace holds {index} steps; append every pass in order")
    if not lp <= step.block_start < step.block_end <= length:
        fail(f"block [{step.block_start}, {step.block_end}) lies outside the generation [{lp}, {length})")
    if step.kind not in KINDS:
        fail(f"kind {_short(step.kind)} is none of {', '.join(KINDS)}")
    if step.block < 0 or step.rows < 0:
        fail(f"block {step.block} and rows {step.rows} must not be negative")
    for c in step.commits:
        if not lp <= c.position < length:
            fail(f"a commit at position {c.position} lies outside the generation [{lp}, {length})")
        if not 0 <= c.token < 2**31:
            fail(f"a commit of token {c.token} at position {c.position}; ids run from 0 to {2**31 - 1}")
    for position, token in step.edits:
        if not lp <= position < length or not 0 <= token < 2**31:
            fail(f"an edit puts token {token} at position {position}; positions run from {lp} to {length - 1}, ids from 0")
    size = step.block_end - step.block_start
    for name in ("conf", "argmax", "drift", "delta", "gate"):
        a = getattr(step, name)
        if a is not None and a.shape != (size,):
            fail(f"{name} has shape {a.shape}, but the block has {size} positions")
    shapes = {"packet_rows": (n,), "full_drift": (length,), "staleness": (n, length)}
    for name, shape in shapes.items():
        a = getattr(step, name)
        if a is not None and a.shape != shape:
            fail(f"{name} has shape {a.shape} where {shape} is expected")
    for name in ("candidate_ids", "candidate_probs"):
        a = getattr(step, name)
        if a is not None and (a.ndim != 2 or a.shape[0] != size):
            fail(f"{name} has shape {a.shape}, but the block has {size} positions")
    if step.clusters is not None:
        _check_clusters(step, n, fail)


def _check_clusters(step: Step, n: int, fail: Any) -> None:
    c = step.clusters
    if c.window is not None and c.window.ndim != 1:
        fail(f"clusters.window has shape {c.window.shape}; it must have one dimension")
    w = None if c.window is None else len(c.window)
    if c.labels is not None and (c.labels.ndim != 2 or c.labels.shape[0] != n or (w is not None and c.labels.shape[1] != w)):
        fail(f"clusters.labels has shape {c.labels.shape} where ({n}, {w if w is not None else 'W'}) is expected")
    k = None
    for name in ("counts", "scores", "selected"):
        a = getattr(c, name)
        if a is None:
            continue
        if a.ndim != 2 or a.shape[0] != n or (k is not None and a.shape[1] != k):
            fail(f"clusters.{name} has shape {a.shape} where ({n}, {k if k is not None else 'K'}) is expected")
        k = a.shape[1]
    if c.points is not None and (c.points.ndim != 3 or c.points.shape[0] != n):
        fail(f"clusters.points has shape {c.points.shape} where ({n}, W + K, P) is expected")


class Trace:
    """A header and its steps; NFE = len(trace).

    Attributes: `status` (running, done, stopped, error), `error` (a sentence or None), `notes` (dicts with pass, position, text),
    `vocab` (token id -> {"t": text, "s": 1 if special, "b": hex bytes}: what a file needs to be read without the model),
    `seconds` (decode wall time; None means the last step's `elapsed`).
    """

    def __init__(self, header: Header, steps: Sequence[Step] = ()) -> None:
        self.header = header
        self.steps: list[Step] = []
        self.notes: list[dict[str, Any]] = []
        self.vocab: dict[int, dict[str, Any]] = {}
        self.status = "running"
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
        if not -1 <= passno < max(1, len(self.steps)):
            raise TraceError(f"a note at pass {passno} is outside the trace, which holds passes 0 to {len(self.steps) - 1}")
        if position is not None and not 0 <= position < self.header.length:
            raise TraceError(f"a note at position {position} is outside [0, {self.header.length})")
        entry = {"pass": int(passno), "position": None if position is None else int(position), "text": str(text)}
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
            ids.update(int(t) for t in np.unique(a) if t >= 0)
    return ids


"""A trace read back from its columns: `unpack`, the inverse of `columns.pack`.

Contract: nothing that is given is trusted: `unpack` raises TraceError, in a sentence, when anything is missing, of the wrong type, shape or range.
Nothing here touches a file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .check import check_notes
from .columns import COMMITS, EDITS, FIELDS, SCALARS, TIMES, check_values
from .header import Header, TraceError, short
from .jsonx import DTYPES, decode
from .step import KINDS, Clusters, Commit, ParamChange, Step
from .trace import STATUSES, Trace

MAX_STEPS = 1 << 20


def unpack(
    arrays: Mapping[str, np.ndarray],
    meta: dict[str, Any],
    times: dict[str, Any],
    created: str | None = None,
) -> Trace:
    """The trace that `pack` was given. Raises TraceError when anything is missing, of the wrong type, shape or range."""
    reader = _Reader(arrays, meta)
    header = Header.from_dict(decode(_get(meta, "header", dict), reader.no_array) | ({} if created is None else {"created": created}))
    size = _get(meta, "passes", int)
    if not 0 <= size <= MAX_STEPS:
        raise TraceError(f"the trace says it holds {size} passes; at most {MAX_STEPS} can be read")
    strings = _get(meta, "strings", list)
    if not all(isinstance(s, str) for s in strings):
        raise TraceError("the table of reasons holds something that is no text")

    scalar = {name: reader.take(name, dtype, (size,)) for name, dtype in SCALARS.items()}
    kinds, reasons = scalar["steps/kind"], scalar["steps/reason"]
    commits = reader.ragged("commits", COMMITS, size)
    edits = reader.ragged("edits", EDITS, size)
    _check_index("kind", kinds, len(KINDS))
    _check_index("refresh reason", reasons, len(strings))
    _check_index("commit reason", commits["commits/reason"], len(strings))
    fields = {name: reader.field(name, dtype, ndim, size) for name, (dtype, ndim) in FIELDS.items() if reader.has(name)}
    check_values(arrays, header)
    seconds, elapsed = (reader.take(name, dtype, (size,)) for name, dtype in TIMES.items())
    phases, timed, has = _phases(reader, times, size)
    for name, a in (("seconds", seconds), ("elapsed", elapsed), ("phases", timed)):
        if not np.isfinite(a).all() or (a < 0).any():
            raise TraceError(f"the times in {name} must be finite and not negative")
    beside = _beside(meta, reader, size)

    c = {name.split("/")[1]: a.tolist() for name, a in commits.items() if name != "commits/offsets"}
    e = {name.split("/")[1]: a.tolist() for name, a in edits.items() if name != "edits/offsets"}
    at, ed = commits["commits/offsets"].tolist(), edits["edits/offsets"].tolist()
    s = {name: a.tolist() for name, a in scalar.items()}
    trace = Trace(header)
    for i in range(size):
        changes, extra = beside.get(i, ((), {}))
        step = Step(
            index=i, block=s["steps/block"][i], block_start=s["steps/start"][i], block_end=s["steps/end"][i], kind=KINDS[s["steps/kind"][i]],
            refresh=s["steps/refresh"][i], refresh_reason=strings[s["steps/reason"][i]],
            count_last=None if s["steps/count_last"][i] < 0 else s["steps/count_last"][i],
            count_since=None if s["steps/count_since"][i] < 0 else s["steps/count_since"][i], rows=s["steps/rows"][i],
            commits=[
                Commit(
                    c["position"][j], c["token"][j], c["confidence"][j], strings[c["reason"][j]],
                    c["delta"][j] if c["has"][j] & 1 else None, c["gate"][j] if c["has"][j] & 2 else None,
                )
                for j in range(at[i], at[i + 1])
            ],
            seconds=float(seconds[i]), elapsed=float(elapsed[i]),
            phases={p: float(timed[i, k]) for k, p in enumerate(phases) if has[i, k]},
            changes=[ParamChange(*change) for change in changes], extra=extra,
            edits=[(e["position"][j], e["token"][j]) for j in range(ed[i], ed[i + 1])],
        )  # fmt: skip
        if s["clusters.present"][i]:
            step.clusters = Clusters()
        for name, values in fields.items():
            if values[i] is not None:
                _put(step, name, values[i])
        trace.append(step)
    _status(trace, meta, times, reader)
    return trace


class _Reader:
    """Takes arrays by name, dtype and shape, and complains in a sentence."""

    def __init__(self, arrays: Mapping[str, np.ndarray], meta: dict[str, Any]) -> None:
        self.arrays, self.places = arrays, _get(meta, "arrays", list)

    def has(self, name: str) -> bool:
        return name in self.arrays

    def take(self, name: str, dtype: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
        if name not in self.arrays:
            raise TraceError(f"the array {name} is missing; the file is incomplete")
        a = self.arrays[name]
        if a.dtype != np.dtype(dtype):
            raise TraceError(f"the array {name} holds {a.dtype.name} where {np.dtype(dtype).name} is expected")
        if shape is not None and a.shape != shape:
            raise TraceError(f"the array {name} has shape {a.shape} where {shape} is expected")
        return a

    def offsets(self, name: str, size: int, total: int) -> np.ndarray:
        o = self.take(name, "i8", (size + 1,))
        if o[0] != 0 or o[-1] != total or (np.diff(o) < 0).any():
            raise TraceError(f"the offsets {name} must rise from 0 to {total}, but run from {o[0]} to {o[-1]} or fall on the way")
        return o

    def ragged(self, group: str, columns: Mapping[str, str], size: int) -> dict[str, np.ndarray]:
        first = self.take(next(iter(columns)), next(iter(columns.values())))
        out = {name: self.take(name, dtype, (first.size,)) for name, dtype in columns.items()}
        out[f"{group}/offsets"] = self.offsets(f"{group}/offsets", size, first.size)
        return out

    def field(self, name: str, dtype: str, ndim: int, size: int) -> list[np.ndarray | None]:
        data, shapes = (
            self.take(name, dtype),
            self.take(f"{name}.shape", "i4", (size, ndim)),
        )
        if data.ndim != 1:
            raise TraceError(f"the array {name} has {data.ndim} dimensions where 1 is expected")
        offsets = self.offsets(f"{name}.offsets", size, data.size)
        absent = (shapes < 0).any(axis=1)
        sizes = np.where(absent, 0, np.prod(shapes.astype(object), axis=1, initial=1))  # objects: no overflow
        if (shapes[absent] != -1).any() or (sizes != np.diff(offsets)).any():
            raise TraceError(f"the shapes of {name} do not agree with its offsets")
        flat, at = offsets.tolist(), shapes.tolist()
        return [None if absent[i] else data[flat[i] : flat[i + 1]].reshape(at[i]) for i in range(size)]

    def no_array(self, number: int) -> np.ndarray:
        raise TraceError("an array stands where only JSON values may")

    def loose(self, number: int) -> np.ndarray:
        """Array `number` of the extras; its place is [dtype, shape, offset in the pool of that dtype]."""
        place = self.places[number] if number < len(self.places) else None
        if not isinstance(place, list) or len(place) != 3 or place[0] not in DTYPES or not isinstance(place[1], list):
            raise TraceError(f"the place of extra array {number} is {short(place)}; it must be a dtype, a shape and an offset")
        dtype, shape, offset = place
        if len(shape) > 32 or not all(type(n) is int and 0 <= n < 2**40 for n in [*shape, offset]):
            raise TraceError(f"the place of extra array {number} is {short(place)}; shape and offset must be whole numbers")
        data, size = self.take(f"extra/{dtype}", dtype), math.prod(shape)
        if data.ndim != 1 or offset + size > data.size:
            raise TraceError(f"extra array {number} ends at {offset + size}, but extra/{dtype} holds {data.size} values")
        return data[offset : offset + size].reshape(shape)


def _put(step: Step, name: str, value: np.ndarray) -> None:
    if not name.startswith("clusters."):
        setattr(step, name, value)
    elif step.clusters is None:
        raise TraceError(f"pass {step.index} has {name} but says it has no clusters")
    else:
        setattr(step.clusters, name[9:], value)


def _check_index(what: str, a: np.ndarray, size: int) -> None:
    if a.size and (a.min() < 0 or a.max() >= size):
        raise TraceError(f"a {what} number lies outside its table of {size}")


def _get(table: Any, name: str, kind: type) -> Any:
    value = table.get(name) if isinstance(table, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TraceError(f"the file's {name} is {short(value)}; it must be of type {kind.__name__}")
    return value


def _phases(reader: _Reader, times: dict[str, Any], size: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    names = _get(times, "phases", list)
    if not all(isinstance(n, str) for n in names) or len(set(names)) != len(names):
        raise TraceError("the names of the phases must be different texts")
    return (
        names,
        reader.take("times/phases", "f8", (size, len(names))),
        reader.take("times/has", "?", (size, len(names))),
    )


def _beside(meta: dict[str, Any], reader: _Reader, size: int) -> dict[int, tuple[list[Any], dict[str, Any]]]:
    """Parameter changes and extras by pass."""
    out = {}
    for row in _get(meta, "steps", list):
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], int) or not 0 <= row[0] < size:
            raise TraceError(f"an entry beside the steps is {short(row)}; it must be a pass number, changes and extras")
        changes, extra = decode(row[1], reader.loose), decode(row[2], reader.loose)
        sound = isinstance(changes, list) and all(isinstance(c, list) and len(c) == 3 and isinstance(c[0], str) for c in changes)
        if not sound or not isinstance(extra, dict):
            raise TraceError(f"pass {row[0]} has parameter changes or extras of the wrong form")
        out[row[0]] = (changes, extra)
    return out


def _status(trace: Trace, meta: dict[str, Any], times: dict[str, Any], reader: _Reader) -> None:
    status, error, total = meta.get("status"), meta.get("error"), times.get("seconds")
    if status not in STATUSES or not isinstance(error, (str, type(None))):
        raise TraceError(f"the status is {short(status)}; it must be one of {', '.join(STATUSES)}")
    if total is not None and (isinstance(total, bool) or not isinstance(total, (int, float)) or not 0 <= total < 1e12):
        raise TraceError(f"the decode's seconds are {short(total)}; they must be a number from 0")
    trace.status, trace.error, trace.seconds = status, error, total
    notes = decode(_get(meta, "notes", list), reader.no_array)
    check_notes(notes, len(trace), trace.header.length)
    trace.notes.extend(notes)


def parse(text: str, what: str) -> Any:
    """JSON from a file. Raises TraceError, also on nesting or numbers that Python refuses."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise TraceError(f"{what} is no valid JSON ({short(str(e))}); the file is damaged") from e

"""A trace as columns: arrays concatenated over its S steps, with offsets, and one table of JSON values.

Contract: `pack` and `unpack` are inverses, field by field and bit by bit (None, NaN and empty arrays are three different things);
times live in arrays of their own ("times/..."), so that two equal runs give equal columns apart from those. Nothing here touches
a file. Both raise TraceError on values a trace cannot hold; `unpack` trusts nothing it is given.

Layout, for a field F with values of dtype D:
  F            D [sum of sizes]   the values of every step that has the field, one after the other
  F.offsets    int64 [S + 1]      step i owns F[offsets[i] : offsets[i + 1]]
  F.shape      int32 [S, ndim]    its shape; -1 where the step does not have the field
A field that no step has is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .check import check_notes
from .header import Header, TraceError, short
from .jsonx import DTYPES, decode, encode
from .step import KINDS, Clusters, Commit, ParamChange, Step
from .trace import STATUSES, Trace

MAX_STEPS = 1 << 20
OF_STEP = {
    "packet_rows": ("i4", 1), "conf": ("f4", 1), "argmax": ("i4", 1), "drift": ("f4", 1), "delta": ("f4", 1), "gate": ("f4", 1),
    "candidate_ids": ("i4", 2), "candidate_probs": ("f4", 2), "staleness": ("f4", 2), "full_drift": ("f4", 1),
}  # fmt: skip
OF_CLUSTERS = {
    "window": ("i4", 1),
    "labels": ("u1", 2),
    "counts": ("i4", 2),
    "scores": ("f4", 2),
    "selected": ("?", 2),
    "points": ("f4", 3),
}
FIELDS = OF_STEP | {f"clusters.{name}": spec for name, spec in OF_CLUSTERS.items()}
SCALARS = {
    "steps/block": "i4", "steps/start": "i4", "steps/end": "i4", "steps/kind": "u1", "steps/refresh": "?", "steps/reason": "i4",
    "steps/count_last": "i4", "steps/count_since": "i4", "steps/rows": "i8", "clusters.present": "?",
}  # fmt: skip
COMMITS = {
    "commits/position": "i4", "commits/token": "i4", "commits/confidence": "f8", "commits/reason": "i4", "commits/delta": "f8",
    "commits/gate": "f8", "commits/has": "u1",
}  # fmt: skip
EDITS = {"edits/position": "i4", "edits/token": "i4"}
TIMES = {"times/seconds": "f8", "times/elapsed": "f8"}


def pack(trace: Trace) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, Any]]:
    """Columns of a trace: (arrays, meta, times), where `meta` is JSON without any time and `times` is JSON about times.

    Arrays whose name begins with "times/" hold times, all others none.
    """
    steps, strings = trace.steps, _Strings()
    arrays: dict[str, np.ndarray] = {}

    def column(name: str, dtype: str, values: list[Any]) -> None:
        arrays[name] = _cast(np.asarray(values, None if values else dtype), dtype, name)

    column("steps/block", "i4", [s.block for s in steps])
    column("steps/start", "i4", [s.block_start for s in steps])
    column("steps/end", "i4", [s.block_end for s in steps])
    column("steps/kind", "u1", [KINDS.index(s.kind) for s in steps])
    column("steps/refresh", "?", [bool(s.refresh) for s in steps])
    column("steps/reason", "i4", [strings(s.refresh_reason) for s in steps])
    column(
        "steps/count_last",
        "i4",
        [-1 if s.count_last is None else s.count_last for s in steps],
    )
    column(
        "steps/count_since",
        "i4",
        [-1 if s.count_since is None else s.count_since for s in steps],
    )
    column("steps/rows", "i8", [s.rows for s in steps])
    column("clusters.present", "?", [s.clusters is not None for s in steps])

    commits = [c for s in steps for c in s.commits]
    arrays["commits/offsets"] = _offsets([len(s.commits) for s in steps])
    column("commits/position", "i4", [c.position for c in commits])
    column("commits/token", "i4", [c.token for c in commits])
    column("commits/confidence", "f8", [float(c.confidence) for c in commits])
    column("commits/reason", "i4", [strings(c.reason) for c in commits])
    column(
        "commits/delta",
        "f8",
        [0.0 if c.delta is None else float(c.delta) for c in commits],
    )
    column(
        "commits/gate",
        "f8",
        [0.0 if c.gate is None else float(c.gate) for c in commits],
    )
    column(
        "commits/has",
        "u1",
        [(c.delta is not None) + 2 * (c.gate is not None) for c in commits],
    )
    arrays["edits/offsets"] = _offsets([len(s.edits) for s in steps])
    column("edits/position", "i4", [p for s in steps for p, _ in s.edits])
    column("edits/token", "i4", [t for s in steps for _, t in s.edits])

    for name, (dtype, ndim) in FIELDS.items():
        values = [_field(s, name) for s in steps]
        if any(v is not None for v in values):
            _pack_field(arrays, name, dtype, ndim, values)

    loose: list[np.ndarray] = []
    beside = [
        [
            s.index,
            encode([[c.name, c.old, c.new] for c in s.changes], loose),
            encode(s.extra, loose),
        ]
        for s in steps
        if s.changes or s.extra
    ]
    places = _pool(loose, arrays)

    phases = list(dict.fromkeys(name for s in steps for name in s.phases))
    column("times/seconds", "f8", [float(s.seconds) for s in steps])
    column("times/elapsed", "f8", [float(s.elapsed) for s in steps])
    arrays["times/phases"] = np.array([[s.phases.get(p, 0.0) for p in phases] for s in steps], "<f8").reshape(len(steps), len(phases))
    arrays["times/has"] = np.array([[p in s.phases for p in phases] for s in steps], bool).reshape(len(steps), len(phases))

    meta = {
        "header": encode(trace.header.to_dict(created=False), None),
        "passes": len(steps), "strings": strings.table, "steps": beside, "arrays": places,
        "status": trace.status, "error": trace.error, "notes": encode(trace.notes, None),
    }  # fmt: skip
    check_notes(trace.notes, len(steps), trace.header.length)
    _check_values(arrays, trace.header)
    return arrays, meta, {"phases": phases, "seconds": trace._seconds}


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
    _check_values(arrays, header)
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


class _Strings:
    """Text -> its number in a table, in order of first use."""

    def __init__(self) -> None:
        self.table: list[str] = []
        self._at: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        if not isinstance(text, str):
            raise TraceError(f"a reason is {short(text)}; it must be text")
        if text not in self._at:
            self._at[text] = len(self.table)
            self.table.append(text)
        return self._at[text]


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


def _pool(loose: list[np.ndarray], arrays: dict[str, np.ndarray]) -> list[list[Any]]:
    """Lay the extras' arrays one after the other, a pool for each dtype; returns their places."""
    pools: dict[str, list[np.ndarray]] = {}
    places, ends = [], {}
    for a in loose:
        name = a.dtype.name
        pools.setdefault(name, []).append(a.reshape(-1))
        places.append([name, list(a.shape), ends.get(name, 0)])
        ends[name] = ends.get(name, 0) + a.size
    arrays.update({f"extra/{name}": np.concatenate(parts) for name, parts in pools.items()})
    return places


def _field(step: Step, name: str) -> np.ndarray | None:
    if name.startswith("clusters."):
        return None if step.clusters is None else getattr(step.clusters, name[9:])
    return getattr(step, name)


def _put(step: Step, name: str, value: np.ndarray) -> None:
    if not name.startswith("clusters."):
        setattr(step, name, value)
    elif step.clusters is None:
        raise TraceError(f"pass {step.index} has {name} but says it has no clusters")
    else:
        setattr(step.clusters, name[9:], value)


def _pack_field(
    arrays: dict[str, np.ndarray],
    name: str,
    dtype: str,
    ndim: int,
    values: list[np.ndarray | None],
) -> None:
    flat = []
    shapes = np.full((len(values), ndim), -1, "<i4")
    for i, v in enumerate(values):
        if v is not None:
            if v.ndim != ndim:
                raise TraceError(f"pass {i}: {name} has {v.ndim} dimensions where {ndim} are expected")
            shapes[i] = v.shape
            flat.append(_cast(v, dtype, name).reshape(-1))
    arrays[name] = np.concatenate(flat)
    arrays[f"{name}.shape"] = shapes
    arrays[f"{name}.offsets"] = _offsets([0 if v is None else v.size for v in values])


def _offsets(sizes: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes, dtype="<i8")]).astype("<i8")


def _cast(a: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """`a` as little-endian `dtype`; integers must fit, kinds must agree (a float may lose precision, never its kind)."""
    want = np.dtype(dtype).newbyteorder("<")
    if a.dtype == want:
        return a
    kinds = {"f": "f", "i": "iu", "u": "iu", "b": "b"}
    if a.dtype.kind not in kinds[want.kind]:
        raise TraceError(f"{name} holds {a.dtype.name} values where {want.name} is expected")
    if want.kind in "iu" and a.size and (a.min() < np.iinfo(want).min or a.max() > np.iinfo(want).max):
        raise TraceError(f"{name} holds values from {a.min()} to {a.max()}, which do not fit {want.name}")
    return a.astype(want)


def _check_index(what: str, a: np.ndarray, size: int) -> None:
    if a.size and (a.min() < 0 or a.max() >= size):
        raise TraceError(f"a {what} number lies outside its table of {size}")


def _check_values(arrays: Mapping[str, np.ndarray], header: Header) -> None:
    """Ranges of values that `check_step` does not look at."""
    top = 2**31 - 1
    ranges = {
        "argmax": (-1, top), "candidate_ids": (-1, top), "packet_rows": (0, header.length), "clusters.window": (0, header.length - 1),
        "clusters.counts": (0, header.length), "commits/token": (0, top), "edits/token": (0, top), "steps/count_last": (-1, top),
        "steps/count_since": (-1, top), "steps/rows": (0, 2**53), "commits/has": (0, 3),
        "commits/position": (header.prompt_length, header.length - 1), "edits/position": (header.prompt_length, header.length - 1),
    }  # fmt: skip
    for name, (low, high) in ranges.items():
        a = arrays.get(name)
        if a is not None and a.size and (a.min() < low or a.max() > high):
            raise TraceError(f"{name} holds values from {a.min()} to {a.max()}; they must lie in [{low}, {high}]")


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

"""A trace as columns: arrays concatenated over its S steps, with offsets, and one table of JSON values.

Contract: `pack` and `unpacking.unpack` are inverses, field by field and bit by bit (None, NaN and empty arrays are three different things);
times live in arrays of their own ("times/..."), so that two equal runs give equal columns apart from those. Nothing here touches
a file. Both raise TraceError on values a trace cannot hold.

Layout, for a field F with values of dtype D:
  F            D [sum of sizes]   the values of every step that has the field, one after the other
  F.offsets    int64 [S + 1]      step i owns F[offsets[i] : offsets[i + 1]]
  F.shape      int32 [S, ndim]    its shape; -1 where the step does not have the field
A field that no step has is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .check import check_notes
from .header import Header, TraceError, short
from .jsonx import encode
from .step import KINDS, Step
from .trace import Trace

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
    check_values(arrays, trace.header)
    return arrays, meta, {"phases": phases, "seconds": trace._seconds}


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


def check_values(arrays: Mapping[str, np.ndarray], header: Header) -> None:
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

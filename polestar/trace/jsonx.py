"""JSON that keeps what plain JSON loses: NaN and infinities, numpy arrays, tables with keys that are no text.

Contract: `decode(encode(x)) == x` for text, numbers, booleans, None, lists, dicts and numpy arrays of plain dtypes (tuples become
lists, numpy scalars Python numbers). Tags: {"$float": "nan"}, {"$array": number} (the array itself is kept apart), and
{"$table": [[key, value], ...]} for dicts whose keys are no text or begin with "$".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .header import TraceError, short

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
MAX_DEPTH = 64


def encode(value: Any, arrays: list[np.ndarray] | None, depth: int = 0) -> Any:
    """`value` as plain JSON; numpy arrays are appended to `arrays` (None: not allowed). Raises TraceError on anything else."""
    if depth > MAX_DEPTH:
        raise TraceError(f"a value is nested more than {MAX_DEPTH} deep; keep what a log holds flat")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, (list, tuple)):
        return [encode(v, arrays, depth + 1) for v in value]
    if isinstance(value, dict):
        if all(isinstance(k, str) and not k.startswith("$") for k in value):
            return {k: encode(value[k], arrays, depth + 1) for k in sorted(value)}  # the order of arrays must not depend on that of keys
        return {"$table": [[encode(k, None, depth + 1), encode(v, arrays, depth + 1)] for k, v in value.items()]}
    if isinstance(value, np.ndarray) and arrays is not None and value.dtype.name in DTYPES:
        arrays.append(np.array(value, dtype=value.dtype.newbyteorder("<"), order="C"))  # keeps 0 dimensions, which ascontiguousarray does not
        return {"$array": len(arrays) - 1}
    raise TraceError(f"a value of type {type(value).__name__} ({short(value)}) cannot be kept in a trace; use JSON values or numpy arrays")


def decode(value: Any, array: Callable[[int], np.ndarray]) -> Any:
    """The inverse of `encode`; `array` gives the array of a number. Raises TraceError on a tag that is not understood."""
    if isinstance(value, list):
        return [decode(v, array) for v in value]
    if not isinstance(value, dict):
        return value
    if not any(k.startswith("$") for k in value):
        return {k: decode(v, array) for k, v in value.items()}
    if len(value) == 1:
        tag, inner = next(iter(value.items()))
        if tag == "$float" and inner in ("nan", "inf", "-inf"):
            return float(inner)
        if tag == "$array" and isinstance(inner, int) and inner >= 0:
            return array(inner)
        if tag == "$table" and isinstance(inner, list) and all(isinstance(p, list) and len(p) == 2 for p in inner):
            pairs = [(decode(k, array), decode(v, array)) for k, v in inner]
            if not any(isinstance(k, (list, dict)) for k, _ in pairs):
                return dict(pairs)
    raise TraceError(f"the entry {short(value)} is not understood; it may come from a newer version")

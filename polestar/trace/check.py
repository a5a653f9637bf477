"""Does a step fit its trace? Shapes, ranges and kinds, checked as a step comes in and as a file is read.

Contract: cheap (no array is scanned, a few microseconds a pass); raises TraceError naming the pass, or returns None.
"""

from __future__ import annotations

from typing import Any

from .header import Header, TraceError, short
from .step import KINDS, Step


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
        fail(f"kind {short(step.kind)} is none of {', '.join(KINDS)}")
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


def check_notes(notes: list[Any], passes: int, length: int) -> None:
    """Raise TraceError unless every note has a pass of the trace, a text, and a position or None."""
    for n in notes:
        if not isinstance(n, dict) or not isinstance(n.get("text"), str) or type(n.get("pass")) is not int:
            raise TraceError(f"a note is {short(n)}; it must have a pass and a text")
        position = n.get("position")
        if not -1 <= n["pass"] < max(1, passes) or not (position is None or (type(position) is int and 0 <= position < length)):
            raise TraceError(f"a note stands at pass {n['pass']}, position {position}, outside {passes} passes of {length} positions")

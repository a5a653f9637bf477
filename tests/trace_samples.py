"""Traces for the tests of the log: a small one by hand, a full one with every field, and hypothesis strategies."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from polestar.trace import KINDS, Clusters, Commit, Header, ParamChange, Step, Trace


def header(**changes) -> Header:
    values = {
        "method": "polestar", "title": "Polestar", "prompt_ids": [7, 8], "gen_length": 8, "block_length": 4, "mask_id": 1, "eos_ids": [0],
        "blocks": [[2, 6], [6, 10]], "n_layers": 2, "n_heads": 3, "model": "scripted", "config": {"tau_s": 0.9, "tau_upd": float("inf")},
        "seed": 3, "versions": {"polestar": "0"}, "prompt_text": "hé\n${x} <b>",
    }  # fmt: skip
    return Header(**(values | changes))


def answer(ids=(5, 5, 4, 6, 5, 0, 0, 0), passes=4, seconds=2.0, **changes) -> Trace:
    """Commits `ids` in equal shares over `passes` passes; the scripted answer of the metrics table."""
    h = header(**changes)
    trace, per, lp = Trace(h), len(ids) // passes, h.prompt_length
    for i in range(passes):
        s = lp + (i * per // h.block_length) * h.block_length
        commits = [Commit(lp + j, ids[j], 0.95, "confidence") for j in range(i * per, (i + 1) * per)]
        trace.append(Step(
            index=i, block=(s - lp) // h.block_length, block_start=s, block_end=s + h.block_length, kind="entry-full" if i % 2 == 0 else "within",
            rows=10 if i % 2 == 0 else 4, commits=commits, seconds=seconds / passes, elapsed=seconds * (i + 1) / passes,
        ))  # fmt: skip
    trace.status = "done"
    return trace


def full_trace(passes: int = 70, seed: int = 0, level: str = "full", n: int = 2, K: int = 3) -> Trace:
    """A trace in which every field of `Step` occurs, with blocks of 8 (the last one 4 long) after a prompt of 5."""
    r = np.random.default_rng(seed)
    h = header(prompt_ids=[7, 8, 9, 3, 2], gen_length=20, block_length=8, blocks=[[5, 13], [13, 21], [21, 25]], n_layers=n, level=level)
    trace = Trace(h)

    def f(*shape):
        return r.standard_normal(shape).astype(np.float32)

    for i in range(passes):
        b = min(2, 3 * i // passes)
        s, e = h.blocks[b]
        entry = i in (0, -(-passes // 3), -(-2 * passes // 3))
        w = np.array([j for j in range(max(0, s - 6), min(25, e + 4)) if not s <= j < e], np.int32)
        conf = f(e - s)
        conf[0] = np.nan
        clusters = None
        if entry:
            labels, counts = r.integers(0, K, (n, len(w))).astype(np.uint8), r.integers(0, 9, (n, K)).astype(np.int32)
            clusters = Clusters(window=w, labels=labels, counts=counts, points=f(n, len(w) + K, 2))
        elif i % 3 == 0:
            clusters = Clusters(scores=f(n, K), selected=r.random((n, K)) < 0.5)
        trace.append(Step(
            index=i, block=b, block_start=s, block_end=e, kind="entry-full" if entry and b % 2 == 0 else "entry-window" if entry else "within",
            refresh=i % 3 == 0 and not entry, refresh_reason="N = 4 > τ_upd = 3" if i % 3 == 0 else "", count_last=None if entry else i % 4,
            count_since=None if entry else i % 7, rows=25 if entry else e - s,
            packet_rows=r.integers(0, 9, n).astype(np.int32) if i % 3 == 0 else None,
            commits=[Commit(int(r.integers(s, e)), int(r.integers(0, 9)), float(r.random()), "drift", 0.1 + 0.2, float("nan"))] if i % 2 else
                    [Commit(s, 4, 0.25, "forced"), Commit(24, 6, 1.0, "suffix", None, 0.0)],
            conf=conf, argmax=r.integers(-1, 9, e - s).astype(np.int32), drift=None if entry else f(e - s), delta=None if entry else f(e - s),
            gate=None if entry else f(e - s), clusters=clusters, candidate_ids=r.integers(0, 9, (e - s, 5)).astype(np.int32),
            candidate_probs=f(e - s, 5), staleness=f(n, 25) if level == "full" else None, full_drift=f(25) if level == "full" else None,
            seconds=0.01, elapsed=0.01 * (i + 1), phases={"attention": 0.004, "log": 0.001} if i % 2 else {"head": 0.5},
            changes=[ParamChange("tau_upd", 3, float("inf"))] if i == 9 else [], edits=[(24, 3)] if i == 11 else [],
            extra={"pool": np.arange(6, dtype=np.int16).reshape(2, 3), "why": {"x": [1, None, float("nan"), "é"]}} if i % 10 == 4 else {},
        ))  # fmt: skip
    trace.status = "stopped"
    trace.vocab = {1: {"t": "[MASK]", "s": 1}, 4: {"t": "\ufffd", "b": "e2"}, 6: {"t": "${HOME} <img src=x onerror=alert(1)> {{value}}"}}
    return trace


def same(a, b) -> bool:
    """Equality down to dtype, NaN and None, for everything a trace holds."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b


def same_trace(a: Trace, b: Trace) -> bool:
    return all(same(getattr(a, name), getattr(b, name)) for name in ("header", "steps", "notes", "status", "error", "vocab", "_seconds"))


_text = st.text(st.characters(exclude_categories=()), max_size=8)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text | st.integers(), inner, max_size=3),
    max_leaves=6,
)
_loose = st.sampled_from(["bool", "int8", "uint16", "int64", "uint64", "float16", "float64"]).flatmap(
    lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)


def _array(dtype, shape, low=None, high=None):
    elements = {"float32": st.floats(width=32), "bool": st.booleans()}.get(dtype)
    return st.none() | hnp.arrays(dtype, shape, elements=st.integers(low, high) if elements is None else elements, fill=st.nothing())


@st.composite
def traces(draw) -> Trace:
    """Any sound trace: every optional field present or absent at will."""
    lp, gen, block = draw(st.integers(0, 4)), draw(st.integers(1, 9)), draw(st.integers(1, 4))
    n, K, W, C = (draw(st.integers(low, 4)) for low in (1, 0, 0, 0))
    length = lp + gen
    blocks = [[s, min(s + block, length)] for s in range(lp, length, block)]
    trace = Trace(header(
        prompt_ids=draw(st.lists(st.integers(0, 9), min_size=lp, max_size=lp)), gen_length=gen, block_length=block, blocks=blocks, n_layers=n,
        config=draw(st.dictionaries(_text, _json, max_size=3)), title=draw(_text), prompt_text=draw(st.none() | _text),
        seed=draw(st.none() | st.integers(-(2**63), 2**64 - 1)), parent=draw(st.none() | st.dictionaries(_text, _json, max_size=2)),
    ))  # fmt: skip
    real, token, count = st.floats(), st.integers(0, 2**31 - 1), st.none() | st.integers(0, 99)
    position = st.integers(lp, length - 1)
    for i in range(draw(st.integers(0, 5))):
        b = draw(st.integers(0, len(blocks) - 1))
        s, e = blocks[b]
        commits = st.builds(Commit, position, token, real, _text, st.none() | real, st.none() | real)
        clusters = st.builds(
            Clusters, window=_array("int32", (W,), 0, length - 1), labels=_array("uint8", (n, W), 0, 255), counts=_array("int32", (n, K), 0, length),
            scores=_array("float32", (n, K)), selected=_array("bool", (n, K)), points=_array("float32", (n, W + K, 2)),
        )  # fmt: skip
        trace.append(Step(
            index=i, block=b, block_start=s, block_end=e, kind=draw(st.sampled_from(KINDS)), refresh=draw(st.booleans()),
            refresh_reason=draw(_text), count_last=draw(count), count_since=draw(count), rows=draw(st.integers(0, 2**40)),
            packet_rows=draw(_array("int32", (n,), 0, length)), commits=draw(st.lists(commits, max_size=3)),
            conf=draw(_array("float32", (e - s,))), argmax=draw(_array("int32", (e - s,), -1, 2**31 - 1)), drift=draw(_array("float32", (e - s,))),
            delta=draw(_array("float32", (e - s,))), gate=draw(_array("float32", (e - s,))), clusters=draw(st.none() | clusters),
            candidate_ids=draw(_array("int32", (e - s, C), -1, 99)), candidate_probs=draw(_array("float32", (e - s, C))),
            staleness=draw(_array("float32", (n, length))), full_drift=draw(_array("float32", (length,))),
            seconds=draw(st.floats(0, 1e6)), elapsed=draw(st.floats(0, 1e6)), phases=draw(st.dictionaries(_text, st.floats(0, 1e6), max_size=3)),
            changes=draw(st.lists(st.builds(ParamChange, _text, _json, _json), max_size=2)), edits=draw(st.lists(st.tuples(position, token), max_size=2)),
            extra=draw(st.dictionaries(_text, _json | _loose, max_size=3)),
        ))  # fmt: skip
    if len(trace):
        note = st.fixed_dictionaries({"pass": st.integers(0, len(trace) - 1), "position": st.none() | position, "text": _text})
        trace.notes = draw(st.lists(note, max_size=2))
    trace.status = draw(st.sampled_from(["running", "done", "stopped", "error"]))
    trace.seconds = draw(st.none() | st.floats(0, 1e9))
    return trace

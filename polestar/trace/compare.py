"""Two traces side by side: where they part, what each cost, and which pass of one belongs to which pass of the other.

Contract: pure functions of two traces (A and B). Passes, positions recomputed and wall time are always reported apart, so that
saved passes never hide lost time. Tokens are compared at equal distance from the end of the prompt, over the shorter generation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .header import TraceError
from .trace import Trace

ALIGNMENTS = ("pass", "elapsed", "tokens")
# name, label, where it is better: +1 more, -1 less, 0 neither
ROWS = (
    ("nfe", "passes (NFE)", -1), ("positions", "positions recomputed", -1), ("seconds", "seconds", -1), ("tpf", "TPF", 1), ("tps", "TPS", 1),
    ("tpf_all", "TPF, all positions", 1), ("tps_all", "TPS, all positions", 1), ("rows", "rows of main passes", -1),
    ("packet_rows", "rows of update packets", -1), ("rows_per_token", "rows per token", -1), ("refreshes", "refreshes", 0),
    ("non_eos", "tokens, [EOS] not counted", 0),
)  # fmt: skip


def differing(a: Trace, b: Trace) -> list[dict[str, Any]]:
    """Every generated position whose final token differs, in order of position.

    Each entry: index (distance from the end of the prompt), position_a, position_b (absolute), token_a, token_b, pass_a, pass_b (the
    pass that put the token there; None where the position still holds [MASK]), commit_a, commit_b (the `Commit` or None).
    """
    ta, tb = a.tokens, b.tokens
    n = min(len(ta), len(tb))
    ca, cb = _final_commits(a), _final_commits(b)
    la, lb = a.header.prompt_length, b.header.prompt_length
    out = []
    for j in np.flatnonzero(ta[:n] != tb[:n]).tolist():
        pass_a, commit_a = ca.get(la + j, (None, None))
        pass_b, commit_b = cb.get(lb + j, (None, None))
        out.append({
            "index": j, "position_a": la + j, "position_b": lb + j, "token_a": int(ta[j]), "token_b": int(tb[j]),
            "pass_a": pass_a, "pass_b": pass_b, "commit_a": commit_a, "commit_b": commit_b,
        })  # fmt: skip
    return out


def first_divergence(a: Trace, b: Trace, *, by: str = "position") -> dict[str, Any] | None:
    """The first entry of `differing`, or None when all common tokens are equal.

    `by` "position": first in the text. `by` "pass": first in time, that is the one whose earlier side was committed in the lowest
    pass (then by position). Raises TraceError on another `by`.
    """
    if by not in ("position", "pass"):
        raise TraceError(f"first divergence by {by!r} is not known; use 'position' or 'pass'")
    entries = differing(a, b)
    if not entries:
        return None
    if by == "position":
        return entries[0]
    return min(
        entries,
        key=lambda e: (
            min(p for p in (e["pass_a"], e["pass_b"], 2**31) if p is not None),
            e["index"],
        ),
    )


def compare_traces(a: Trace, b: Trace, tokenizer: Any = None) -> dict[str, Any]:
    """Everything about a pair: metrics_a, metrics_b, table, sentences, differing (entries), equal (fraction of common positions),
    first (in the text), first_in_time, warnings (why the pair may not be comparable)."""
    ma, mb = a.metrics(tokenizer), b.metrics(tokenizer)
    entries = differing(a, b)
    common = min(a.header.gen_length, b.header.gen_length)
    return {
        "metrics_a": ma, "metrics_b": mb, "table": ratio_table(ma, mb), "sentences": sentences(ma, mb),
        "differing": entries, "equal": 1 - len(entries) / common,
        "first": entries[0] if entries else None, "first_in_time": first_divergence(a, b, by="pass"),
        "warnings": warnings(a, b),
    }  # fmt: skip


def ratio_table(ma: dict[str, Any], mb: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows {name, label, a, b, ratio (a / b; None when it does not exist), better ("A", "B", "equal" or None)} from two metrics."""
    out = []
    for name, label, good in ROWS:
        va, vb = _value(ma, name), _value(mb, name)
        ratio = va / vb if va is not None and vb else None
        better = None
        if good and va is not None and vb is not None:
            better = "equal" if va == vb else "A" if (va > vb) == (good > 0) else "B"
        out.append(
            {
                "name": name,
                "label": label,
                "a": va,
                "b": vb,
                "ratio": ratio,
                "better": better,
            }
        )
    return out


def sentences(ma: dict[str, Any], mb: dict[str, Any]) -> list[str]:
    """Passes, positions recomputed and wall time, one sentence each, and a fourth where they point different ways."""
    out, sides = [], {}
    for name, words in (
        ("nfe", "passes"),
        ("positions", "positions recomputed"),
        ("seconds", "wall time"),
    ):
        va, vb = _value(ma, name), _value(mb, name)
        if not va or not vb:
            out.append(f"{words}: A {_show(va)}, B {_show(vb)}; no ratio exists.")
            continue
        sides[words] = r = va / vb
        out.append(f"{words}: A {_show(va)}, B {_show(vb)}; A / B = {r:.2f}.")
    time = sides.get("wall time")
    saved = [w for w, r in sides.items() if w != "wall time" and r < 0.995]
    if time is not None and time > 1.005 and saved:
        out.append(f"A saves {' and '.join(saved)} and is still slower: {time:.2f} x the wall time of B.")
    if time is not None and time < 0.995 and any(r > 1.005 for w, r in sides.items() if w != "wall time"):
        worse = [w for w, r in sides.items() if w != "wall time" and r > 1.005]
        out.append(f"A spends more {' and '.join(worse)} and is still faster: {time:.2f} x the wall time of B.")
    return out


def warnings(a: Trace, b: Trace) -> list[str]:
    """Sentences that say why two traces may not be comparable; empty when nothing stands against it."""
    ha, hb, out = a.header, b.header, []
    for name, words in (
        ("model", "models"),
        ("revision", "model revisions"),
        ("device", "devices"),
        ("dtype", "number formats"),
    ):
        va, vb = getattr(ha, name), getattr(hb, name)
        if va != vb:
            out.append(f"The {words} differ ({va} and {vb}).")
    if ha.prompt_ids != hb.prompt_ids:
        out.append("The prompts differ.")
    if ha.gen_length != hb.gen_length:
        out.append(f"The generation lengths differ ({ha.gen_length} and {hb.gen_length}); only the first {min(ha.gen_length, hb.gen_length)} are compared.")
    if ha.seed != hb.seed:
        out.append(f"The seeds differ ({ha.seed} and {hb.seed}).")
    if ha.level != hb.level:
        out.append(f"The log levels differ ({ha.level} and {hb.level}), so the times cannot be compared.")
    for lane, t in (("A", a), ("B", b)):
        if not t.complete:
            out.append(f"{lane} stopped before every position was filled.")
        if t.header.level == "full":
            out.append(f"{lane} was recorded at the level full, whose speed says nothing about the method.")
    return out


def align(a: Trace, b: Trace, by: str = "pass") -> dict[str, np.ndarray]:
    """Which passes belong together: x [n], a int [n], b int [n].

    `by` "pass": x is the pass number. "elapsed": seconds since each decode began. "tokens": positions committed so far. At x, a[i] and
    b[i] are the last passes that had ended; -1 before the first, and the last pass once a side has finished. Raises TraceError.
    """
    if by not in ALIGNMENTS:
        raise TraceError(f"alignment by {by!r} is not known; use one of {', '.join(ALIGNMENTS)}")
    ka, kb = _keys(a, by), _keys(b, by)
    x = np.unique(np.concatenate([ka, kb]))
    return {
        "x": x,
        "a": np.searchsorted(ka, x, side="right") - 1,
        "b": np.searchsorted(kb, x, side="right") - 1,
    }


def _keys(t: Trace, by: str) -> np.ndarray:
    if by == "pass":
        return np.arange(len(t), dtype=np.float64)
    if by == "elapsed":
        values = np.array([s.elapsed for s in t], np.float64)
    else:
        values = np.cumsum([len(s.commits) for s in t], dtype=np.float64)
    return np.maximum.accumulate(values) if len(values) else values


def _final_commits(t: Trace) -> dict[int, tuple[int, Any]]:
    """Position -> (pass, commit) of the commit that put its present token there."""
    out: dict[int, tuple[int, Any]] = {}
    for s in t:
        for position, _ in s.edits:  # put there by hand: no commit
            out.pop(position, None)
        out.update((c.position, (s.index, c)) for c in s.commits if c.token != t.header.mask_id)
    return out


def _value(m: dict[str, Any], name: str) -> float | None:
    if name == "positions":
        return None if m["packet_rows"] is None else m["rows"] + m["packet_rows"]
    return m.get(name)


def _show(v: float | None) -> str:
    return "n/a" if v is None else f"{v:,.0f}" if float(v).is_integer() else f"{v:,.3g}"

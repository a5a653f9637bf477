"""A trace as tidy tables, one observation a row, and their export as CSV or Parquet.

Contract: pandas is imported when a table is first asked for. What does not exist is missing (NA), never 0. Column names are the
log's; positions are absolute.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .header import TraceError
from .trace import Trace
from .wire import plain

FORMATS = ("csv", "parquet")


def to_pandas(trace: Trace) -> dict[str, Any]:
    """Tables (pandas DataFrames):

    steps     one row a pass: pass, block, block_start, block_end, kind, refresh, refresh_reason, count_last, count_since, rows,
              packet_rows (summed over layers / n_layers), committed, committed_total, seconds, elapsed, phase_<name>, changes
    commits   one row a commit: pass, block, position, generated (position - L_p), token, text, confidence, reason, delta, gate
    drift     one row a pass and block position: pass, block, position, conf, argmax, drift, delta, gate
    clusters  one row a pass, layer and cluster: pass, layer, cluster, count, score, selected
    members   one row a pass, layer and window position: pass, layer, position, cluster
    """
    return {
        "steps": _steps(trace), "commits": _commits(trace), "drift": _drift(trace), "clusters": _clusters(trace), "members": _members(trace),
    }  # fmt: skip


def export_tables(trace: Trace, folder: str | os.PathLike, fmt: str = "csv", codec: Any = None) -> list[Path]:
    """Write every table as <folder>/<name>.<fmt>, and run.json with the header and the metrics. Returns the paths.

    Each file appears whole or not at all. Raises TraceError on another format or when the folder cannot be written.
    """
    if fmt not in FORMATS:
        raise TraceError(f"tables cannot be written as {fmt!r}; use one of {', '.join(FORMATS)}")
    folder = Path(folder)
    about = plain(
        {
            "header": trace.header.to_dict(),
            "status": trace.status,
            "notes": trace.notes,
            "metrics": trace.metrics(codec),
        }
    )
    text = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [_whole(folder / "run.json", lambda p: p.write_text(text, encoding="utf-8"))]
        for name, table in to_pandas(trace).items():
            write = (lambda p, t=table: t.to_csv(p, index=False)) if fmt == "csv" else (lambda p, t=table: t.to_parquet(p, index=False))
            paths.append(_whole(folder / f"{name}.{fmt}", write))
    except OSError as e:
        raise TraceError(f"cannot write the tables to {folder}: {e.strerror or e}; choose a folder that may be written to") from e
    return paths


def _whole(path: Path, write: Callable[[Path], Any]) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _steps(trace: Trace) -> Any:
    import pandas as pd

    total, rows = 0, []
    for s in trace:
        total += len(s.commits)
        packets = None if s.packet_rows is None else float(s.packet_rows.sum(dtype=np.int64)) / trace.header.n_layers
        rows.append({
            "pass": s.index, "block": s.block, "block_start": s.block_start, "block_end": s.block_end, "kind": s.kind,
            "refresh": s.refresh, "refresh_reason": s.refresh_reason or None, "count_last": s.count_last, "count_since": s.count_since,
            "rows": s.rows, "packet_rows": packets, "committed": len(s.commits), "committed_total": total,
            "seconds": s.seconds, "elapsed": s.elapsed, **{f"phase_{name}": v for name, v in s.phases.items()},
            "changes": json.dumps(plain([[c.name, c.old, c.new] for c in s.changes])) if s.changes else None,
        })  # fmt: skip
    names = [
        "pass",
        "block",
        "block_start",
        "block_end",
        "kind",
        "refresh",
        "refresh_reason",
        "count_last",
        "count_since",
        "rows",
    ]
    names += [
        "packet_rows",
        "committed",
        "committed_total",
        "seconds",
        "elapsed",
        "changes",
    ]
    names += list(dict.fromkeys(k for r in rows for k in r if k.startswith("phase_")))
    table = pd.DataFrame(rows, columns=names)
    kinds = {
        "count_last": "Int64",
        "count_since": "Int64",
        "packet_rows": "Float64",
        "kind": "string",
        "refresh_reason": "string",
    }
    return table.astype(kinds | {"changes": "string"})


def _commits(trace: Trace) -> Any:
    import pandas as pd

    lp = trace.header.prompt_length
    rows = [
        (
            s.index,
            s.block,
            c.position,
            c.position - lp,
            c.token,
            trace.vocab.get(c.token, {}).get("t"),
            c.confidence,
            c.reason,
            c.delta,
            c.gate,
        )
        for s in trace
        for c in s.commits
    ]
    names = [
        "pass",
        "block",
        "position",
        "generated",
        "token",
        "text",
        "confidence",
        "reason",
        "delta",
        "gate",
    ]
    table = pd.DataFrame(rows, columns=names)
    return table.astype(
        {
            "text": "string",
            "reason": "string",
            "confidence": "float64",
            "delta": "Float64",
            "gate": "Float64",
        }
    )


def _drift(trace: Trace) -> Any:
    import pandas as pd

    names = ("conf", "argmax", "drift", "delta", "gate")
    parts: dict[str, list[np.ndarray]] = {n: [] for n in ("pass", "block", "position", *names)}
    for s in trace:
        values = [getattr(s, n) for n in names]
        if all(v is None for v in values):
            continue
        size = s.block_end - s.block_start
        parts["pass"].append(np.full(size, s.index))
        parts["block"].append(np.full(size, s.block))
        parts["position"].append(np.arange(s.block_start, s.block_end))
        for n, v in zip(names, values, strict=True):
            empty = np.full(size, -1, np.int64) if n == "argmax" else np.full(size, np.nan, np.float32)
            parts[n].append(empty if v is None else v)
    kinds = {n: np.float32 if n in ("conf", "drift", "delta", "gate") else np.int64 for n in parts}
    table = pd.DataFrame({n: _join(p, kinds[n]) for n, p in parts.items()})
    table["argmax"] = table["argmax"].astype("Int64").mask(table["argmax"] < 0)  # -1 means: was not masked
    return table


def _clusters(trace: Trace) -> Any:
    import pandas as pd

    names = ("pass", "layer", "cluster", "count", "score", "selected")
    parts: dict[str, list[np.ndarray]] = {n: [] for n in names}
    for s in trace:
        c = s.clusters
        first = None if c is None else next((a for a in (c.counts, c.scores, c.selected) if a is not None), None)
        if first is None:
            continue
        n, k = first.shape
        parts["pass"].append(np.full(n * k, s.index))
        parts["layer"].append(np.repeat(np.arange(n), k))
        parts["cluster"].append(np.tile(np.arange(k), n))
        parts["count"].append(np.full(n * k, -1) if c.counts is None else c.counts.reshape(-1))
        parts["score"].append(np.full(n * k, np.nan, np.float32) if c.scores is None else c.scores.reshape(-1))
        parts["selected"].append(np.full(n * k, -1) if c.selected is None else c.selected.reshape(-1))
    table = pd.DataFrame({n: _join(p, np.float32 if n == "score" else np.int64) for n, p in parts.items()})
    table["count"] = table["count"].astype("Int64").mask(table["count"] < 0)
    table["selected"] = table["selected"].astype("Int64").mask(table["selected"] < 0).astype("boolean")
    return table


def _members(trace: Trace) -> Any:
    import pandas as pd

    parts: dict[str, list[np.ndarray]] = {n: [] for n in ("pass", "layer", "position", "cluster")}
    for s in trace:
        c = s.clusters
        if c is None or c.window is None or c.labels is None:
            continue
        n, w = c.labels.shape
        parts["pass"].append(np.full(n * w, s.index))
        parts["layer"].append(np.repeat(np.arange(n), w))
        parts["position"].append(np.tile(c.window, n))
        parts["cluster"].append(c.labels.reshape(-1))
    return pd.DataFrame({n: _join(p, np.int64) for n, p in parts.items()})


def _join(parts: list[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)

"""What a person takes home: the run as an HTML file, a trace, tables.

Contract: each function writes one file at the path it is given, whole, or raises ValueError in one sentence. A run that still goes is exported
up to the pass it has reached.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from pathlib import Path
from typing import Any

SUFFIXES = {"html": ".html", "trace": ".safetensors", "parquet": ".zip"}


def settled(trace: Any) -> Any:
    """The trace, or a copy of what a running one holds now."""
    if trace.status != "running":
        return trace
    copy = trace.prefix(len(trace))
    copy.notes = list(trace.notes)
    copy.status = "stopped"
    return copy


def file_name(what: str, traces: dict[str, Any]) -> str:
    """A name made of the methods, letters and digits of it alone."""
    words = [re.sub(r"[^a-z0-9]+", "-", t.header.method.lower()).strip("-")[:24] or "run" for t in traces.values()]
    return f"polestar-{'-and-'.join(words)}{SUFFIXES[what]}"


def write(what: str, traces: dict[str, Any], path: Path) -> list[str]:
    """Write `traces` (lane -> trace): html takes both lanes, trace and parquet the first. Returns what was left out, in words."""
    traces = {lane: settled(t) for lane, t in traces.items()}
    first = next(iter(traces.values()))
    if what == "html":
        from polestar.trace.html import export_html

        return export_html(traces, path)
    if what == "trace":
        from polestar.trace.file import save

        save(first, path)
    else:
        _tables(first, path)
    return []


def _tables(trace: Any, path: Path) -> None:
    from polestar.trace.frames import export_tables

    with tempfile.TemporaryDirectory() as folder:
        try:
            paths = export_tables(trace, folder, "parquet")
        except ImportError:
            raise ValueError("tables as Parquet need the package pyarrow; install it, or save the trace itself") from None
        with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as z:
            for p in paths:
                z.write(p, p.name)

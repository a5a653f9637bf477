"""A run as one HTML file: opens offline in a browser, scrubs, shows both lanes, and asks nothing of any machine.

Contract: the file holds the page's own modules (assets/js) and style (assets/css), and the messages that `wire.messages` gives,
compressed. The modules come as data URLs under an import map, so that their code is the page's, unchanged but for the names in
import statements. A content security policy forbids every connection. Model text is inside the compressed messages alone, never in
the markup. The same traces give the same file.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .header import TraceError
from .step import Step
from .trace import Trace
from .wire import messages

ASSETS = Path(__file__).resolve().parents[2] / "assets"
MAX_BYTES = 5_000_000
LEAST_SHARE = 0.3  # of the messages' size, that their compressed base64 takes at the very least where figures make up most of it
ENTRY = "main.js"
_IMPORT = re.compile(
    r"""((?:^|[\s;])(?:import|export)\s[^;'"]*?\sfrom\s*|^\s*import\s*|\bimport\s*\(\s*)(['"])\./([\w./-]+\.js)\2""",
    re.MULTILINE,
)

_POLICY = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline' data:; img-src data: blob:; font-src data:"
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="Polestar">
<title>{title}</title>
<style>html, body {{ margin: 0; height: 100%; }} #polestar {{ --ps-height: 100vh; }} #said {{ font: 15px/1.5 system-ui, sans-serif; padding: 2em; }}</style>
<script type="importmap">{imports}</script>
</head>
<body>
<div id="polestar"></div>
<p id="said" hidden></p>
<noscript>This file shows a recorded run and needs JavaScript.</noscript>
<script type="application/octet-stream" id="log">{log}</script>
<script type="module">
const say = (text) => {{ const p = document.getElementById("said"); p.textContent = text; p.hidden = false; }};
try {{
  const {{mount}} = await import("polestar/{entry}");
  const packed = Uint8Array.from(atob(document.getElementById("log").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const lines = (await new Response(stream).text()).split("\\n");
  const page = mount(document.getElementById("polestar"), {{send: () => {{}}, samples: [], style: "{style}"}});
  for (const line of lines) page.receive(line);
  window.polestarPage = page;
}} catch (error) {{
  say("This browser could not open the recorded run (" + error.message + "); use a current Chrome, Edge, Firefox or Safari.");
}}
</script>
</body>
</html>
"""


def export_html(
    traces: Trace | Mapping[str, Trace] | list[Trace],
    path: str | os.PathLike,
    *,
    codec: Any = None,
    assets: Path | None = None,
    limit: int = MAX_BYTES,
) -> list[str]:
    """Write one or two traces (lanes A and B) as one HTML file of at most `limit` bytes.

    Where the whole log would be larger, the heaviest figures of the level `full` are rounded and then left out, in this order:
    rounded to 8 bits of precision, staleness, points, candidates. Returns what was done, as words; the page says it too. Raises
    TraceError, writing nothing, when even the rest is too large, the page's modules are missing, or the file cannot be written.
    """
    path = Path(path)
    text, done = render(traces, codec=codec, assets=assets, limit=limit)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            temporary.write_text(text, encoding="utf-8", newline="\n")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as e:
        raise TraceError(f"cannot write {path}: {e.strerror or e}; choose a folder that exists and may be written to") from e
    return done


def render(
    traces: Trace | Mapping[str, Trace] | list[Trace],
    *,
    codec: Any = None,
    assets: Path | None = None,
    limit: int = MAX_BYTES,
) -> tuple[str, list[str]]:
    """The HTML text and what was done to keep it small; see `export_html`."""
    traces = {"A": traces} if isinstance(traces, Trace) else dict(zip("ABCDEFGH", traces, strict=False)) if isinstance(traces, list) else dict(traces)
    if not 1 <= len(traces) <= 2 or not set(traces) <= {"A", "B"}:
        raise TraceError(f"an HTML file shows lanes A and B, not {', '.join(map(str, traces)) or 'none'}; give one or two traces")
    imports, style = _page(assets or ASSETS)
    title = " and ".join(f"{t.header.title or t.header.method} ({t.header.preset})" for t in traces.values())
    size = 0
    for lighten, done in _LIGHTER:
        lines = messages(traces, codec, run="file", transform=lighten, said=", ".join(done))
        content = "\n".join(lines).encode("utf-8")
        if len(content) * LEAST_SHARE > limit and lighten is not _LIGHTER[-1][0]:
            continue  # not worth compressing: figures never shrink that far
        log = base64.b64encode(gzip.compress(content, 6, mtime=0)).decode("ascii")
        text = _PAGE.format(
            title=html.escape(f"Polestar: {title}"),
            imports=imports,
            style=style,
            log=log,
            entry=ENTRY,
            policy=_POLICY,
        )
        size = len(text.encode("utf-8"))
        if size <= limit:
            return text, list(done)
    raise TraceError(f"the run needs {size} bytes as HTML, and the limit is {limit}; export fewer passes or save the trace itself")


def _page(assets: Path) -> tuple[str, str]:
    """The import map (JSON) with every module that main.js reaches, and the style as a data URL."""
    try:
        style = (assets / "css" / "polestar.css").read_bytes()
        found, todo = {}, [ENTRY]
        while todo:
            name = todo.pop()
            if name in found:
                continue
            source = (assets / "js" / name).read_text(encoding="utf-8")
            todo += [m[3] for m in _IMPORT.finditer(source)]
            found[name] = _IMPORT.sub(lambda m: f"{m[1]}{m[2]}polestar/{m[3]}{m[2]}", source)
    except OSError as e:
        raise TraceError(f"the page's own files are missing ({e.filename}); reinstall Polestar to export HTML") from e
    urls = {f"polestar/{name}": _data("text/javascript", found[name].encode("utf-8")) for name in sorted(found)}
    return json.dumps({"imports": urls}), _data("text/css", style)


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(content).decode('ascii')}"


def _rounded(a: np.ndarray | None) -> np.ndarray | None:
    """float32 with 8 bits of precision (the last 16 bits are 0), which compresses to about half."""
    if a is None:
        return None
    bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
    near = (bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(a), near.view(np.float32), a).astype(np.float32)


def _round(step: Step) -> Step:
    c = step.clusters
    return replace(
        step, staleness=_rounded(step.staleness), full_drift=_rounded(step.full_drift), candidate_probs=_rounded(step.candidate_probs),
        clusters=None if c is None else replace(c, points=_rounded(c.points)),
    )  # fmt: skip


def _no_staleness(step: Step) -> Step:
    return replace(_round(step), staleness=None)


def _no_points(step: Step) -> Step:
    c = step.clusters
    return replace(_no_staleness(step), clusters=None if c is None else replace(c, points=None))


def _no_candidates(step: Step) -> Step:
    return replace(_no_points(step), candidate_ids=None, candidate_probs=None)


_LIGHTER = (
    (None, ()),
    (_round, ("figures rounded",)),
    (_no_staleness, ("figures rounded", "staleness left out")),
    (_no_points, ("figures rounded", "staleness and points left out")),
    (_no_candidates, ("figures rounded", "staleness, points and candidates left out")),
)

"""Serves the page's own files under /polestar/: javascript, style, sample traces. Nothing on the page comes from anywhere else.

Contract: content types are fixed here (a Windows registry may call .js text/plain, and browsers refuse such modules), and browsers are told
to ask whether a file has changed, so that a new version is never mixed with an old one.
"""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

ASSETS = Path(__file__).resolve().parent.parent / "assets"
TYPES = {
    ".js": "text/javascript", ".css": "text/css", ".json": "application/json", ".svg": "image/svg+xml", ".png": "image/png",
    ".md": "text/markdown", ".safetensors": "application/octet-stream",
}  # fmt: skip


class _Files(StaticFiles):
    def file_response(self, full_path, stat_result, scope, status_code=200) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        kind = TYPES.get(Path(full_path).suffix)
        if kind and response.status_code == 200:
            response.headers["content-type"] = kind + ("; charset=utf-8" if kind.startswith("text/") else "")
        response.headers["cache-control"] = "no-cache"
        return response


def routes() -> list[Mount]:
    """Routes for the server: /polestar/js, /polestar/css, ... (the bundled model's weights are not among them)."""
    return [Mount(f"/polestar/{name}", app=_Files(directory=ASSETS / name, check_dir=False)) for name in ("js", "css", "traces", "lessons")]

"""Files that go to and come from the page: exports to fetch, traces that were put in.

Contract: everything lies in one temporary folder that goes when the server ends. A file is reached by a random name that only its tab was told;
no name on disk or in an address is made from what a person or a trace says. An upload is read as a trace before it is kept: what is
no sound trace, or too large, is answered in one sentence and leaves nothing behind.
"""

from __future__ import annotations

import atexit
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

MOST_BYTES = 512 << 20  # of one upload
MOST_UPLOADS = 8  # kept at a time
MOST_EXPORTS = 12  # of one tab
KINDS = {".html": "text/html", ".safetensors": "application/octet-stream", ".zip": "application/zip"}


class Shelf:
    """The files of one server."""

    def __init__(self) -> None:
        self.limit = MOST_BYTES
        self._folder: Path | None = None
        self._lock = threading.Lock()
        self._exports: dict[str, tuple[Any, Path]] = {}  # random name -> (owner, file)
        self._uploads: dict[str, Path] = {}

    def _room(self) -> tuple[str, Path]:
        """A new random name and a folder of that name."""
        with self._lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="polestar-"))
                atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        name = secrets.token_urlsafe(18)
        (self._folder / name).mkdir(mode=0o700)
        return name, self._folder / name

    # ---- exports ------------------------------------------------------------------------------------------------------------

    def put(self, owner: Any, name: str, write: Callable[[Path], Any]) -> str:
        """Have `write` make the file `name`; returns its address, relative to the page. What `write` raises leaves nothing behind."""
        token, room = self._room()
        try:
            write(room / name)
        except BaseException:
            shutil.rmtree(room, ignore_errors=True)
            raise
        with self._lock:
            self._exports[token] = (owner, room / name)
            mine = [t for t, (o, _) in self._exports.items() if o is owner]
            old = [self._exports.pop(t)[1] for t in mine[:-MOST_EXPORTS]]
        for path in old:
            shutil.rmtree(path.parent, ignore_errors=True)
        return f"polestar/files/{token}/{name}"

    def forget(self, owner: Any) -> None:
        """A tab has gone; so do its exports."""
        with self._lock:
            gone = [self._exports.pop(t)[1] for t in [t for t, (o, _) in self._exports.items() if o is owner]]
        for path in gone:
            shutil.rmtree(path.parent, ignore_errors=True)

    async def _serve(self, request: Request) -> Response:
        _, path = self._exports.get(request.path_params["token"], (None, None))
        if path is None or path.name != request.path_params["name"] or not path.is_file():
            return PlainTextResponse("this file is not here any more; export it again", 404)
        headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
        # As an attachment it never runs beside the page, whatever is in it.
        return FileResponse(path, media_type=KINDS[path.suffix], filename=path.name, content_disposition_type="attachment", headers=headers)

    # ---- uploads ------------------------------------------------------------------------------------------------------------

    def uploaded(self, name: str) -> Path | None:
        """The file of an upload; None when there is none of that name (any more)."""
        with self._lock:
            return self._uploads.get(name)

    async def _open(self, request: Request) -> Response:
        if not _same_site(request) or not signed_in(request):
            return JSONResponse({"error": "this page may not open files here; sign in, or reload the page"}, 403)
        told = request.headers.get("content-length", "")
        if told.isdecimal() and int(told) > self.limit:
            return JSONResponse({"error": self._too_large()})
        token, room = self._room()
        path = room / "trace.safetensors"
        try:
            problem = await self._receive(request, path) or await run_in_threadpool(_problem, path)
        except ClientDisconnect:
            problem = "the file did not arrive whole"
        except BaseException:
            shutil.rmtree(room, ignore_errors=True)
            raise
        if problem:
            shutil.rmtree(room, ignore_errors=True)
            return JSONResponse({"error": problem})
        with self._lock:
            self._uploads[token] = path
            old = [self._uploads.pop(t) for t in list(self._uploads)[:-MOST_UPLOADS]]
        for gone in old:
            shutil.rmtree(gone.parent, ignore_errors=True)
        return JSONResponse({"name": token})

    async def _receive(self, request: Request, path: Path) -> str:
        size = 0
        with open(path, "xb") as f:
            async for piece in request.stream():
                size += len(piece)
                if size > self.limit:
                    return self._too_large()
                f.write(piece)
        return ""

    def _too_large(self) -> str:
        return f"cannot open the file: it is larger than {self.limit / 2**20:.0f} MiB; open it at the start with app.py --trace FILE"

    def routes(self) -> list[Route]:
        """POST /polestar/open, GET /polestar/files/..."""
        return [
            Route("/polestar/open", self._open, methods=["POST"]),
            Route("/polestar/files/{token}/{name}", self._serve, methods=["GET"]),
        ]


def _problem(path: Path) -> str:
    """Why a file is no trace that can be shown, in one sentence; "" when it is one."""
    from polestar.trace.file import load
    from polestar.trace.header import TraceError

    try:
        load(path)
    except TraceError as error:
        return str(error).replace(path.name, "the file", 1)
    return ""


def _same_site(request: Request) -> bool:
    """Does the request come from the page itself? Another site's page must not fill this machine's disk."""
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def signed_in(request: Request) -> bool:
    """Is the person signed in, where the app asks for a password?"""
    app = request.scope.get("app")
    if getattr(app, "auth", None) is None:
        return True
    names = (f"access-token-{app.cookie_id}", f"access-token-unsecure-{app.cookie_id}")
    return any(app.tokens.get(request.cookies.get(name)) is not None for name in names)

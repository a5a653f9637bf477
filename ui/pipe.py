"""A stream of its own for the tab whose run is being decoded: server-sent events, one message of the stream a line.

Contract: `GET /polestar/stream/{name}` sends a tab's messages while its run goes on and ends with an event `end`; the name is random and only
the tab was told it (a `pipe` event). A name that is not known (any more) ends at once. A tab that does not connect, or loses the connection, is
served by the queue; what was lost on the way it asks for again; one that stays away ends its run. While a tab is connected here, no message
goes through gradio's queue, whose bookkeeping for each value costs the decode's process and the browser more than drawing does.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from .files import signed_in

TICK = 0.2  # an update costs a browser that draws in software tens of milliseconds
POLL = 0.02
END = "event: end\ndata:\n\n"
SILENCE = 3.0  # seconds after which a comment shows whether the tab is still there
GRACE = 3.0  # seconds a run goes on with nobody connected
CONNECT, FIRST_DRAW = 0.2, 0.5  # seconds that a decode waits for its page to connect, and then to draw the empty canvas


class Pipes:
    """The streams of one server."""

    def __init__(self) -> None:
        self._tabs: dict[str, Any] = {}

    def open(self, tab: Any) -> dict[str, Any]:
        """The event that tells a tab where its stream is."""
        name = secrets.token_urlsafe(18)
        self._tabs = {n: t for n, t in self._tabs.items() if t is not tab} | {name: tab}
        return {"type": "pipe", "url": f"polestar/stream/{name}"}

    def forget(self, tab: Any) -> None:
        """A tab has gone, or its run has ended."""
        self._tabs = {n: t for n, t in self._tabs.items() if t is not tab}

    async def _serve(self, request: Request) -> Response:
        tab = self._tabs.get(request.path_params["name"])
        if not signed_in(request):
            return PlainTextResponse("sign in, or reload the page", 403)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._send(tab) if tab is not None else iter((END,)), media_type="text/event-stream", headers=headers)

    @staticmethod
    async def _send(tab: Any) -> AsyncIterator[str]:
        me = tab.pipe = object()
        silent = 0.0
        try:
            while tab.pipe is me and (tab.going or not tab.channel.idle):
                messages = tab.channel.messages()
                if messages:
                    yield "".join(f"data: {text}\n" for text in messages) + "\n"
                elif silent > SILENCE:
                    yield ": still here\n\n"
                silent = 0.0 if messages or silent > SILENCE else silent + POLL
                await asyncio.sleep(TICK if messages else POLL)
            yield END
        finally:
            if tab.pipe is me:
                tab.pipe = None
                if tab.going:
                    asyncio.get_running_loop().call_later(GRACE, _alone, tab)

    async def _drawn(self, request: Request) -> Response:
        tab = self._tabs.get(request.path_params["name"])
        if tab is not None and signed_in(request):
            tab.drawn.set()
            tab.connected.set()
        return Response(status_code=204)

    def routes(self) -> list[Route]:
        """GET /polestar/stream/... and, from a page that shows the empty canvas, .../drawn."""
        return [Route("/polestar/stream/{name}", self._serve, methods=["GET"]), Route("/polestar/stream/{name}/drawn", self._drawn, methods=["GET"])]


def wait_for_first_draw(tab: Any) -> None:
    """Let a page that is connected, or just about to be, draw the empty canvas, so that it does not do so in the time of the first passes.

    Blocks the calling thread; a page that draws nothing (in the background, or of a client without pipe) costs at most CONNECT or FIRST_DRAW seconds.
    """
    if tab.connected.wait(CONNECT):
        tab.drawn.wait(FIRST_DRAW)


def _alone(tab: Any) -> None:
    """End the run of a tab that did not come back."""
    if tab.pipe is None and tab.pump is None:
        tab.stop()

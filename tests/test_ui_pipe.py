"""The stream beside gradio's queue: what goes through it, when it ends, and what happens when it breaks."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from types import SimpleNamespace

from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.browser.fake import FakeEngine
from tests.test_ui_stream import events_of, in_a_loop, request
from ui import pipe as pipe_module
from ui.server import Server, Tab


def said(chunk: str) -> list[dict]:
    """Events of one server-sent event."""
    return [e for line in chunk.splitlines() if line.startswith("data: {") for e in json.loads(line[6:])["events"]]


async def opened(server: Server, tab: str = "one"):
    """A run's generator, taken up to the event that names the stream; the events so far, the tab, and its stream."""
    queue = server.run(tab, request(lanes={"A": ("parallel", "paper", {"gen_length": 64, "block_length": 8})}))
    events = []
    while not any(e["type"] == "pipe" for e in events):
        events += events_of([await anext(queue)])
    return queue, events, server.tabs[tab], server.pipes._send(server.tabs[tab])


def test_a_connected_tab_gets_everything_from_the_stream_and_nothing_twice():
    async def main():
        server = Server(FakeEngine(0.005))
        queue, before, tab, pipe = await opened(server)
        through, rest = [], []

        async def connected():
            async for chunk in pipe:
                through.append(chunk)

        reading = asyncio.create_task(connected())
        await asyncio.sleep(0)
        async for value in queue:
            rest += events_of([value])
        await reading
        events = before + [e for c in through for e in said(c)] + rest
        indices = [s["i"] for e in events if e["type"] == "steps" for s in e["steps"]]
        assert indices == list(range(64))
        assert not [e for e in rest if e["type"] == "steps"]
        assert through[-1] == "event: end\ndata:\n\n" and tab.pipe is None
        assert [e["state"] for e in events if e["type"] == "status"][-1] == "done"

    in_a_loop(main())


def test_a_broken_stream_leaves_the_rest_to_the_queue():
    async def main():
        server = Server(FakeEngine(0.01))
        queue, before, tab, pipe = await opened(server)
        first = await anext(pipe)
        while not said(first):
            first = await anext(pipe)
        await pipe.aclose()
        assert tab.pipe is None
        rest = events_of([value async for value in queue])
        indices = [s["i"] for e in [*before, *said(first), *rest] if e["type"] == "steps" for s in e["steps"]]
        assert indices == list(range(64)) and [e for e in rest if e["type"] == "steps"]

    in_a_loop(main())


def test_a_second_connection_takes_over_from_the_first():
    async def main():
        server = Server(FakeEngine(0.02))
        queue, _, tab, pipe = await opened(server)
        await anext(pipe)
        other = server.pipes._send(tab)
        await anext(other)
        assert [chunk async for chunk in pipe][-1].startswith("event: end")
        assert tab.pipe is not None
        await other.aclose()
        await queue.aclose()

    in_a_loop(main())


def test_the_first_pass_waits_until_the_page_has_drawn_the_canvas_but_not_for_long(monkeypatch):
    waited = {}

    async def main(say: bool) -> None:
        server = Server(FakeEngine(0.001))
        queue, before, tab, pipe = await opened(server)
        client = TestClient(Starlette(routes=server.pipes.routes()))
        url = "/" + next(e["url"] for e in before if e["type"] == "pipe")
        began = time.monotonic()
        if say:
            assert client.get(url + "/drawn").status_code == 204
        async for chunk in pipe:
            if any(e["type"] == "steps" for e in said(chunk)):
                break
        waited[say] = time.monotonic() - began
        assert client.get("/polestar/stream/guess/drawn").status_code == 204
        await pipe.aclose()
        tab.stop()
        await queue.aclose()

    in_a_loop(main(False))
    assert pipe_module.FIRST_DRAW <= waited[False] < 10
    monkeypatch.setattr(pipe_module, "FIRST_DRAW", 30.0)
    in_a_loop(main(True))
    assert waited[True] < 20


class Asked(Tab):
    """A tab that counts how often its stream is asked for."""

    asked = 0

    @property
    def pipe(self):
        self.asked += 1
        return Tab.pipe.fget(self)

    @pipe.setter
    def pipe(self, stream):
        Tab.pipe.fset(self, stream)


def test_the_wait_for_a_connection_is_woken_and_asks_for_nothing_meanwhile(monkeypatch):
    def waiting(tab: Tab) -> tuple[threading.Thread, list[float]]:
        took: list[float] = []

        def wait() -> None:
            began = time.monotonic()
            pipe_module.wait_for_first_draw(tab)
            took.append(time.monotonic() - began)

        thread = threading.Thread(target=wait)
        thread.start()
        return thread, took

    tab = Asked()
    thread, took = waiting(tab)
    thread.join(10)
    assert took[0] >= pipe_module.CONNECT and tab.asked <= 2, "nobody came"

    monkeypatch.setattr(pipe_module, "CONNECT", 30.0)
    monkeypatch.setattr(pipe_module, "FIRST_DRAW", 30.0)
    thread, took = waiting(tab)
    tab.stop()
    thread.join(10)
    assert took, "a run that is stopped waits for nobody"

    async def main() -> None:
        server = Server(FakeEngine(0.001))
        queue, before, tab, pipe = await opened(server)
        client = TestClient(Starlette(routes=server.pipes.routes()))
        assert not tab.connected.is_set()
        thread, took = waiting(tab)
        tab.channel.put({"type": "status", "state": "running", "text": "", "place": None})
        await anext(pipe)
        assert tab.connected.is_set() and not took, "it is there, and draws"
        assert client.get("/" + next(e["url"] for e in before if e["type"] == "pipe") + "/drawn").status_code == 204
        thread.join(10)
        assert took and took[0] < 20
        await pipe.aclose()
        assert not tab.connected.is_set()
        tab.stop()
        await queue.aclose()

    in_a_loop(main())


def test_only_the_name_that_the_tab_was_told_opens_its_stream_and_only_while_it_is_there():
    async def main():
        server = Server(FakeEngine(0.02))
        queue, before, tab, pipe = await opened(server)
        await pipe.aclose()
        client = TestClient(Starlette(routes=server.pipes.routes()))
        url = "/" + next(e["url"] for e in before if e["type"] == "pipe")
        tab.stop()
        while tab.going:
            await asyncio.sleep(0.01)
        for guess in ("guess", url.rsplit("/", 1)[1][:-1]):
            assert client.get(f"/polestar/stream/{guess}").text == "event: end\ndata:\n\n"
        answer = client.get(url)
        assert answer.headers["content-type"].startswith("text/event-stream") and answer.headers["cache-control"] == "no-store"
        assert [e for e in said(answer.text) if e["type"] == "end"]
        await queue.aclose()
        server.leave("one")
        assert client.get(url).text == "event: end\ndata:\n\n"

    in_a_loop(main())


def test_who_must_sign_in_gets_no_stream_without():
    server = Server(FakeEngine())
    app = Starlette(routes=server.pipes.routes())
    app.auth, app.cookie_id, app.tokens = {"user": "password"}, "x", {"t": "user"}
    url = "/" + server.pipes.open(SimpleNamespace(pipe=None, going=False, channel=SimpleNamespace(idle=True)))["url"]
    assert TestClient(app).get(url).status_code == 403
    assert TestClient(app, cookies={"access-token-x": "t"}).get(url).status_code == 200

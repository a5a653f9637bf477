"""A tab of the page without a browser: commands go in, events come out (tests/test_ui_*.py)."""

from __future__ import annotations

import asyncio
import json
import time

from starlette.applications import Starlette
from starlette.testclient import TestClient

from ui.files import Shelf
from ui.runs import Request
from ui.server import Server
from ui.stream import unpack

SMALL = {"gen_length": 16, "block_length": 8, "tau_s": 1.05, "drift_commit": False, "suffix_commit": False}  # one token a pass


def small(method: str = "polestar", prompt: str = "Describe Sam the bear.", lanes=None, **changes) -> Request:
    return Request(model="demo", prompt=prompt, lanes=lanes or {"A": (method, "paper", SMALL)}, **changes)


class Page:
    """A tab as the page's javascript sees it: commands go in, events come out."""

    def __init__(self, server: Server, name: str = "tab"):
        self.server, self.name = server, name
        self.events: list[dict] = []
        self.tasks: list[asyncio.Task] = []

    async def _read(self, stream) -> None:
        async for value in stream:
            for text in unpack(value):
                message = json.loads(text)
                for e in message["events"]:
                    if e["type"] == "reset":
                        self.events.clear()
                    self.events.append(e)

    def run(self, request: Request) -> None:
        self.events.clear()
        self.tasks.append(asyncio.create_task(self._read(self.server.run(self.name, request))))

    def send(self, **command):
        answer = self.server.command(self.name, command)
        self.tasks.append(asyncio.create_task(self._read(self.server.drain(self.name))))
        return answer

    def of(self, kind: str, **fields) -> list[dict]:
        return [e for e in self.events if e["type"] == kind and all(e.get(k) == v for k, v in fields.items())]

    def steps(self, lane: str = "A") -> list[dict]:
        return [s for e in self.of("steps", lane=lane) for s in e["steps"]]

    def commits(self, lane: str = "A") -> list[tuple]:
        return [(s["i"], *c[:2]) for s in self.steps(lane) for c in s["c"]]

    @property
    def state(self) -> str:
        return self.of("status")[-1]["state"] if self.of("status") else "none"

    @property
    def text(self) -> str:
        return self.of("status")[-1]["text"]

    async def until(self, test, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not test():
            assert time.monotonic() < end, f"state {self.state}: {self.of('status')[-3:]}"
            await asyncio.sleep(0.02)

    async def ends(self, *states: str) -> str:
        await self.until(lambda: self.state in (states or ("done", "error", "stopped")))
        return self.state

    async def settle(self) -> None:
        """Until nothing more comes for a moment."""
        count = -1
        while count != len(self.events):
            count = len(self.events)
            await asyncio.sleep(0.15)

    async def close(self) -> None:
        self.server.leave(self.name)
        await asyncio.gather(*self.tasks)


def play(engine, scene, **kind) -> None:
    """Run `scene(page)` in an event loop, with a server of its own."""

    async def main():
        page = Page(Server(engine, **kind))
        try:
            await scene(page)
        finally:
            await page.close()

    asyncio.run(main())


def put_in(shelf: Shelf, body: bytes, **headers) -> dict:
    return TestClient(Starlette(routes=shelf.routes())).post("/polestar/open", content=body, headers=headers).json()

"""Who is looking: one `Tab` for each open page, all sharing one engine and one line for the model.

Contract: `run` and `drain` are async generators of bus values for one tab; between two values they let at least `TICK` seconds pass, so a
screen sees at most about 5 updates a second, the last one always, and what comes after a silence within `POLL`. A run ends when its
generator is closed, when the tab goes away, or on stop. `command` answers at once and never waits for a forward pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from polestar.analysis.projection import layer_points

from . import debug
from .desk import Desk
from .fetching import Fetcher
from .files import Shelf
from .forks import show_trace
from .line import Line
from .pipe import POLL, TICK, Pipes, wait_for_first_draw
from .points import Projector
from .quiet import Quiet
from .runs import Request, Run
from .stream import Channel, status

log = logging.getLogger("polestar.ui")
AWAY = 0.5  # seconds after which gradio's event looks whether the tab's own stream is still there


class Tab:
    """One open page."""

    def __init__(self) -> None:
        self.channel = Channel()
        self.run: Run | None = None
        self.pump: object | None = None  # who sends at present; a new run takes over
        self.task: Any = None  # what drives the run
        self.connected = threading.Event()  # `pipe` is there, or nobody need wait for it
        self.pipe = None
        self.drawn = threading.Event()  # the page shows the empty canvas of the run, or need not
        self.ticket: Any = None
        self.desk = Desk(self.channel)
        self.next: Run | None = None  # a run that a command made; the tab's stream begins it
        self.traces: dict[str, Any] = {}  # of an opened trace; those of a run are the run's
        self.waiting: set[object] = set()  # answers that are still being computed

    @property
    def pipe(self) -> object | None:
        """The stream beside gradio's queue, while the page is connected to it."""
        return self._pipe

    @pipe.setter
    def pipe(self, stream: object | None) -> None:
        self._pipe = stream
        (self.connected.clear if stream is None else self.connected.set)()

    @property
    def going(self) -> bool:
        """Is there more to come?"""
        return bool(self.waiting) or (self.run is not None and self.run.alive)

    def trace(self, lane: str) -> Any:
        """The trace shown in a lane, finished or not; None where there is none."""
        return self.run.trace(lane) if self.run is not None else self.traces.get(lane)

    def stop(self) -> None:
        """End the run, wherever it is: waiting, loading or decoding."""
        self.drawn.set()
        self.connected.set()
        if self.run is not None:
            self.run.stop()
        if self.ticket is not None and (self.run is None or not self.run.alive):
            self.ticket.leave()


class Server:
    """The tabs of one app."""

    def __init__(self, engine: Any, trace: str | None = None):
        self.engine, self.trace = engine, trace
        self.line = Line()
        self.tabs: dict[str, Tab] = {}
        self.projector = Projector()
        self.shelf = Shelf()
        self.pipes = Pipes()
        self.fetcher = Fetcher()
        self.quiet = Quiet()
        self.tables: Any = None  # methods and models, as the page has them
        self.commands: dict[str, Callable[[Tab, dict[str, Any]], Any]] = {
            "stop": lambda tab, _: tab.stop(),
            "pause": lambda tab, _: tab.run and tab.run.pause(),
            "continue": lambda tab, _: tab.run and tab.run.resume(),
            "set": lambda tab, c: self.set(tab, str(c.get("name", "")), c.get("value")),
            "resend": lambda tab, c: tab.channel.behind(str(c.get("run", "")), int(c.get("from", 0))),
            "points": self.points,
            **debug.commands(self),
        }

    def tab(self, session: str) -> Tab:
        """The tab of a gradio session."""
        return self.tabs.setdefault(session, Tab())

    def leave(self, session: str) -> None:
        """The page was closed or left."""
        tab = self.tabs.pop(session, None)
        if tab is not None:
            tab.stop()
            self.shelf.forget(tab)
            self.pipes.forget(tab)

    def set(self, tab: Tab, name: str, value: Any, lanes: tuple[str, ...] | None = None) -> str:
        """Change a parameter of the run that goes on, of all its lanes or of these; returns a sentence when it cannot be, else ""."""
        if tab.run is None or not tab.run.alive:
            return ""
        try:
            tab.run.set(name, value, lanes)
        except ValueError as error:
            return str(error)
        return ""

    def next_run(self, session: str, what: str) -> None:
        """Say, where a run goes on, that `what` was chosen for the next one."""
        tab = self.tab(session)
        if tab.run is not None and tab.run.alive:
            tab.channel.put(status(tab.channel.state, f"next run: {what}; this one goes on as it began"))

    def show(self, tab: Tab, path: Any) -> None:
        """Replay a trace file in a tab. Raises TraceError, and changes nothing, when it is no trace."""
        from polestar.trace.file import load

        show_trace(tab, load(path))

    def points(self, tab: Tab, command: dict[str, Any]) -> None:
        """Answer with a lane's points in UMAP's plane; of a lane that is still decoding, when it has ended."""
        lane, layer = str(command.get("lane")), int(command.get("layer", 0))
        trace, shown = tab.trace(lane), tab.channel.run
        if trace is None:
            return
        frames = layer_points(trace, layer)
        waiting, mine = tab.waiting, object()
        waiting.add(mine)

        def answer(found: list[dict[str, Any]] | None, problem: str) -> None:
            if found is None:
                tab.channel.put(status(tab.channel.state, problem), run=shown)
            else:
                tab.channel.put({"type": "points", "lane": lane, "layer": layer, "method": "umap", "frames": found}, run=shown)
            waiting.discard(mine)

        def ask() -> None:
            self.projector.ask(layer_points(trace, layer), trace.header.seed or 0, answer)

        if tab.run is not None and tab.run.going(lane):
            tab.run.afterwards(lane, ask)
        elif frames:
            ask()
        else:
            answer([], "")

    def command(self, session: str, command: Any) -> dict[str, Any] | None:
        """Act on what the page sent; what is not understood is logged and changes nothing. Returns settings for the controls, or None."""
        tab = self.tab(session)
        name = command.get("cmd") if isinstance(command, dict) else None
        act = self.commands.get(name)
        if act is None:
            log.warning("the page sent a command that is not known: %.80r", command)
            return None
        try:
            answer = act(tab, command)
        except (ValueError, TypeError, LookupError) as error:
            tab.channel.put(status(tab.channel.state, str(error)))
            return None
        return answer if isinstance(answer, dict) else None

    # ---- streams ------------------------------------------------------------------------------------------------------------

    async def run(self, session: str, request: Request) -> AsyncIterator[str]:
        """Decode, and stream it. The tab's earlier run is ended first."""
        tab = self.tab(session)
        tab.stop()
        tab.desk.show({})
        tab.channel.begin(*tab.desk.said(), status("queued", "waiting for the model"))
        tab.traces, tab.waiting, tab.next = {}, set(), None
        async with contextlib.aclosing(self._decode(tab, Run(tab.channel, self.engine, request, tab.desk))) as values:
            async for value in values:
                yield value

    async def _decode(self, tab: Tab, run: Run) -> AsyncIterator[str]:
        """Wait in line, decode, stream: to the tab's own stream while it is connected there, else to here.

        Gradio's event goes on as long as the run does: its queue then has a stream open, and answers of quick control changes do not get lost between
        the end of one and the beginning of the next.
        """
        me = tab.pump = object()
        tab.run = run
        ticket = tab.ticket = self.line.enter()
        task = tab.task = asyncio.create_task(self._drive(tab, run, ticket))
        closed = True
        try:
            await asyncio.sleep(0)  # what is said first of the place in line goes out first
            while tab.pump is me and (not task.done() or tab.waiting or not tab.channel.idle):
                value = tab.channel.take() if tab.pipe is None else None
                if value is not None:
                    yield value
                if tab.pipe is not None and not task.done():
                    await asyncio.wait((task,), timeout=AWAY)
                else:
                    await asyncio.sleep(POLL if value is None and tab.pipe is None else TICK)
            closed = False
        finally:
            if closed:
                run.stop()
                if not run.alive:
                    ticket.leave()
            if tab.pump is me:
                tab.pump = None

    async def _drive(self, tab: Tab, run: Run, ticket: Any) -> None:
        """A run from the line to its end; leaves the line however it ends."""
        try:
            place = None
            while not ticket.left and (now := ticket.place) > 0:
                if now != place:
                    place = now
                    tab.channel.put(status("queued", _waiting(now), now), run=run.name)
                await asyncio.sleep(POLL)
            if ticket.left or run.stopping.is_set():
                tab.channel.put(status("stopped", "left the line; nothing was decoded"), run=run.name)
            else:
                tab.channel.put(self.pipes.open(tab), run=run.name)
                tab.drawn.clear()
                if tab.pipe is None:
                    tab.connected.clear()
                with self.quiet:
                    await _finish(run, ticket, lambda: wait_for_first_draw(tab))
        finally:
            run.stop()
            if not run.alive:
                ticket.leave()

    async def drain(self, session: str) -> AsyncIterator[str]:
        """Send what is waiting for a tab that has nothing to send it."""
        tab = self.tab(session)
        if tab.next is not None:
            run, tab.next = tab.next, None
            async with contextlib.aclosing(self._decode(tab, run)) as values:
                async for value in values:
                    yield value
        elif tab.pump is None:
            me = tab.pump = object()
            try:
                while tab.pump is me and tab.pipe is None and (tab.going or not tab.channel.idle):
                    async for value in self._flush(tab, me):
                        yield value
                    await asyncio.sleep(POLL)
            finally:
                if tab.pump is me:
                    tab.pump = None

    @staticmethod
    async def _flush(tab: Tab, me: object) -> AsyncIterator[str]:
        while tab.pump is me and tab.pipe is None and (value := tab.channel.take()) is not None:
            yield value
            await asyncio.sleep(TICK)


async def _finish(run: Run, ticket: Any, before_first: Any) -> None:
    """A run from its first pass to its end."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def done() -> None:
        ticket.leave()
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            loop.call_soon_threadsafe(ended.set)

    run.start(done, before_first)
    await ended.wait()
    while run.alive:  # the thread's last moment
        await asyncio.sleep(POLL / 10)


def _waiting(place: int) -> str:
    return "waiting for the model; next in line" if place == 1 else f"waiting for the model; {place - 1} before you in line"

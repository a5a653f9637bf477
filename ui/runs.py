"""A run of the page: one or two lanes, decoded in a worker thread, streamed to one tab.

Contract: the event loop never waits for a forward pass. `Run.stop` acts within one pass, from any thread. The worker leaves the line
for the model, and lets go of its memory, however it ends; what was traced stays in `traces`.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from polestar.breakpoints import EVENTS
from polestar.trace import wire

from .desk import Desk
from .stream import Channel, status

log = logging.getLogger("polestar.ui")
OBSERVED = "observe mode: a full pass beside every pass measures true staleness; the speed of this run means nothing"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the controls say when Run is pressed. `pace` in passes a second, 0 for full speed."""

    model: str
    prompt: str
    lanes: dict[str, tuple[str, str, dict[str, Any]]]  # lane -> (method, preset, values)
    interleave: bool = False
    pace: float = 0.0
    level: str = "full"  # or "observe": full, and a shadow full pass beside each pass
    talk: bool = False  # the prompt continues the tab's conversation


@dataclass
class Lane:
    """A lane of a run that goes on."""

    name: str
    config: Any
    session: Any = None
    done: bool = False
    vocab: Any = None


class Run:
    """One decode of each lane, in one worker thread."""

    def __init__(self, channel: Channel, engine: Any, request: Request, desk: Desk | None = None):
        self.channel, self.engine, self.request = channel, engine, request
        self.desk = desk if desk is not None else Desk(channel)
        self.messages = [*(self.desk.history if request.talk else []), {"role": "user", "content": request.prompt}]
        self.name = channel.run
        self.pace = request.pace
        self.lanes: dict[str, Lane] = {}
        self.active: list[Lane] = []  # whose turn it is
        self.traces: dict[str, Any] = {}
        self.stopping = threading.Event()
        self.paused = False
        self._nudge = threading.Event()  # ends a pause between two passes of a paced run
        self._thread: threading.Thread | None = None
        self._tenth = -1
        self._later: dict[str, list[Any]] = {}
        self._turn = threading.Lock()  # held while lanes begin, and while it is asked whether one has begun

    # ---- from the event loop ------------------------------------------------------------------------------------------------

    def start(self, done: Any, before_first: Any = lambda: None) -> None:
        """Begin in a new thread; `before_first()` is called from it when all is ready for the first pass, `done()` at the very end."""
        self._thread = threading.Thread(target=self._work, args=(done, before_first), name=f"polestar-{self.name}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Is the worker still there?"""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """End after the pass that is running."""
        self.stopping.set()
        self._each("stop")
        self._nudge.set()

    def pause(self) -> None:
        """Wait before the next pass."""
        if not self.stopping.is_set() and not self.paused:
            self.paused = True
            self._each("pause")
            self._say("paused", "paused; step, continue or stop")

    def resume(self) -> None:
        """Go on after a pause."""
        if self.paused:
            self.paused = False
            self.desk.went_on()
            self._each("resume")
            self._nudge.set()
            self._say("running", self._what())

    def step(self, what: str = "pass", lane: str | None = None) -> None:
        """One pass of each lane that runs, then wait again; or on to the next pass (of `lane`) that holds an event, see `EVENTS`."""
        if what not in EVENTS:
            raise ValueError(f"there is no event {what!r} to step to; use one of {', '.join(EVENTS)}")
        going = [x for x in self.active if x.session is not None and not x.done]
        if what == "pass":
            if not self.paused:
                self.pause()
            elif going:  # what held the run before is behind it; said first, since the step may meet the next breakpoint
                self._say("paused", "paused; step, continue or stop")
            self.desk.went_on()
            for x in going:
                x.session.step_once()
        elif going:
            self.paused = False
            self.desk.went_on()
            named = [x for x in going if x.name == lane] or going
            for x in going:
                x.session.run_to(what) if x in named else x.session.resume()
            self._say("running", f"on to the next {what}")
        self._nudge.set()

    def _held(self, lane: Lane) -> None:
        """A breakpoint, or what a step was heading for, stopped a lane's session: everything waits, and the page says why."""
        self.paused = True
        self._each("pause")
        where = f"lane {lane.name}, " if len(self.lanes) > 1 else ""
        self._say("paused", f"{where}{lane.session.fired}")

    def trace(self, lane: str) -> Any:
        """A lane's trace as it stands; None before it begins."""
        session = self.lanes[lane].session if lane in self.lanes else None
        return session.trace if session is not None else self.traces.get(lane)

    def going(self, lane: str) -> bool:
        """Is the lane still to be decoded, or being decoded?"""
        return lane in self.lanes and not self.lanes[lane].done

    def afterwards(self, lane: str, do: Any) -> None:
        """Call `do()` once the lane has ended (at once when it has)."""
        self._later.setdefault(lane, []).append(do)
        if not self.going(lane):
            self._catch_up(lane)

    def _catch_up(self, lane: str) -> None:
        todo = self._later.pop(lane, [])
        for do in todo:
            do()

    def set(self, name: str, value: Any, lanes: tuple[str, ...] | None = None) -> None:
        """Change a parameter of every lane (of `lanes`) that has it; lanes still to come start with it. Raises ValueError in one sentence."""
        if name == "pace":
            self.pace = float(value)
            self._nudge.set()
            return
        for lane in self.lanes.values():
            if name in lane.config and not lane.done and (lanes is None or lane.name in lanes):
                lane.config = lane.config.replace(**{name: value})
                if lane.session is not None:
                    lane.session.set(name, value)
                    self._restate(lane)

    def _restate(self, lane: Lane) -> None:
        """The page shows a lane that has not begun with what it will begin with; its log says it as changes at its first pass."""
        with self._turn:
            if not len(lane.session.trace) and all(lane is not begun for begun in self.active):
                self._head(lane, replace(lane.session.trace.header, config=lane.config.as_dict()))

    def _head(self, lane: Lane, header: Any, *first: Any) -> None:
        self.channel.put({"type": "header", "lane": lane.name, "header": wire.encode_header(header, live=True)}, *first, run=self.name)

    def _each(self, action: str) -> None:
        for lane in self.lanes.values():
            if lane.session is not None and not lane.done:
                getattr(lane.session, action)()

    def _say(self, state: str, text: str) -> None:
        self.channel.put(status(state, text), run=self.name)

    # ---- in the worker ------------------------------------------------------------------------------------------------------

    def _work(self, done: Any, before_first: Any) -> None:
        try:
            self._prepare()
            before_first()
            if self.request.interleave:
                self._interleaved(list(self.lanes.values()))
            else:
                for lane in self.lanes.values():
                    self._interleaved([lane])
            stopped = self.stopping.is_set()
            self._say("stopped" if stopped else "done", "stopped; what was decoded stays" if stopped else self._summary())
        except Exception as error:
            self._say("error", self._sentence(error))
            for lane in self.lanes.values():
                if lane.session is not None and not lane.done:
                    lane.session.trace.status, lane.session.trace.error = "error", str(error)
        finally:
            for lane in self.lanes.values():
                if lane.session is not None:
                    self.traces[lane.name] = lane.session.trace
                lane.session = None
                lane.done = True
                self._catch_up(lane.name)
            done()

    @staticmethod
    def _sentence(error: Exception) -> str:
        """What to say of an error. Those that the engine raises are sentences; the others are logged."""
        from polestar.driver import DecodeError

        if isinstance(error, (ValueError, FileNotFoundError, DecodeError)):
            return str(error)
        if isinstance(error, MemoryError) or "out of memory" in str(error):
            return "the machine ran out of memory; choose a shorter length, a smaller model, or log less"
        log.exception("a run failed")
        reason = (str(error).splitlines() or ["no reason given"])[0]
        return f"the decode failed ({type(error).__name__}: {reason}); see the server's log"

    def _loading(self, done: int, total: int) -> None:
        """Progress of a load, said at most every tenth of it."""
        tenth = 10 * done // max(1, total)
        if tenth != self._tenth:
            self._tenth = tenth
            unit, name = (1e9, "GB") if total >= 1e8 else (1e6, "MB")
            self._say("loading", f"loading {self.request.model}, {done / unit:.1f} of {total / unit:.1f} {name}")

    def _prepare(self) -> None:
        request = self.request
        if not request.prompt.strip():
            raise ValueError("the prompt is empty; write something or choose an example")
        for name, (method, preset, values) in request.lanes.items():
            self.lanes[name] = Lane(name, self.engine.config(method, preset, values))
        loaded = self._load()
        vocab = wire.VocabSender(self.codec)
        prompt = self.messages if len(self.messages) > 1 else request.prompt
        for lane in self.lanes.values():
            lane.vocab = vocab
            lane.session = self.engine.session(loaded, prompt, lane.config, request.level)
        for lane in self.lanes.values():
            self._born(lane)
        self._ready()

    def _load(self) -> Any:
        """The request's model; keeps its codec."""
        self._say("loading", f"loading {self.request.model}")
        loaded = self.engine.load(self.request.model, self._loading)
        if note := getattr(loaded, "note", ""):
            self._say("loading", f"{self.request.model}: {note}")
        self.codec = self.engine.codec(loaded)
        return loaded

    def _born(self, lane: Lane, **origin: Any) -> None:
        """A lane has its session: the desk and the page hear of it."""
        header = lane.session.trace.header
        self._head(lane, header, lane.vocab.for_header(header))
        self.desk.born(lane.name, lane.session.trace, model=self.request.model, codec=self.codec, session=lane.session, **origin)

    def _ready(self) -> None:
        self.channel.put(self.desk.branches(), run=self.name)
        if self.stopping.is_set():
            self._each("stop")
        elif self.paused:
            self._each("pause")
        self._say("paused" if self.paused else "running", self._what())

    def _interleaved(self, lanes: list[Lane]) -> None:
        """Decode the given lanes pass by pass in turn (a single lane: without a break)."""
        with self._turn:
            self.active = lanes
        going = [(lane, lane.session.steps()) for lane in lanes]
        began = due = monotonic()
        while going:
            for lane, steps in list(going):
                step = next(steps, None)
                if step is None:
                    going.remove((lane, steps))
                    self._end(lane, monotonic() - began)
                    continue
                self.channel.put_step(lane.name, step, lane.session.trace.header, lane.vocab, run=self.name)
                if lane.session.fired:
                    self._held(lane)
            due = self._wait(due)

    def _wait(self, due: float) -> float:
        """Keep the pace; returns when the next pass is due."""
        while self.pace > 0 and not self.stopping.is_set() and not self.paused:
            now = monotonic()
            left = due + 1 / self.pace - now
            if left <= 0:
                return max(due + 1 / self.pace, now - 1 / self.pace)
            self._nudge.wait(left)
            self._nudge.clear()
        return monotonic()

    def _end(self, lane: Lane, wall: float) -> None:
        """Say how a lane ended; `wall` is what the clock on the wall says, log and pauses included."""
        lane.done = True
        trace = lane.session.trace
        ended = trace.status = "done" if trace.complete else "stopped"
        metrics = wire.encode_metrics(trace, self.codec)
        self.channel.put({"type": "end", "lane": lane.name, "status": ended, "metrics": metrics, "wall": wall}, run=self.name)
        if ended == "done" and lane.name == "A" and self.request.lanes:
            self.desk.answered(self.messages, (metrics["text"] or "").strip())

    def _what(self) -> str:
        if self.request.level == "observe":
            return OBSERVED
        if len(self.messages) > 1:
            return f"live, question {len(self.messages) // 2 + 1} of the conversation"
        if len(self.lanes) < 2:
            return "live"
        if self.request.interleave:
            return "live, lanes interleaved for watching; times are not for comparison"
        return "live, one lane after the other; each is timed alone"

    def _summary(self) -> str:
        if self.request.level == "observe":
            return OBSERVED
        return "interleaved for watching; times are not for comparison" if self.request.interleave and len(self.lanes) > 1 else "done"

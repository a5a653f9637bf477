"""Forks and branches: run on from a pass of what a lane shows, and show any branch of the tab's tree.

Contract: a fork is a `Run` of one lane that waits in the same line for the model as every other; it stands beside what the other lane shows.
A run that still goes is ended first and keeps its passes. What cannot be done is a ValueError of one sentence, before anything changes; what only
the model can tell fails in the worker, and the lane then shows again what it showed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polestar.trace import wire

from .runs import Lane, Request, Run
from .stream import replay, status

LANES = ("A", "B")


class Stopped(Exception):
    """The person stopped a fork while its state was being restored."""


@dataclass(frozen=True, kw_only=True)
class Fork:
    """What the page asked for. `edits`: position -> token id, text of one token, or None for [MASK]."""

    parent: int  # node of the tree
    trace: Any
    at_pass: int
    changes: dict[str, Any]
    method: str | None
    edits: dict[int, int | str | None]
    to: str


class ForkRun(Run):
    """Restores the state of a recording at a pass, in the worker, and runs on from there."""

    def __init__(self, channel: Any, engine: Any, request: Request, desk: Any, fork: Fork, before: dict[str, int]):
        """`before`: what the lanes showed, as nodes of the tree."""
        super().__init__(channel, engine, request, desk)
        self.fork = fork
        self.before = dict(before)
        self.traces = {lane: desk.tree[node].trace for lane, node in before.items() if lane != fork.to}
        self.observed = False

    def _prepare(self) -> None:
        try:
            self._restore()
        except Stopped:
            self._give_back()
        except BaseException:
            self._give_back()
            raise

    def _give_back(self) -> None:
        """There is no fork: its lane shows again what it showed."""
        lane, node = self.fork.to, self.before.get(self.fork.to)
        if node is None or lane in self.lanes or self.channel.run != self.name:
            return
        trace = self.traces[lane] = self.desk.trace(node)
        self.desk.show(self.before)
        self.channel.put(*(e for e in replay({lane: trace}) if e["type"] != "status"), self.desk.branches(), run=self.name)

    def _restore(self) -> None:
        fork = self.fork
        loaded = self._load()
        self._say("loading", f"restoring pass {fork.at_pass}" if fork.at_pass >= 0 else "restoring the empty canvas")
        session = self.engine.fork(
            loaded, fork.trace, fork.at_pass, changes=fork.changes, method=fork.method, edits=fork.edits, progress=self._restored
        )
        self.observed = bool(session.trace.header.extra.get("observe"))
        lane = self.lanes[fork.to] = Lane(fork.to, session.config, session, vocab=wire.VocabSender(self.codec))
        self._born(lane, parent=fork.parent)
        for step in session.trace:
            self.channel.put_step(lane.name, step, session.trace.header, lane.vocab, run=self.name)
        self._ready()

    def _restored(self, done: int, total: int) -> None:
        if self.stopping.is_set():
            raise Stopped
        tenth = 10 * done // max(1, total)
        if tenth != self._tenth:
            self._tenth = tenth
            self._say("loading", f"restoring pass {self.fork.at_pass}: {done} of {total} passes made again")

    def _what(self) -> str:
        return f"live, forked after pass {self.fork.at_pass}" + ("; observe mode, its speed means nothing" if self.observed else "")


def read_fork(desk: Any, command: dict[str, Any]) -> Fork:
    """The command `fork`, checked as far as that needs no model. Raises ValueError."""
    node = desk.at(str(command.get("lane")))
    at_pass, last = command.get("pass"), len(node.trace) - 1
    if isinstance(at_pass, bool) or not isinstance(at_pass, int) or not -1 <= at_pass <= last:
        raise ValueError(f"a fork cannot begin at pass {at_pass!r}; this run holds passes 0 to {last} (-1 is before the first)")
    to = command.get("to") or next(x for x in LANES if x != command.get("lane"))
    if to not in LANES:
        raise ValueError(f"a fork is shown in lane A or B, not {to!r}; choose one of those")
    changes, edits = command.get("changes") or {}, command.get("edits") or {}
    if not isinstance(changes, dict) or not isinstance(edits, dict):
        raise ValueError("the changes and edits of a fork must be tables; reload the page")
    checked = {}
    for position, value in edits.items():
        if not str(position).isdecimal() or isinstance(value, (bool, float, list, dict)):
            raise ValueError(f"the edit of position {str(position)[:20]!r} is not a token, a text or [MASK]; write one of those")
        checked[int(position)] = value
    method = command.get("method") or None
    return Fork(parent=node.id, trace=node.trace, at_pass=at_pass, changes=dict(changes), method=method, edits=checked, to=to)


def check_fork(engine: Any, fork: Fork, codec: Any) -> None:
    """What is known without the model: the parameters, the positions, and with a `codec` that a text is one token. Raises ValueError."""
    header = fork.trace.header
    method = fork.method or header.method
    engine.config(method, header.preset if method == header.method else "paper", fork.changes)
    first, end = header.prompt_length, header.prompt_length + header.gen_length
    canvas = fork.trace.canvas_at(fork.at_pass).tolist()
    for position, token in fork.edits.items():
        if not first <= position < end:
            raise ValueError(f"position {position} cannot be edited; the generation holds positions {first} to {end - 1}")
        if isinstance(token, str) and codec is not None and len(ids := codec.encode(token)) != 1:
            raise ValueError(f"the edit {token!r} is {len(ids)} tokens, but a position holds one; give text that is one token, or edit more positions")
        canvas[position] = header.mask_id if token is None else token
    if fork.edits and header.mask_id not in canvas[first:end]:
        raise ValueError("after these edits no position holds [MASK], so there is nothing to decode; leave or make at least one")


def begin_fork(tab: Any, engine: Any, command: dict[str, Any]) -> None:
    """Make the run of a fork and leave it to the tab's stream (`tab.next`)."""
    desk = tab.desk
    fork = read_fork(desk, command)
    header = fork.trace.header
    model, codec = desk.models.get(fork.parent, ("", None))
    model = model or header.model
    if not model:
        raise ValueError("this trace does not say which model made it, so it cannot be run on; fork a run made here")
    check_fork(engine, fork, codec)
    pace = tab.run.pace if tab.run is not None else 0.0
    before = dict(desk.shown)
    beside = {lane: node for lane, node in before.items() if lane != fork.to}
    show(tab, beside, ending=status("queued", f"a fork after pass {fork.at_pass} waits for the model"))
    request = Request(model=model, prompt=header.prompt_text or "", lanes={}, pace=pace)
    tab.next = ForkRun(tab.channel, engine, request, desk, fork, before)


def show(tab: Any, lanes: dict[str, int], ending: dict[str, Any] | None = None) -> None:
    """Lanes show these nodes of the tree, as a new run of messages; what was decoding is ended. `ending`: a status instead of the replay's."""
    desk, going = tab.desk, tab.run is not None and tab.run.alive
    traces = {lane: desk.trace(node) for lane, node in sorted(lanes.items())}
    events = list(replay(traces)) if traces else []  # raises, where it does, before anything has changed
    tab.stop()
    if going:
        events = list(replay(traces)) if traces else []
    tab.run, tab.next, tab.traces, tab.waiting = None, None, dict(traces), set()
    desk.show(lanes)
    tab.channel.begin(*desk.said(), *(e for e in events if ending is None or e["type"] != "status"), *([ending] if ending else []))


def show_trace(tab: Any, trace: Any, lane: str | None = None, label: str = "", known: int | None = None) -> None:
    """A trace from a file: alone in lane A, or in `lane` beside what the other lane shows. `known`: its node, where the tree has it already.

    Raises ValueError, and changes nothing, where it cannot be shown.
    """
    if lane not in (None, *LANES):
        raise ValueError(f"a trace is shown in lane A or B, not {str(lane)[:10]!r}; choose one of those")
    before = dict(tab.desk.shown)
    node = known or tab.desk.born(lane or "A", trace, label=label)
    try:
        show(tab, {**({} if lane is None else before), lane or "A": node})
    except ValueError:
        if not known:
            tab.desk.tree.remove(node)
        tab.desk.show(before)
        raise


def show_branch(tab: Any, command: dict[str, Any]) -> None:
    """The command `branch`: a branch in a lane, beside what the other one shows."""
    node, lane = tab.desk.node(command.get("id")), command.get("lane")
    if lane not in LANES:
        raise ValueError(f"a branch is shown in lane A or B, not {str(lane)[:10]!r}; choose one of those")
    show(tab, {**tab.desk.shown, lane: node.id})

"""What a tab keeps between runs: breakpoints, the tree of runs, which of them each lane shows, and the conversation.

Contract: `Desk` knows no model and no engine. A run tells it when its lanes exist (`born`), when it goes on after a pause (`went_on`) and what a lane
answered (`answered`); the desk tells the page through the tab's channel. Thread-safe. At most `MOST_RUNS` runs are kept; the oldest
that are not shown go first, with their forks.
"""

from __future__ import annotations

import threading
from typing import Any

from polestar.runs import RunTree, describe
from polestar.trace.wire import token_entry

from .breaks import Book
from .stream import Channel

MOST_RUNS = 16


class Desk:
    """The desk of one tab."""

    def __init__(self, channel: Channel):
        self.channel = channel
        self.book = Book(lambda: channel.put(self.book.event()))
        self.tree = RunTree()
        self.shown: dict[str, int] = {}  # lane -> node of the tree
        self.models: dict[int, tuple[str, Any]] = {}  # node -> the model as it was chosen (a name or a folder) and its codec
        self.history: list[dict[str, str]] = []  # the conversation so far
        self._lock = threading.Lock()
        self._count = 0

    # ---- runs ---------------------------------------------------------------------------------------------------------------

    def born(self, lane: str, trace: Any, *, model: str = "", codec: Any = None, session: Any = None, parent: int | None = None, label: str = "") -> int:
        """A lane shows a new trace; `session` (where it is decoded here) asks the breakpoints from now on. Returns its node."""
        if session is not None:
            session.breaks.append(self.book.ask(codec))
        with self._lock:
            if parent is None:
                self._count += 1
                label = f"{self._count}: {label or describe(trace)}"
            node = self.tree.add(trace, parent=parent, label=label)
            self.shown[lane], self.models[node.id] = node.id, (model, codec)
            self._prune()
        return node.id

    def show(self, lanes: dict[str, int]) -> None:
        """Lanes show these nodes and nothing else."""
        with self._lock:
            self.shown = dict(lanes)

    def node(self, id: Any) -> Any:
        """A node by the id that the page has ("b2"). Raises ValueError."""
        text = str(id)
        if not text.startswith("b") or not text[1:].isdecimal():
            raise ValueError(f"there is no branch {text[:40]!r}; choose one of the tree")
        return self.tree[int(text[1:])]

    def at(self, lane: str) -> Any:
        """The node that a lane shows. Raises ValueError when there is none."""
        if lane not in self.shown:
            raise ValueError(f"lane {str(lane)[:10]!r} shows no run; run or open one first")
        return self.tree[self.shown[lane]]

    def trace(self, id: int) -> Any:
        """A node's trace, with the texts of its tokens, so that it can be shown, saved and exported without its model."""
        trace, codec = self.tree[id].trace, self.models.get(id, ("", None))[1]
        if codec is not None:
            trace.vocab.update({i: token_entry(codec, i) for i in trace.used_ids() if i not in trace.vocab})
        return trace

    def branches(self) -> dict[str, Any]:
        """The event `branches`."""
        lanes = {node: lane for lane, node in self.shown.items()}
        return {
            "type": "branches",
            "list": [
                {"id": f"b{n.id}", "parent": None if n.parent is None else f"b{n.parent}", "at": n.at_pass, "label": n.label, "lane": lanes.get(n.id)}
                for n in self.tree.nodes()
            ],
        }

    def _prune(self) -> None:
        keep = {n.id for id in self.shown.values() for n in self.tree.path(id)}
        while len(self.tree) > MOST_RUNS:
            old = next((n.id for n in self.tree.nodes() if n.id not in keep), None)
            if old is None:
                return
            for id in self.tree.remove(old):
                self.models.pop(id, None)

    # ---- what a run says ----------------------------------------------------------------------------------------------------

    def went_on(self) -> None:
        """The run goes on after a pause."""
        self.book.forget()

    def said(self) -> list[dict[str, Any]]:
        """The lists of the tab, as events: what a new run of messages begins with."""
        return [self.book.event(), self.branches()]

    def answered(self, messages: list[dict[str, str]], text: str) -> None:
        """Lane A finished its answer: the conversation is what was asked and this."""
        self.history = [*messages, {"role": "assistant", "content": text}]

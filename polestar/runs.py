"""The tree of runs: a decode, its forks, and theirs.

Contract: thread-safe; holds traces, no models and no sessions. A node's trace may still be growing. Ids are whole numbers, never used again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from polestar.config import parameter_names
from polestar.trace.compare import compare_traces
from polestar.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Node:
    """A run. `at_pass`: the last pass that it shares with `parent` (-1: none; None for a root)."""

    id: int
    parent: int | None
    at_pass: int | None
    label: str
    trace: Trace


class RunTree:
    """Runs by id. The first one is a root; there may be several."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[int, Node] = {}
        self._next = 1

    def add(self, trace: Trace, *, parent: int | None = None, at_pass: int | None = None, label: str = "") -> Node:
        """A new run; a fork names its parent (and takes `at_pass` from its header's parent unless given). Raises ValueError."""
        with self._lock:
            if parent is not None:
                mother = self._known(parent)
                if at_pass is None:
                    at_pass = (trace.header.parent or {}).get("pass")
                if at_pass is None or not -1 <= at_pass < max(1, len(mother.trace)):
                    raise ValueError(f"a fork of run {parent} cannot begin at pass {at_pass}; that run holds passes 0 to {len(mother.trace) - 1}")
            node = Node(self._next, parent, at_pass if parent is not None else None, label or describe(trace), trace)
            self._nodes[node.id] = node
            self._next += 1
        return node

    def remove(self, id: int) -> list[int]:
        """Take out a run and everything forked from it; returns the ids taken out. Raises ValueError."""
        with self._lock:
            self._known(id)
            gone = [id]
            for node in self._nodes.values():  # parents come before their children
                if node.parent in gone:
                    gone.append(node.id)
            for one in gone:
                del self._nodes[one]
        return gone

    def clear(self) -> None:
        """Take out all runs."""
        with self._lock:
            self._nodes.clear()

    def __getitem__(self, id: int) -> Node:
        """Raises ValueError when there is no such run."""
        with self._lock:
            return self._known(id)

    def __len__(self) -> int:
        return len(self._nodes)

    def nodes(self) -> list[Node]:
        """All runs, parents before children."""
        with self._lock:
            return list(self._nodes.values())

    def path(self, id: int) -> list[Node]:
        """From the root to the run."""
        out = [self[id]]
        while out[0].parent is not None:
            out.insert(0, self[out[0].parent])
        return out

    def leaves(self) -> list[Node]:
        """Runs from which none was forked."""
        mothers = {n.parent for n in self.nodes()}
        return [n for n in self.nodes() if n.id not in mothers]

    def shared(self, a: int, b: int) -> int:
        """How many passes two runs have in common: up to the pass where their ways parted; 0 for runs of different roots."""
        pa, pb = self.path(a), self.path(b)
        common = 0
        while common < min(len(pa), len(pb)) and pa[common].id == pb[common].id:
            common += 1
        if not common:
            return 0
        # Each way leaves the last common run at some pass (or ends with it).
        left = [p[common].at_pass + 1 if len(p) > common else len(p[common - 1].trace) for p in (pa, pb)]
        return min(left)

    def compare(self, a: int, b: int, tokenizer: Any = None) -> dict[str, Any]:
        """`polestar.trace.compare.compare_traces` of two runs, with "shared": passes they have in common."""
        return compare_traces(self[a].trace, self[b].trace, tokenizer) | {"shared": self.shared(a, b)}

    def to_json(self) -> list[dict[str, Any]]:
        """[{id, parent, pass, label, method, preset, passes, status}], parents before children."""
        return [
            {
                "id": n.id, "parent": n.parent, "pass": n.at_pass, "label": n.label, "method": n.trace.header.method,
                "preset": n.trace.header.preset, "passes": len(n.trace), "status": n.trace.status,
            }
            for n in self.nodes()
        ]  # fmt: skip

    def _known(self, id: int) -> Node:
        if id not in self._nodes:
            raise ValueError(f"there is no run {id!r}; the runs are: {', '.join(map(str, self._nodes)) or 'none'}")
        return self._nodes[id]


def describe(trace: Trace) -> str:
    """A short name of a run: its method and, of a fork, what was changed, by the names that people read."""
    h, parent = trace.header, trace.header.parent
    name = h.title or h.method
    if not parent:
        return name
    what = [name] if parent.get("switched") else []
    names = parameter_names(h.method)
    what += [f"{names.get(n, n)} = {('off', 'on')[v] if isinstance(v, bool) else v}" for n, v in (parent.get("changes") or {}).items()]
    edits = len(parent.get("edits") or ())
    if edits:
        what.append("1 edit" if edits == 1 else f"{edits} edits")
    return f"{', '.join(what) or 'unchanged'} from pass {parent.get('pass')}"

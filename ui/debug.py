"""The page's debugger commands: breakpoints, steps, forks, notes, exports, files, lessons, settings.

Contract: `commands(server)` is the table that `Server.command` looks in; each takes (tab, command), acts at once or leaves a run for the tab's stream,
and answers through the tab's channel. An answer that is a dict of settings goes to the page's controls. Errors are ValueError of
one sentence and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polestar.analysis import figures
from polestar.trace.check import check_notes
from polestar.trace.wire import plain

from . import exports, forks
from .examples import examples_of
from .lessons import lessons
from .runs import Request, Run
from .samples import sample_path
from .stream import status

LONGEST_NOTE = 2000
MODEL = "demo"  # of lessons, which are written for what it knows


def commands(server: Any) -> dict[str, Callable[[Any, dict[str, Any]], Any]]:
    """The commands, by name."""
    return {
        "breakpoint": lambda tab, c: tab.desk.book.act(c),
        "step": step,
        "fork": lambda tab, c: forks.begin_fork(tab, server.engine, c),
        "branch": forks.show_branch,
        "note": note,
        "figure": figure,
        "export": lambda tab, c: export(server, tab, c),
        "open": lambda tab, c: open_(server, tab, c),
        "settings": lambda tab, c: settings(c),
        "run": lambda tab, c: run(server, tab, c),
        "lesson": lambda tab, c: None,
        "hello": lambda tab, c: hello(server, tab),
    }


def hello(server: Any, tab: Any) -> None:
    """The page is there: what it was started with, and the lists that it shows."""
    if server.trace:
        server.show(tab, server.trace)
    tab.channel.put(methods_event(server.tables) if server.tables is not None else None, lessons(), *tab.desk.said())


def methods_event(tables: Any) -> dict[str, Any]:
    """The event `methods`: each with its parameters, and its presets as overrides of their defaults."""
    out = []
    for m in tables.methods.values():
        params = [
            {"name": p.name, "symbol": p.called, "help": p.help, "default": p.default, "kind": p.kind.__name__, "choices": p.choices} for p in m.specs.values()
        ]
        out.append({"name": m.name, "title": m.title, "params": params, "presets": m.presets})
    return {"type": "methods", "list": plain(out)}


def step(tab: Any, command: dict[str, Any]) -> None:
    """On to the next event, and pause there."""
    if tab.run is None or not tab.run.alive:
        raise ValueError("no run goes on here, so there is no next pass; press Run, or fork from a pass")
    tab.run.step(str(command.get("what") or "pass"), command.get("lane"))


def note(tab: Any, command: dict[str, Any]) -> None:
    """Add, edit or remove a note of a lane's trace."""
    lane, op, text = str(command.get("lane")), command.get("op"), command.get("text")
    trace = tab.trace(lane)
    if trace is None:
        raise ValueError(f"lane {lane[:10]!r} shows no run, so nothing can be noted there; run or open one first")
    if op in ("add", "edit") and (not isinstance(text, str) or not text.strip() or len(text) > LONGEST_NOTE):
        raise ValueError(f"a note has 1 to {LONGEST_NOTE} characters, not {len(text) if isinstance(text, str) else text!r}; write some, or fewer")
    if op == "add":
        entry = {"pass": command.get("pass"), "position": command.get("position"), "text": text.strip()}
        check_notes([entry], len(trace), trace.header.length)
        trace.notes.append(entry)
    elif op in ("edit", "remove"):
        index = command.get("index")
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(trace.notes):
            raise ValueError(f"there is no note {index!r} in lane {lane}; it has {len(trace.notes)}")
        if op == "edit":
            trace.notes[index] = {**trace.notes[index], "text": text.strip()}
        else:
            del trace.notes[index]
    else:
        raise ValueError(f"notes have no operation {op!r}; use add, edit or remove")
    tab.channel.put({"type": "notes", "lane": lane, "notes": plain(trace.notes)})


def figure(tab: Any, command: dict[str, Any]) -> None:
    """The paper's figures of an observed lane, and of one position."""
    trace = tab.trace(str(command.get("lane")))
    if trace is None:
        raise ValueError(f"lane {str(command.get('lane'))[:10]!r} shows no run, so it has no figures; run or open one first")
    position = command.get("position")
    if position is not None and (isinstance(position, bool) or not isinstance(position, int)):
        raise ValueError(f"the position of a figure is a whole number, not {str(position)[:20]!r}; select a token")
    made: dict[str, Any] = {}
    wanted = {"selection": (figures.selection, ()), "cumulative": (figures.cumulative_staleness, ())}
    if position is not None:
        wanted |= {"progress": (figures.progress, (position,)), "path": (figures.value_path, (position,))}
    for name, (make, given) in wanted.items():
        try:
            made[name] = make(trace, *given)
        except (ValueError, KeyError) as error:  # KeyError: a saved trace without the large extras of observe mode
            made[name] = {
                "error": str(error) if isinstance(error, ValueError) else f"this trace does not hold {error}, which the figure needs; record it again"
            }
    tab.channel.put({"type": "figure", "lane": str(command.get("lane")), "position": position, "figures": plain(made)})


def export(server: Any, tab: Any, command: dict[str, Any]) -> None:
    """Make a file and tell the page where it is."""
    what, lane, desk = command.get("what"), str(command.get("lane")), tab.desk
    if what not in exports.SUFFIXES:
        raise ValueError(f"a run is not exported as {str(what)[:20]!r}; choose one of {', '.join(exports.SUFFIXES)}")
    desk.at(lane)
    wanted = sorted(desk.shown) if what == "html" else [lane]
    traces = {x: desk.trace(desk.shown[x]) for x in wanted}
    name, left_out = exports.file_name(what, traces), []
    url = server.shelf.put(tab, name, lambda path: left_out.extend(exports.write(what, traces, path)))
    tab.channel.put({"type": "file", "name": name, "url": url, "left_out": left_out})


def open_(server: Any, tab: Any, command: dict[str, Any]) -> None:
    """Show a sample or what was put in, alone or in a lane beside the other."""
    from polestar.trace.file import load

    name = str(command.get("name", ""))
    path = server.shelf.uploaded(name)
    file = path or sample_path(name)
    known = None if path else next((n for n in tab.desk.tree.nodes() if n.label.endswith(f": sample {name}")), None)
    trace = known.trace if known else load(file)
    forks.show_trace(tab, trace, command.get("lane"), label="" if path else f"sample {name}", known=known and known.id)


def settings(command: dict[str, Any]) -> dict[str, Any]:
    """What a short link says the controls are; the page's own listener checks and fills them."""
    values = command.get("values")
    if not isinstance(values, dict) or len(values) > 200:
        raise ValueError("the link holds no settings that can be read; copy it again, whole")
    return values


def run(server: Any, tab: Any, command: dict[str, Any]) -> dict[str, Any]:
    """A run that a lesson asks for: its settings go to the controls too."""
    prompt, changes = command.get("prompt"), command.get("changes") or {}
    prompt = examples_of(MODEL)[0][1] if prompt is None else prompt
    a, b = command.get("method") or "polestar", command.get("method_b") or None
    if not isinstance(prompt, str) or not isinstance(changes, dict):
        raise ValueError("this lesson's run has a prompt that is no text, or changes that are no table; correct its file")
    lanes = {}
    for lane, method in (("A", a), ("B", b)):
        if method:
            known = server.engine.config(str(method), "paper", {})  # raises for a method that is not there
            mine = {name: value for name, value in changes.items() if name in known}
            server.engine.config(str(method), "paper", mine)
            lanes[lane] = (str(method), "paper", mine)
    unknown = [name for name in changes if not any(name in mine for _, _, mine in lanes.values())]
    if unknown:
        raise ValueError(f"{a} has no parameter {unknown[0]!r}, which this lesson changes; correct its file")
    tab.stop()
    model = str(command.get("model") or MODEL)
    level = "observe" if command.get("observe") else "full"
    tab.desk.show({})
    tab.channel.begin(*tab.desk.said(), status("queued", "waiting for the model"))
    tab.run, tab.traces, tab.waiting = None, {}, set()
    tab.next = Run(tab.channel, server.engine, Request(model=model, prompt=prompt, lanes=lanes, level=level), tab.desk)
    return {"prompt": prompt, "method_a": a, "method_b": b, "compare": b is not None, "preset": "paper", "model": model, **changes}

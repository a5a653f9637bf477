"""What tests of the page share: feeding it, sending one more event, the commands it sent, the bundled lessons and recordings."""

from __future__ import annotations

import json
from pathlib import Path

LESSONS = Path(__file__).resolve().parents[2] / "assets" / "lessons"


def feed(tab, messages) -> None:
    tab.evaluate("(m) => { for (const x of m) page.receive(x); page.store.flush(); }", messages)
    tab.wait_for_function("() => page.store.theme && page.store.open.every((l) => page.grids[l].layout())")


def push(tab, *events) -> None:
    """One more message of the run that is shown."""
    tab.evaluate(
        "(events) => { page.receive(JSON.stringify({v: 1, run: page.store.run, seq: page.store.nextSeq, events})); page.store.flush(); }", list(events)
    )


def settle(tab) -> None:
    """Three frames: a panel that has just been shown knows its size and has drawn."""
    tab.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))))")


def last(tab):
    return tab.evaluate("() => sent.at(-1) ?? null")


def events_of(messages, kind, lane="A"):
    return [e for m in messages for e in json.loads(m)["events"] if e["type"] == kind and e.get("lane") == lane]


def steps_of(messages, lane="A"):
    return [s for e in events_of(messages, "steps", lane) for s in e["steps"]]


def open_panel(tab, name):
    """Open a tab of the right column as a person would; answers its panel."""
    tab.get_by_role("tab", name=name, exact=True).click()
    settle(tab)
    return tab.get_by_role("tabpanel", name=name, exact=True)


def select(tab, position, lane="A") -> None:
    """Choose a cell with the mouse."""
    box = tab.locator(f'section[aria-label="Lane {lane}"] .grid-cv')
    at = tab.evaluate("([lane, position]) => page.grids[lane].place(position)", [lane, position])
    box.click(position={"x": at["x"] + 8, "y": at["y"] + 8})
    tab.evaluate("() => page.store.flush()")


def lesson_files():
    return [p for p in sorted(LESSONS.glob("*.md")) if p.stem != "README"]


def lessons_event():
    return {"type": "lessons", "list": [{"name": p.stem, "title": None, "order": None, "markdown": p.read_text()} for p in lesson_files()]}


def recording(name, *lanes):
    """The bundled recordings as the server would send them."""
    from polestar.trace.file import load
    from polestar.trace.wire import messages

    traces = {lane: load(LESSONS.parent / "traces" / f"{file}.safetensors") for lane, file in zip("AB", lanes, strict=False)}
    return messages(traces, run=name)

"""What happens when a control is touched.

Contract: every listener either answers from the tables at once, or hands over to `ui.server`; none waits for a forward pass. The bus is the
only output of a decode.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from . import blocks, fetching, settings
from .controls import classes, half_written, hold, hold_k, limits, refill, seen
from .lanes import Lanes, reach
from .layout import DETAILS, ORDERS, PACES, Parts
from .runs import Request
from .server import Server
from .tables import Tables
from .toast import toast

QUICK = {"queue": False, "show_progress": "hidden", "trigger_mode": "multiple", "api_visibility": "private"}
STREAM = {"show_progress": "hidden", "trigger_mode": "multiple", "concurrency_limit": None, "api_visibility": "private"}
LIVE = {**QUICK, "trigger_mode": "always_last"}
FLIP = "() => { const c = document.body.classList; const dark = c.toggle('dark'); c.toggle('light', !dark); }"


def wire(page: gr.Blocks, tables: Tables, parts: Parts, server: Server) -> None:
    """Connect everything. Call inside the open Blocks."""
    _runs(tables, parts, server)
    _live(page, parts, server)
    _choices(parts, server)
    server.tables = tables
    fetching.wire(page, parts.model, parts.fetch, server.fetcher)

    def leave(http: gr.Request) -> None:
        server.leave(http.session_hash)

    page.unload(leave)
    parts.buttons["theme"].click(None, None, None, js=FLIP)
    for button, text in parts.examples:
        button.click(None, None, parts.prompt, js=f"() => {json.dumps(text)}", show_progress="hidden")


def _runs(tables: Tables, parts: Parts, server: Server) -> None:
    """Run, the commands of the page, and the buttons that are commands too."""
    first = [parts.prompt, parts.talk, parts.model, parts.pace, parts.order, parts.detail]

    async def run(http: gr.Request, prompt, talk, model, pace, order, detail, *given) -> AsyncIterator[str]:
        how = {"interleave": ORDERS[order], "pace": PACES[pace], "level": DETAILS[detail], "talk": bool(talk)}
        request = Request(model=model or "", prompt=prompt or "", lanes=_read(parts, given).lanes(), **how)
        async for value in server.run(http.session_hash, request):
            yield value

    async def drain(http: gr.Request) -> AsyncIterator[str]:
        async for value in server.drain(http.session_hash):
            yield value

    wish = gr.Textbox(visible="hidden", elem_id="ps-wish")  # settings on their way to the controls (a gr.State tells of changes through the queue alone)

    def command(event: gr.EventData, http: gr.Request):
        values = server.command(http.session_hash, event._data)
        return gr.skip() if values is None else json.dumps([time.monotonic_ns(), values])  # the same settings twice are two wishes

    def fill(wanted: str, *given):
        updates, said, lanes = settings.fill(tables, parts, json.loads(wanted)[1], _read(parts, given))
        return [*updates, *_beside(lanes), toast("; ".join(said[:3])) if said else gr.skip()]

    def press(name: str):
        def act(http: gr.Request) -> None:
            server.command(http.session_hash, {"cmd": name})

        return act

    inputs = [*first, *_lanes(parts)]
    gr.on([parts.buttons["run"].click, parts.prompt.submit], run, inputs, parts.bus, **STREAM)
    wish.change(fill, [wish, *_lanes(parts)], [*settings.outputs(parts), *_outputs(parts), parts.toasts], **LIVE)
    parts.buttons["copy"].click(None, [parts.note, *settings.outputs(parts)], None, js=settings.COPY % json.dumps(settings.names(parts)))
    parts.bus.command(command, None, wish, **QUICK).then(drain, None, parts.bus, **STREAM)
    for name in ("pause", "continue", "step", "stop"):
        parts.buttons[name].click(press(name), None, None, **QUICK)


def _live(page: gr.Blocks, parts: Parts, server: Server) -> None:
    """Parameters and pace that move during a run."""

    def setter(name: str):
        param = parts.params.params[name]

        def act(value: Any, both: bool, note: str, http: gr.Request):
            if value in (None, "") or half_written(param, value):  # an emptied box says what it is when it is left (see `refill`)
                return gr.skip()
            value, sentence = hold(param, value) if param.name != "k" else (value, "")  # k has a listener of its own
            if param.live != "run":
                sentence = server.set(server.tab(http.session_hash), name, value, reach(note, name) if both else None) or sentence
            return (gr.update(value=value), toast(sentence)) if sentence else gr.skip()

        return act

    def finisher(name: str):
        def act(value: Any):
            held, sentence = hold(parts.params.params[name], value)
            if not half_written(parts.params.params[name], value):
                return gr.skip()
            return gr.update(value=held), toast(sentence)

        return act

    _tells(parts, gr.on, [c.input for c in parts.params.components])
    for name, component in parts.params.of.items():
        called = parts.params.params[name].called
        if parts.params.params[name].live != "run" or isinstance(component, (gr.Slider, gr.Number)):
            _heard(component.input(setter(name), [component, parts.compare, parts.note], [component, parts.toasts], **LIVE), called, parts)
        if isinstance(component, gr.Slider) and limits(parts.params.params[name])[0] > 0:
            _heard(component.release(finisher(name), component, [component, parts.toasts], **LIVE), called, parts)

    def set_pace(value: str, http: gr.Request) -> None:
        server.set(server.tab(http.session_hash), "pace", PACES[value])

    parts.pace.input(set_pace, parts.pace, None, **LIVE)

    emptied = gr.Textbox(visible="hidden", elem_id="ps-emptied")
    emptied.change(None, emptied, parts.toasts, js="(said) => said", **QUICK)
    page.load(None, None, None, js=refill(parts.params.params))

    def keep_k(clusters: Any, k: Any):
        if clusters is None:
            return gr.skip()
        update, sentence = hold_k(hold(parts.params.params["K"], clusters)[0], k)
        return update, toast(sentence) if sentence else gr.skip()

    of = parts.params.of
    if "K" in of and "k" in of:
        # K once it is let go or left: 16 is typed by way of 1, and the click that enters its box counts as letting go.
        left = "(K, k) => [document.activeElement?.matches('#ps-K input[type=number]') ? null : K, k]"
        _heard(gr.on([of["K"].release, of["k"].input], keep_k, [of["K"], of["k"]], [of["k"], parts.toasts], js=left, **LIVE), "k", parts)


def _choices(parts: Parts, server: Server) -> None:
    """Methods, presets, the lane that is shown, model: what is in sight and what the controls say."""
    components = parts.params.components
    filled = [parts.method_b, parts.preset, parts.preset_b, *_outputs(parts), *parts.params.components]

    def shown(lanes: Lanes) -> list[Any]:
        on = lanes.shown
        return [
            gr.update(visible=seen(lanes.both)),
            gr.update(choices=lanes.presets("A"), value=lanes.preset, visible=seen(on == "A")),
            gr.update(choices=lanes.presets("B"), value=lanes.preset_b, visible=seen(on == "B")),
            *_beside(lanes),
            *parts.params.show(lanes.values if on == "A" else lanes.of_b(), lanes.method_a if on == "A" else lanes.method_b),
        ]

    def settle(http: gr.Request, side, *given):
        """Whatever was chosen; controls that say already what they should are left alone, for they may be moving."""
        lanes = _read(parts, given)
        if news := lanes.news(given[0]):
            server.next_run(http.session_hash, news)
        updates = shown(lanes.settled().with_b().show(side))
        if lanes.show(side).shown == side:
            updates[filled.index(parts.side)].pop("value")
        for update, value in zip(updates[-len(components) :], given[-len(components) :], strict=True):
            if update["value"] == value and isinstance(update["value"], bool) is isinstance(value, bool):  # 10 from the page is 10.0
                del update["value"]
        return updates

    def same(http: gr.Request, *given):
        server.next_run(http.session_hash, "lane B set as lane A")
        return shown(_read(parts, given).same())

    def reset(*given):
        return shown(_read(parts, given).reset())

    chosen = [parts.method_a, parts.preset, parts.compare, parts.method_b, parts.preset_b, parts.side]
    # One listener, one answer at a time: it reads the page as it is then, so that quick clicks cannot mix the lanes.
    settled = _heard(gr.on([c.input for c in chosen], settle, [parts.side, *_lanes(parts)], filled, **LIVE), "the controls", parts)
    followed = _heard(parts.buttons["same"].click(same, _lanes(parts), filled, **LIVE), "lane B", parts)
    back = _heard(parts.buttons["reset"].click(reset, _lanes(parts), filled, **LIVE), "the controls", parts)
    for listener in (settled, followed, back):  # a control that moved meanwhile was not in what these read; the line is told of the page as it is
        _tells(parts, listener.then)

    def chips(model):
        own = model if model in parts.chips else ""
        return [gr.update(elem_classes=classes(name == own, "ps-chips")) for name in parts.chips]

    parts.model.change(chips, parts.model, list(parts.chips.values()), **QUICK)


def _tells(parts: Parts, on: Any, *when: Any) -> None:
    """The line of lane B and of the blocks is told anew."""

    def tell(*given):
        return _said(_read(parts, given))

    on(*when, tell, _lanes(parts), [parts.told, parts.buttons["same"], parts.plan], **LIVE)


def _heard(listener: Any, what: str, parts: Parts) -> Any:
    """A listener that fails says so: in the browser, for its answer may be what gradio could not take."""
    sentence = json.dumps(f"{what} could not be changed; see the log of the server.")
    listener.failure(None, None, parts.toasts, js=f"() => JSON.stringify([Date.now(), {sentence}])", **QUICK)
    return listener


# ---- both lanes, as every listener that needs them reads and tells them ------------------------------------------------------


def _lanes(parts: Parts) -> list[Any]:
    """The components that `_read` reads."""
    own = [parts.note, parts.base, parts.method_a, parts.compare, parts.method_b, parts.preset, parts.preset_b]
    return [*own, *parts.params.components]


def _read(parts: Parts, given: Any) -> Lanes:
    note, base, a, both, b, preset, preset_b, *values = given
    return Lanes.read(parts.params, base, a, both, b, preset, preset_b, note, values)


def _outputs(parts: Parts) -> list[Any]:
    """The components that `_beside` updates."""
    return [parts.base, parts.side, parts.note, parts.told, parts.buttons["same"], parts.plan]


def _beside(lanes: Lanes) -> list[Any]:
    return [lanes.base, gr.update(value=lanes.shown, visible=seen(lanes.both)), lanes.note(), *_said(lanes)]


def _said(lanes: Lanes) -> list[Any]:
    return [gr.update(value=lanes.told(), visible=seen(lanes.both)), gr.update(visible=seen(lanes.both), interactive=lanes.differ()), blocks.says(lanes)]

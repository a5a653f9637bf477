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

from . import fetching, settings
from .controls import half_written, hold, hold_k, limits
from .layout import DETAILS, ORDERS, PACES, Parts
from .runs import Request
from .server import Server
from .tables import Tables

QUICK = {"queue": False, "show_progress": "hidden", "trigger_mode": "multiple", "api_visibility": "private"}
STREAM = {"show_progress": "hidden", "trigger_mode": "multiple", "concurrency_limit": None, "api_visibility": "private"}
LIVE = {**STREAM, "trigger_mode": "always_last"}  # through the queue, which is what carries gr.Info to the page
FLIP = "() => { const c = document.body.classList; const dark = c.toggle('dark'); c.toggle('light', !dark); }"


def wire(page: gr.Blocks, tables: Tables, parts: Parts, server: Server) -> None:
    """Connect everything. Call inside the open Blocks."""
    _runs(tables, parts, server)
    _live(parts, server)
    _choices(tables, parts, server)
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
    first = [parts.prompt, parts.talk, parts.model, parts.method_a, parts.compare, parts.method_b, parts.preset, parts.pace, parts.order, parts.detail]

    async def run(http: gr.Request, prompt, talk, model, a, both, b, preset, pace, order, detail, *given) -> AsyncIterator[str]:
        values = parts.params.values(given)
        lanes = {"A": (a, preset, _only(tables, values, a))}
        if both:
            lanes["B"] = (b, preset if preset in tables.methods[b].presets else "paper", _only(tables, values, b))
        how = {"interleave": ORDERS[order], "pace": PACES[pace], "level": DETAILS[detail], "talk": bool(talk)}
        request = Request(model=model or "", prompt=prompt or "", lanes=lanes, **how)
        async for value in server.run(http.session_hash, request):
            yield value

    async def drain(http: gr.Request) -> AsyncIterator[str]:
        async for value in server.drain(http.session_hash):
            yield value

    wish = gr.Textbox(visible="hidden", elem_id="ps-wish")  # settings on their way to the controls (a gr.State tells of changes through the queue alone)

    def command(event: gr.EventData, http: gr.Request):
        values = server.command(http.session_hash, event._data)
        return gr.skip() if values is None else json.dumps([time.monotonic_ns(), values])  # the same settings twice are two wishes

    def fill(wanted: str):
        values = json.loads(wanted)[1]
        updates, said = settings.fill(tables, parts, values)
        if said:
            gr.Warning("; ".join(said[:3]), duration=8)
        return [*updates, settings.base(tables, parts, values)]

    def press(name: str):
        def act(http: gr.Request) -> None:
            server.command(http.session_hash, {"cmd": name})

        return act

    inputs = [*first, *parts.params.components]
    gr.on([parts.buttons["run"].click, parts.prompt.submit], run, inputs, parts.bus, **STREAM)
    wish.change(fill, wish, [*settings.outputs(parts), parts.base], **LIVE)
    parts.buttons["copy"].click(None, settings.outputs(parts), None, js=settings.COPY % json.dumps(settings.names(parts)))
    parts.bus.command(command, None, wish, **QUICK).then(drain, None, parts.bus, **STREAM)
    for name in ("pause", "continue", "step", "stop"):
        parts.buttons[name].click(press(name), None, None, **QUICK)


def _live(parts: Parts, server: Server) -> None:
    """Parameters and pace that move during a run."""

    def setter(name: str):
        param = parts.params.params[name]

        def act(value: Any, http: gr.Request):
            if half_written(param, value):
                return gr.skip()
            value, sentence = hold(param, value) if param.name != "k" else (value, "")  # k has a listener of its own
            if param.live != "run":
                sentence = server.set(server.tab(http.session_hash), name, param.default if value in (None, "") else value) or sentence
            if sentence:
                gr.Warning(sentence, duration=6)
                return gr.update(value=value)
            return gr.skip()

        return act

    def finisher(name: str):
        def act(value: Any):
            held, sentence = hold(parts.params.params[name], value)
            if not half_written(parts.params.params[name], value):
                return gr.skip()
            gr.Warning(sentence, duration=6)
            return gr.update(value=held)

        return act

    for name, component in parts.params.of.items():
        if parts.params.params[name].live != "run" or isinstance(component, (gr.Slider, gr.Number)):
            component.input(setter(name), component, component, **LIVE)
        if isinstance(component, gr.Slider) and limits(parts.params.params[name])[0] > 0:
            component.release(finisher(name), component, component, **LIVE)

    def set_pace(value: str, http: gr.Request) -> None:
        server.set(server.tab(http.session_hash), "pace", PACES[value])

    parts.pace.input(set_pace, parts.pace, None, **LIVE)

    def keep_k(clusters: Any, k: Any):
        update, sentence = hold_k(hold(parts.params.params["K"], clusters)[0], k)
        if sentence:
            gr.Info(sentence, duration=6)
        return update

    of = parts.params.of
    if "K" in of and "k" in of:
        gr.on([of["K"].input, of["k"].input], keep_k, [of["K"], of["k"]], of["k"], **LIVE)


def _choices(tables: Tables, parts: Parts, server: Server) -> None:
    """Method, preset, model: what is shown and what the controls say."""
    lanes = [parts.method_a, parts.compare, parts.method_b]
    components = parts.params.components

    def settle(said, a, both, b, preset, given):
        """Everything at a preset, but for what the person changed since the last one (`said`)."""
        preset = preset if preset in tables.methods[a].presets else "paper"
        now, b = parts.params.base(a, b if both else None, preset), b if both else None
        kept = parts.params.changed(given, said) if said is not None else {}
        return [gr.update(choices=list(tables.methods[a].presets), value=preset), now, *parts.params.preset(a, b, preset, kept)]

    def chosen(http: gr.Request, said, a, both, b, preset, *given):
        server.next_run(http.session_hash, "new method or preset")
        return settle(said, a, both, b, preset, given)

    def reset(a, both, b):
        return settle(None, a, both, b, "paper", ())

    def visibility(http: gr.Request, a, both, b):
        server.next_run(http.session_hash, "new lane B")
        return [gr.update(visible=bool(both)), *parts.params.visibility(a, b if both else None)]

    filled = [parts.preset, parts.base, *components]
    gr.on([parts.method_a.input, parts.preset.input], chosen, [parts.base, *lanes, parts.preset, *components], filled, **QUICK)
    parts.buttons["reset"].click(reset, lanes, filled, **QUICK)
    gr.on([parts.compare.input, parts.method_b.input], visibility, lanes, [parts.method_b, *components], **QUICK)

    def chips(model):
        own = model if model in parts.chips else ""
        return [gr.update(visible=name == own) for name in parts.chips]

    parts.model.change(chips, parts.model, list(parts.chips.values()), **QUICK)


def _only(tables: Tables, values: dict[str, Any], method: str) -> dict[str, Any]:
    """The values that a method takes."""
    return {name: value for name, value in values.items() if name in tables.methods[method].specs}

"""The controls of a decode, made from the tables of methods and parameters.

Contract: every parameter of every method in the table gets one native control with one sentence of help and the paper's default; a new
method or parameter needs nothing here. Values travel as a dict by parameter name. Knows the tables, not the engine.
"""

from __future__ import annotations

import json
import math
from abc import ABCMeta
from collections.abc import Iterable
from typing import Any

import gradio as gr

from polestar.config import Param

from .tables import Tables

# Ranges worth a slider on the page, where the parameter itself allows far more.
RANGES = {
    "gen_length": (8, 512), "block_length": (1, 128), "K": (1, 32), "k": (1, 32), "tau_upd": (0, 64), "window_prefix": (0, 8),
    "window_suffix": (0, 8), "alpha": (0, 50), "h": (0, 32), "temperature": (0, 2), "tau_s": (0, 1.05), "tau_suf": (0, 1.05),
}  # fmt: skip
STEPS = {"gen_length": 8}
SHORT = {"block_length": "B"}  # where there is no room for the name
GROUPS = {"cache": "Cache", "commit": "Commit", "method": "Method", "length": "Run", "run": "Run"}


def paper_values(tables: Tables, method: str, preset: str = "paper") -> dict[str, Any]:
    """Every value of a method's preset, by name."""
    row = tables.methods[method]
    return {name: p.default for name, p in row.specs.items()} | dict(row.presets.get(preset, {}))


def names_of(tables: Tables, methods: Iterable[str]) -> set[str]:
    """Parameters that at least one of the methods has."""
    return {name for m in methods if m in tables.methods for name in tables.methods[m].specs}


def shown(value: Any) -> str:
    """A default as the help says it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def help_of(param: Param) -> str:
    """One sentence of help, then the paper's default."""
    when = {"pass": "", "block": " Takes effect at the next block.", "run": " Takes effect in the next run."}[param.live]
    return f"{param.help} Default: {shown(param.default)}.{when}"


def seen(on: bool) -> bool | str:
    """The `visible` of an update: what is not seen stays in the page. Gradio would take it out in the middle of its own event and leave a clock running,
    which has the browser make a frame 60 times a second for ever."""
    return True if on else "hidden"


def classes(on: bool, *own: str) -> list[str]:
    """The `elem_classes` of a row or column that is in sight or not: gradio shows these where `visible` is "hidden", so a rule of app.css hides them."""
    return [*own] if on else [*own, "ps-away"]


def make_control(param: Param, visible: bool, value: Any) -> gr.components.Component:
    """The native control of a parameter, at `value`."""
    common = {"label": SHORT.get(param.name, param.called), "info": help_of(param), "visible": visible, "elem_classes": ["ps-param"],
              "elem_id": f"ps-{param.name}", "interactive": True}  # fmt: skip
    if param.kind is bool:
        return gr.Checkbox(value=value, **{**common, "elem_classes": ["ps-switch"]})
    if param.choices:
        return gr.Dropdown(value=value, choices=list(param.choices), **{**common, "elem_classes": ["ps-choice"]}, filterable=False)
    if param.kind is str or math.isinf(param.default):  # a number box has no infinity; text "inf" is understood
        return gr.Textbox(value=written(value), **{**common, "elem_classes": ["ps-number"]})
    low, high = RANGES.get(param.name, (param.minimum, param.maximum))
    if low is None or high is None or high - low > 4096 or math.isinf(high):
        return Number(value=value, minimum=param.minimum, maximum=param.maximum, precision=0 if param.kind is int else None,
                      **{**common, "elem_classes": ["ps-number"]})  # fmt: skip
    step = STEPS.get(param.name, param.step or (1 if param.kind is int else 0.01))
    return Slider(value=value, minimum=low, maximum=high, step=step, **common)


def marks_css(params: dict[str, Param]) -> str:
    """Style that marks the default of every slider on its track."""
    rules = []
    for param in params.values():
        low, high = RANGES.get(param.name, (param.minimum, param.maximum))
        if param.kind in (int, float) and low is not None and high is not None and low <= param.default <= high and high > low:
            rules.append(f"#ps-{param.name} {{ --paper: {(param.default - low) / (high - low):.4f} }}")
    return "\n".join(rules)


# In the browser, before the box itself hears that it was left: it would put its least value there, and Run might be pressed before the server answers.
REFILL = """() => {
  const own = %s;
  document.addEventListener('blur', ({target: box}) => {
    const [name, value] = own[box.closest?.('[id^=ps-]')?.id] ?? [];
    if (name === undefined || box.type === 'range' || box.value.trim()) return;
    const write = (at, text) => {
      at.value = text;
      at.dispatchEvent(new Event('input', {bubbles: true}));
    };
    write(box, value);
    const said = document.querySelector('#ps-emptied textarea, #ps-emptied input');
    write(said, JSON.stringify([Date.now(), `${name} was left empty; it is ${value} now, its default.`]));
  }, true);
}"""


def refill(params: dict[str, Param]) -> str:
    """A script that puts the default into a number's box that is left empty, as if it were typed, and says so in the box `ps-emptied`."""
    boxes = {f"ps-{p.name}": [SHORT.get(p.name, p.called), shown(p.default)] for p in params.values() if p.kind in (int, float)}
    return REFILL % json.dumps(boxes)


class Plain(type(gr.Slider)):
    """Makes a component's class without writing a stub file beside this module."""

    def __new__(cls, name, bases, attrs):
        return ABCMeta.__new__(cls, name, bases, attrs)


class Slider(gr.Slider, metaclass=Plain):
    """The native slider; a number outside its range reaches the listeners, which correct it and name the control (see `hold`)."""

    is_template = True

    def preprocess(self, payload: float) -> float:
        """The number as it was typed."""
        return payload if payload is None else gr.Number.round_to_precision(payload, self.precision)


class Number(gr.Number, metaclass=Plain):
    """The native number box, likewise."""

    is_template = True

    def preprocess(self, payload: float | None) -> float | int | None:
        """The number as it was typed."""
        return payload if payload is None else gr.Number.round_to_precision(payload, self.precision)


class Controls:
    """All parameter controls of the page. Make it inside a `gr.Blocks`."""

    def __init__(self, tables: Tables, method: str, start: dict[str, Any]):
        """`method`: lane A's at first. `start`: values to begin with that are not those of its paper preset."""
        self.tables = tables
        self.params = tables.params()
        self.start = self.base(method, "paper") | start
        self.of: dict[str, gr.components.Component] = {}
        visible = names_of(tables, [method])
        plain = [p for p in self.params.values() if not p.expert]
        for group in dict.fromkeys(GROUPS.values()):
            mine = [p for p in plain if GROUPS.get(p.group, "Method") == group]
            if not mine:
                continue
            with gr.Group(elem_classes=["ps-group"], elem_id=f"ps-group-{group.lower()}"):
                gr.HTML(html_template=f"<h2>{group}</h2>", elem_classes=["ps-head"], apply_default_css=False)
                for p in mine:
                    if p.kind is not bool:
                        self.of[p.name] = make_control(p, p.name in visible, self.start[p.name])
                switches = [p for p in mine if p.kind is bool]
                if switches:
                    with gr.Row(elem_classes=["ps-switches"]):
                        for p in switches:
                            self.of[p.name] = make_control(p, p.name in visible, self.start[p.name])
        with gr.Accordion("More parameters", open=False, elem_id="ps-more"):
            for p in self.params.values():
                if p.expert:
                    self.of[p.name] = make_control(p, p.name in visible, self.start[p.name])

    @property
    def names(self) -> list[str]:
        """Parameter names, in the order of `components`."""
        return list(self.of)

    @property
    def components(self) -> list[gr.components.Component]:
        """The controls themselves."""
        return list(self.of.values())

    def values(self, given: Iterable[Any]) -> dict[str, Any]:
        """Values of the controls, in their order, as a dict of what they mean (see `parsed`)."""
        return self.parsed(dict(zip(self.names, given, strict=True)))

    def parsed(self, written: dict[str, Any]) -> dict[str, Any]:
        """What was written in controls, by name: an empty box is the default, numbers are kept in range, what cannot be read stays as it is."""
        out = {}
        for name, value in written.items():
            param = self.params.get(name)
            if param is None:
                continue
            value = param.default if value is None or value == "" else hold(param, value)[0]
            try:
                out[name] = param.parse(value)
            except ValueError:  # half written; a run would say so
                out[name] = value
        return out

    def base(self, method: str, preset: str) -> dict[str, Any]:
        """What every control says when nothing was changed by hand: the preset of the method, and defaults where the method has none."""
        return {name: param.default for name, param in self.params.items()} | paper_values(self.tables, method, preset)

    def changed(self, values: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
        """The values that are not those of `base`: what the person changed."""
        out = {}
        for name, value in self.parsed(values).items():
            try:
                self.params[name].parse(value)
            except ValueError:  # half written; not worth keeping
                continue
            if value != base[name]:
                out[name] = value
        return out

    def show(self, values: dict[str, Any], method: str) -> list[Any]:
        """Updates that put every control to its value, and show those that the method has."""
        used = names_of(self.tables, [method])
        most = k_limit(values["K"]) if "k" in values and "K" in values else None
        out = []
        for name in self.names:
            value, more = values[name], {}
            if name == "k" and most is not None:
                value, more = min(value, most), {"maximum": k_end(most)}
            out.append(gr.update(value=written(value), visible=seen(name in used), **more))
        return out


def written(value: Any) -> Any:
    """Infinity as text, everything else as it is."""
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def k_limit(clusters: Any) -> int:
    """The most clusters that a refresh can recompute."""
    return max(1, int(clusters or 1))


def k_end(most: int) -> int:
    """Where k's slider ends. A slider needs two values, so with one cluster its second one is out of reach: `hold_k` takes it back."""
    return max(RANGES["k"][0] + 1, most)


def limits(param: Param) -> tuple[float, float]:
    """The range that a parameter's control offers."""
    low, high = RANGES.get(param.name, (param.minimum, param.maximum))
    return -math.inf if low is None else low, math.inf if high is None else high


def hold(param: Param, value: Any) -> tuple[Any, str]:
    """A number kept inside its control's range: the value and a sentence that names the control ("" when nothing was wrong)."""
    low, high = limits(param)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or low <= value <= high:
        return value, ""
    held = param.kind(low if value < low else high)
    name = SHORT.get(param.name, param.called)
    return held, f"{name} = {value:.10g} is outside {low:.10g} to {high:.10g}; {name} is {held:.10g} now."


def half_written(param: Param, value: Any) -> bool:
    """Can more digits still bring the number into its control's range? (The 1 of a 128 where 8 is the least.)"""
    return isinstance(value, (int, float)) and 0 <= value < limits(param)[0]


def hold_k(clusters: Any, k: Any) -> tuple[Any, str]:
    """k kept at most K, in sight: the update of k's control and a sentence ("" when nothing was wrong)."""
    most = k_limit(clusters)
    if k is not None and k > most:
        return gr.update(value=most, maximum=k_end(most)), f"k = {k:g} is more than K = {most} cluster{'s' * (most > 1)}; k is {most} now."
    return gr.update(maximum=k_end(most)), ""

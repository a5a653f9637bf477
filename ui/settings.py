"""Settings as a table: what the controls say, and controls filled from it (a short link, a lesson).

Contract: `fill` answers one update for each control, in the order of `outputs`; a value that a control cannot take leaves that control as it is
and is said. Nothing is run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gradio as gr

from .controls import seen
from .lanes import SAME, Lanes
from .layout import DETAILS, Parts
from .tables import Tables

LONGEST_PROMPT = 20_000
OWN = ("prompt", "model", "method_a", "compare", "method_b", "preset", "preset_b", "detail")  # the rest are lane A's parameters, and "lane_b"
LANES = {"method_a", "method_b", "compare", "preset", "preset_b"}  # where one is given, lane B has only what is given for it

# In the browser, so that nothing waits for the server: the controls' values (after the note of ui/lanes.py) as a link that fills them again.
COPY = """(note, ...values) => {
  const names = %s;
  const s = Object.fromEntries(names.map((name, i) => [name, values[i]]).filter(([, v]) => v !== null && v !== undefined));
  const {shown, values: a, followed, own} = JSON.parse(note);
  s.lane_b = own;
  if (shown === 'B') {
    s.lane_b = Object.fromEntries(Object.keys(followed).filter((name) => name in s && s[name] !== followed[name]).map((name) => [name, s[name]]));
    Object.assign(s, a);
  }
  const text = String.fromCharCode(...new TextEncoder().encode(JSON.stringify({s})));
  const link = `${location.origin}${location.pathname}#ps=${btoa(text).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '')}`;
  navigator.clipboard?.writeText(link).catch(() => {});
  window.polestarLink = link;
}"""


def outputs(parts: Parts) -> list[Any]:
    """The controls that settings fill, OWN first."""
    return [*(getattr(parts, name) for name in OWN), *parts.params.components]


def names(parts: Parts) -> list[str]:
    """Names of `outputs`."""
    return [*OWN, *parts.params.names]


def fill(tables: Tables, parts: Parts, values: dict[str, Any], now: Lanes | None = None) -> tuple[list[Any], list[str], Lanes]:
    """(updates of `outputs`, sentences about what could not be filled, the lanes then). `now`: the lanes as the page has them."""
    said: list[str] = []
    now = now or parts.lanes
    own = _own(tables, parts, values, said)
    a, b = own.get("method_a", now.method_a), own.get("method_b", now.method_b)
    lanes = now.show("A")
    if "method_a" in own or "preset" in own:  # a link of another method starts at that method's preset
        preset = own["preset"] = own.get("preset", "paper") if own.get("preset", "paper") in tables.methods[a].presets else "paper"
        base = parts.params.base(a, preset)
        lanes = replace(lanes, method_a=a, preset=preset, base=base, values=base)
    if own.keys() & LANES:
        lanes = lanes.same().with_b(b, own.get("compare", now.both), own.get("preset_b", SAME))
    params = _params(parts, {name: v for name, v in values.items() if name not in OWN and name != "lane_b"}, said)
    lanes = replace(lanes, values=lanes.values | params)
    if "lane_b" in values:
        lanes = lanes.with_own(_params(parts, _table(values["lane_b"], said), said))
    moved = own.keys() & LANES or now.shown == "B"
    shown = dict(zip(parts.params.names, parts.params.show(lanes.values, lanes.method_a), strict=True))
    updates = [_own_update(name, own, lanes) for name in OWN]
    updates += [shown[name] if moved else gr.update(value=shown[name]["value"]) if name in params else gr.update() for name in parts.params.names]
    return updates, said, lanes


def _params(parts: Parts, values: dict[str, Any], said: list[str]) -> dict[str, Any]:
    """The parameters among `values` that can be taken."""
    out = {}
    for name, value in values.items():
        param = parts.params.params.get(name)
        if param is None:
            said.append(f"there is no setting {str(name)[:40]!r}; it was left out")
            continue
        try:
            out[name] = param.parse(value)
        except ValueError as error:
            said.append(str(error))
    return out


def _table(value: Any, said: list[str]) -> dict[str, Any]:
    """Lane B's own values as a table."""
    if isinstance(value, dict) and len(value) <= 200:
        return value
    said.append(f"the settings of lane B cannot be {str(value)[:40]!r}; lane B is set as lane A")
    return {}


def _own(tables: Tables, parts: Parts, values: dict[str, Any], said: list[str]) -> dict[str, Any]:
    """The settings of OWN that can be taken."""
    checks = {
        "prompt": lambda v: isinstance(v, str) and len(v) <= LONGEST_PROMPT,
        "model": lambda v: isinstance(v, str) and 0 < len(v) <= 1000,
        "method_a": lambda v: v in tables.methods,
        "method_b": lambda v: v in tables.methods,
        "compare": lambda v: isinstance(v, bool),
        "preset": lambda v: isinstance(v, str) and any(v in m.presets for m in tables.methods.values()),
        "preset_b": lambda v: v == SAME or (isinstance(v, str) and any(v in m.presets for m in tables.methods.values())),
        "detail": lambda v: v in DETAILS,
    }
    out = {}
    for name, right in checks.items():
        value = values.get(name)
        if value is None:
            continue
        try:
            fits = right(value)
        except TypeError:  # a table where text is wanted
            fits = False
        if fits:
            out[name] = value
        else:
            said.append(f"the setting {name} cannot be {str(value)[:40]!r}; it was left as it is")
    return out


def _own_update(name: str, own: dict[str, Any], lanes: Lanes) -> Any:
    change: dict[str, Any] = {"value": own[name]} if name in own else {}
    if name == "preset" and "method_a" in own:
        change["choices"] = lanes.presets("A")
    if name == "preset_b" and own.keys() & LANES:
        change = {"value": lanes.preset_b, "choices": lanes.presets("B")}
    if name in ("preset", "preset_b"):
        change["visible"] = seen(name == "preset")  # the controls show lane A
    if name == "method_b" and "compare" in own:
        change["visible"] = seen(own["compare"])
    return gr.update(**change)

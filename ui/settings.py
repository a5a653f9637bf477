"""Settings as a table: what the controls say, and controls filled from it (a short link, a lesson).

Contract: `fill` answers one update for each control, in the order of `outputs`; a value that a control cannot take leaves that control as it is
and is said. Nothing is run.
"""

from __future__ import annotations

import math
from typing import Any

import gradio as gr

from .controls import names_of, paper_values
from .layout import DETAILS, Parts
from .tables import Tables

LONGEST_PROMPT = 20_000
OWN = ("prompt", "model", "method_a", "compare", "method_b", "preset", "detail")  # the rest are parameters

# In the browser, so that nothing waits for the server: the controls' values as a link that fills them again.
COPY = """(...values) => {
  const names = %s;
  const s = Object.fromEntries(names.map((name, i) => [name, values[i]]).filter(([, v]) => v !== null && v !== undefined));
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


def fill(tables: Tables, parts: Parts, values: dict[str, Any]) -> tuple[list[Any], list[str]]:
    """(updates of `outputs`, sentences about what could not be filled)."""
    said: list[str] = []
    own = _own(tables, parts, values, said)
    a = own.get("method_a", parts.method_a.value)
    b = own.get("method_b", parts.method_b.value) if own.get("compare", parts.compare.value) else None
    params: dict[str, Any] = {}
    if "method_a" in own or "preset" in own:  # a link of another method starts at that method's preset
        preset = own["preset"] = own.get("preset", "paper") if own.get("preset", "paper") in tables.methods[a].presets else "paper"
        params = (paper_values(tables, b) if b else {}) | paper_values(tables, a, preset)
    for name, value in values.items():
        param = parts.params.params.get(name)
        if param is not None:
            try:
                params[name] = param.parse(value)
            except ValueError as error:
                said.append(str(error))
        elif name not in OWN:
            said.append(f"there is no setting {str(name)[:40]!r}; it was left out")
    used = names_of(tables, [a, *([b] if b else [])]) if own.keys() & {"method_a", "method_b", "compare"} else None
    updates = [_own_update(tables, name, own, a) for name in OWN]
    for name in parts.params.names:
        change = {"value": None if _infinite(params[name]) else params[name]} if name in params else {}
        updates.append(gr.update(**change, **({} if used is None else {"visible": name in used})))
    return updates, said


def base(tables: Tables, parts: Parts, values: dict[str, Any]) -> Any:
    """What `fill` started the parameters from, for `Parts.base`; nothing new where it left them as they were."""
    own = _own(tables, parts, values, [])
    if "method_a" not in own and "preset" not in own:
        return gr.skip()
    a = own.get("method_a", parts.method_a.value)
    b = own.get("method_b", parts.method_b.value) if own.get("compare", parts.compare.value) else None
    preset = own.get("preset", "paper") if own.get("preset", "paper") in tables.methods[a].presets else "paper"
    return parts.params.base(a, b, preset)


def _own(tables: Tables, parts: Parts, values: dict[str, Any], said: list[str]) -> dict[str, Any]:
    """The settings of OWN that can be taken."""
    checks = {
        "prompt": lambda v: isinstance(v, str) and len(v) <= LONGEST_PROMPT,
        "model": lambda v: isinstance(v, str) and 0 < len(v) <= 1000,
        "method_a": lambda v: v in tables.methods,
        "method_b": lambda v: v in tables.methods,
        "compare": lambda v: isinstance(v, bool),
        "preset": lambda v: isinstance(v, str) and any(v in m.presets for m in tables.methods.values()),
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


def _own_update(tables: Tables, name: str, own: dict[str, Any], a: str) -> Any:
    change: dict[str, Any] = {"value": own[name]} if name in own else {}
    if name == "preset" and "method_a" in own:
        change["choices"] = list(tables.methods[a].presets)
    if name == "method_b" and "compare" in own:
        change["visible"] = own["compare"]
    return gr.update(**change)


def _infinite(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)

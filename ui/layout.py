"""What is where: controls at the left, run buttons on top, everything that moves in the bus.

Contract: `lay_out` makes the components inside an open `gr.Blocks` and returns them; it wires nothing (see `ui.wiring`). Inputs are native
gradio components.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import gradio as gr

from .blocks import make_line
from .bus import make_bus
from .controls import Controls, classes
from .examples import examples_of, start_values
from .fetching import Fetch, make_fetch
from .lanes import AS_A, SAME, Lanes
from .tables import Tables
from .toast import make_toasts

PACES = {"full speed": 0.0, "20 passes/s": 20.0, "10 passes/s": 10.0, "5 passes/s": 5.0, "2 passes/s": 2.0, "1 pass/s": 1.0}
ORDERS = {"A, then B": False, "A and B in turn": True}
DETAILS = {"everything": "full", "less": "steps", "everything, observed": "observe"}
LANE_A, LANE_B = "polestar", "fast-dllm-dual"
CHOICE = {"elem_classes": ["ps-choice"], "filterable": False}

# Says what lane B has of its own, and marks those controls. Text goes in by textContent; the names are those of the tables.
TOLD = """
const say = () => {
  const {text, names} = JSON.parse(props.value || '{"text": "", "names": []}');
  const line = element.querySelector('p');
  if (line.textContent !== text) line.textContent = line.title = text;
  element.querySelector('style').textContent = names.length === 0 ? '' :
    `${names.filter((name) => /^\\w+$/.test(name)).map((name) => `#ps-controls #ps-${name}::before`).join(', ')}
    { content: ""; position: absolute; left: -8px; top: 4px; bottom: 4px; width: 2px; background: var(--slider-color); }`;
};
watch('value', say);
say();
// The arrow keys move between radio buttons of one name, and a screen reader wants the group's.
document.addEventListener('focusin', ({target}) => {
  const group = target.closest?.('#ps-side');
  if (!group) return;
  group.setAttribute('role', 'radiogroup');
  group.setAttribute('aria-label', 'Settings of lane');
  for (const button of group.querySelectorAll('input')) button.name = 'ps-side';
});
// Tab leaves a list: gradio would open it again a moment later, over what stands below it, and a long one would be a stop of its own.
document.addEventListener('keydown', (event) => {
  const {key, target} = event;
  if (key !== 'Tab' || !target.matches?.('.ps-bar [role=combobox], .ps-choice [role=combobox]')) return;
  event.stopImmediatePropagation();
  const list = document.getElementById(target.getAttribute('aria-controls'));
  if (list) list.tabIndex = -1;
}, true);
"""


@dataclass(kw_only=True)
class Parts:
    """The components of the page."""

    prompt: gr.Textbox
    talk: gr.Checkbox
    fetch: Fetch
    model: gr.Dropdown
    method_a: gr.Dropdown
    compare: gr.Checkbox
    method_b: gr.Dropdown
    preset: gr.Dropdown
    preset_b: gr.Dropdown  # lane B's own; in sight while the controls show lane B
    lanes: Lanes  # both lanes of a fresh page
    side: gr.Radio  # which lane the controls show
    note: gr.Textbox  # of the lane that they do not show (ui/lanes.py)
    told: gr.HTML  # what lane B has of its own, in words
    plan: gr.HTML  # the blocks that will run, in words
    pace: gr.Dropdown
    order: gr.Dropdown
    detail: gr.Dropdown
    params: Controls
    base: gr.State  # parameters as the chosen preset has them; what differs was changed by hand
    bus: gr.HTML
    toasts: gr.HTML
    chips: dict[str, gr.Row]  # examples by model; "" for models without their own
    examples: list[tuple[gr.Button, str]]
    buttons: dict[str, gr.Button]  # run, pause, continue, step, stop, reset, copy, same, theme


def lay_out(tables: Tables, model: str, models: list[str]) -> Parts:
    """Make the page's components; `model` is chosen at first, `models` are offered."""
    with gr.Row(elem_id="ps-top"):
        gr.HTML(html_template="<h1><span aria-hidden='true'>✦</span> Polestar</h1>", elem_id="ps-logo", apply_default_css=False)
        model_box = gr.Dropdown(models, value=model, label="Model", allow_custom_value=True, elem_id="ps-model", elem_classes=["ps-bar"],
                                info="A name from the list, or a folder with config.json and safetensors files.")  # fmt: skip
        buttons = {
            "run": gr.Button("▶ Run", variant="primary", elem_id="ps-run"),
            "pause": gr.Button("Pause", elem_id="ps-pause"),
            "continue": gr.Button("Continue", elem_id="ps-continue"),
            "step": gr.Button("Step", elem_id="ps-step"),
            "stop": gr.Button("■ Stop", elem_id="ps-stop"),
        }
        pace = _bar("Pace", list(PACES), "ps-pace", "How fast passes follow each other. Default: full speed; slower is for teaching.")
        order = _bar("Order", list(ORDERS), "ps-order", "A, then B: each lane is timed alone. In turn: for watching; times mean little.")
        detail = _bar("Log", list(DETAILS), "ps-detail",
                      "How much of each pass is kept. Default: everything. observed: a full pass beside each one; its speed means nothing.")  # fmt: skip
        buttons["theme"] = gr.Button("◐", elem_id="ps-theme")
    fetch = make_fetch()
    with gr.Row(elem_id="ps-body"):
        with gr.Column(elem_id="ps-controls"):
            prompt = gr.Textbox(value=examples_of(model)[0][1], label="Prompt", lines=4, max_lines=4, elem_id="ps-prompt",
                                placeholder="Write something, or choose an example")  # fmt: skip
            talk = gr.Checkbox(value=False, label="continue the conversation", elem_id="ps-talk", elem_classes=["ps-switch"],
                               info="The prompt follows what was asked and lane A's answers; off begins anew. Default: off.")  # fmt: skip
            chips, examples = _examples(model, models)
            method_a, compare, method_b = _methods(tables)
            side, buttons["same"], told = _switch()
            preset, preset_b = _presets(tables, method_a.value, method_b.value)
            params = Controls(tables, method_a.value, start_values(model))
            base = gr.State(params.base(method_a.value, preset.value))
            first = {"method_a": method_a.value, "method_b": method_b.value, "both": compare.value, "preset": preset.value}
            lanes = Lanes(controls=params, **first, base=base.value, values=params.start)
            note = gr.Textbox(lanes.note(), visible="hidden", elem_id="ps-note", label="Settings of the lane that is not shown")
            plan = make_line(lanes)
            with gr.Row(elem_id="ps-settings"):
                buttons["reset"] = gr.Button("↺ reset to paper", elem_id="ps-reset", size="sm")
                buttons["copy"] = gr.Button("copy settings", elem_id="ps-copy", size="sm")
        with gr.Column(elem_id="ps-main"):
            bus = make_bus()
    toasts = make_toasts()
    return Parts(
        prompt=prompt, talk=talk, fetch=fetch, model=model_box, method_a=method_a, compare=compare, method_b=method_b, preset=preset, preset_b=preset_b,
        lanes=lanes, side=side, note=note, told=told, plan=plan, pace=pace, order=order, detail=detail, params=params, base=base, bus=bus,
        toasts=toasts, chips=chips, examples=examples, buttons=buttons,
    )  # fmt: skip


def _bar(label: str, choices: list[str], elem_id: str, info: str) -> gr.Dropdown:
    return gr.Dropdown(choices, value=choices[0], label=label, info=info, elem_id=elem_id, elem_classes=["ps-bar"], filterable=False)


def _methods(tables: Tables) -> tuple[gr.Dropdown, gr.Checkbox, gr.Dropdown]:
    titles = [(m.title, name) for name, m in tables.methods.items()]
    first = LANE_A if LANE_A in tables.methods else titles[0][1]
    second = LANE_B if LANE_B in tables.methods else first
    with gr.Group(elem_classes=["ps-group"], elem_id="ps-methods"):
        a = gr.Dropdown(
            titles, value=first, label="lane A", elem_id="ps-method-a", **CHOICE,
            info="How lane A decodes. Default: Polestar. Takes effect in the next run.",
        )  # fmt: skip
        with gr.Row(elem_id="ps-lane-b"):
            compare = gr.Checkbox(
                value=True, label="lane B", elem_id="ps-compare", elem_classes=["ps-switch"],
                info="Compare: decode the same prompt a second way, beside the first.",
            )  # fmt: skip
            b = gr.Dropdown(
                titles, value=second, label="lane B method", elem_id="ps-method-b", **CHOICE,
                info="How lane B decodes. Default: Fast-dLLM with the dual cache. Takes effect in the next run.",
            )  # fmt: skip
    return a, compare, b


def _switch() -> tuple[gr.Radio, gr.Button, gr.HTML]:
    """Which lane the controls below show and set, and what lane B has of its own."""
    with gr.Row(elem_id="ps-switch"):
        side = gr.Radio(
            [("A", "A"), ("B", "B")], value="A", label="settings of", elem_id="ps-side",
            info="Which lane the preset and the parameters below belong to. Lane B is set as lane A, but for what you change while B is chosen.",
        )  # fmt: skip
        same = gr.Button("same as A", elem_id="ps-same", size="sm", interactive=False)
    told = gr.HTML(value=json.dumps({"text": AS_A, "names": []}), html_template="<p role='status'></p><style></style>", js_on_load=TOLD, elem_id="ps-told",
                   apply_default_css=False, container=False, padding=False)  # fmt: skip
    return side, same, told


def _presets(tables: Tables, a: str, b: str) -> tuple[gr.Dropdown, gr.Dropdown]:
    """The presets of both lanes; the one of the lane that is shown is in sight."""
    both = "paper: Table 5 of the paper. release: what a method's public code does. Takes effect in the next run."
    preset = gr.Dropdown(list(tables.methods[a].presets), value="paper", label="preset", elem_id="ps-preset", **CHOICE, info=both)
    preset_b = gr.Dropdown([("as lane A", SAME), *tables.methods[b].presets], value=SAME, label="preset", elem_id="ps-preset-b", **CHOICE, visible="hidden",
                           info=f"Lane B's own preset, or lane A's. {both}")  # fmt: skip
    return preset, preset_b


def _examples(model: str, models: list[str]) -> tuple[dict[str, gr.Row], list[tuple[gr.Button, str]]]:
    """A row of example buttons for each model with prompts of its own, and one for the others."""
    general = examples_of("")
    own = {m: examples_of(m) for m in dict.fromkeys([model, *models])}
    sets = {m: e for m, e in own.items() if e != general} | {"": general}
    rows, pressed = {}, []
    for name, examples in sets.items():
        with gr.Row(elem_classes=classes(name == (model if model in sets else ""), "ps-chips")) as rows[name]:
            for label, text in examples:
                pressed.append((gr.Button(label, size="sm", elem_classes=["ps-chip"]), text))
    return rows, pressed

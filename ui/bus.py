"""The one component that everything moving goes through.

Contract: `Bus()` inside a `gr.Blocks` is a `gr.HTML` whose template is constant, so that nothing of a value is ever evaluated or parsed as
HTML; values are those of `ui.stream.Channel.take`. The page's javascript (assets/js/main.js) is mounted in it once and stays. Commands of
the page arrive as `command` events: `gr.EventData` with the fields of the command.
"""

from __future__ import annotations

import json
from pathlib import Path

import gradio as gr

from .samples import samples

_ON_LOAD = (Path(__file__).parent / "bus.js").read_text(encoding="utf-8")


def make_bus() -> gr.HTML:
    """The bus, to be put where the panels belong."""
    return gr.HTML(
        value="",
        html_template="<div id='polestar-bus'></div>",
        js_on_load=f"const SAMPLES = {json.dumps(samples())};\n{_ON_LOAD}",
        elem_id="ps-bus",
        apply_default_css=False,
        container=False,
        padding=False,
    )

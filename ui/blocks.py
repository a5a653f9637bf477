"""The blocks that a run will have, said before it begins.

Contract: `blocks_of` and `says` are pure; `make_line` makes the component that shows what `says` answers, as text. Lengths need not divide: the last block
is then shorter, and this is where a person sees it.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from .lanes import Lanes

FEW = 6  # as many blocks are named one by one


def blocks_of(length: int, block: int, shape: str) -> str:
    """How `length` positions lie in blocks of `block`; `shape` as in `BlockScheduler.shape`."""
    block = min(length, block)
    if shape == "whole" or (shape == "fixed" and block == length):
        return f"one block of {length}"
    if shape == "sliding":
        return f"a window of {block}, sliding over {length}"
    if shape == "text":
        return f"blocks end with a line, else after {block}; {length} in all"
    sizes = [block] * (length // block) + [length % block] * (length % block > 0)
    if len(sizes) <= FEW:
        return "blocks " + " + ".join(map(str, sizes))
    return f"blocks {length // block} × {block}" + (f" + {length % block}" if length % block else "")


def says(lanes: Lanes) -> str:
    """What will run: one sentence where the lanes agree, else one for each."""
    said = {}
    for lane, (method, _, values) in lanes.lanes().items():
        length, block = values.get("gen_length"), values.get("block_length")
        if isinstance(length, int) and isinstance(block, int):
            said[lane] = blocks_of(length, block, lanes.controls.tables.methods[method].blocks)
    if len(set(said.values())) <= 1:
        return next(iter(said.values()), "")
    return "; ".join(f"{lane}: {text}" for lane, text in said.items())


def make_line(lanes: Lanes) -> Any:
    """The component, at what a fresh page says."""
    show = "const show = () => { const p = element.querySelector('p'); p.textContent = p.title = props.value || ''; }; watch('value', show); show();"
    line = "<p role='status' aria-label='Blocks of the next run'></p>"
    return gr.HTML(says(lanes), html_template=line, js_on_load=show, elem_id="ps-plan", apply_default_css=False)

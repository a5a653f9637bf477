"""Gradio's side of the look: fonts of the system, the page's own colours, and the style sheet of the controls.

Contract: no font or style comes from another machine.
"""

from __future__ import annotations

import gradio as gr

SANS = ("Inter", "system-ui", "Segoe UI", "DejaVu Sans", "sans-serif")
MONO = ("JetBrains Mono", "ui-monospace", "SF Mono", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")

# Same values as assets/css; gradio wants its own names for them.
LIGHT = {"bg": "#f5f7fb", "panel": "#ffffff", "panel2": "#eef2f9", "line": "#d5dcea", "ink": "#182033", "mut": "#5c6a85", "acc": "#2f5fd0"}
DARK = {"bg": "#0d121c", "panel": "#141b29", "panel2": "#1a2334", "line": "#26324a", "ink": "#e8edf7", "mut": "#8c99b3", "acc": "#8ab4ff"}


def make_theme() -> gr.themes.Base:
    """The theme of the page."""
    theme = gr.themes.Base(
        primary_hue="blue", neutral_hue="slate", text_size="sm", spacing_size="sm", radius_size="md",
        font=[gr.themes.Font(f) for f in SANS], font_mono=[gr.themes.Font(f) for f in MONO],
    )  # fmt: skip
    pairs = {
        "body_background_fill": "bg",
        "body_text_color": "ink",
        "body_text_color_subdued": "mut",
        "background_fill_primary": "panel",
        "background_fill_secondary": "panel2",
        "border_color_primary": "line",
        "border_color_accent": "acc",
        "color_accent": "acc",
        "block_background_fill": "panel",
        "block_border_color": "line",
        "block_label_text_color": "mut",
        "block_title_text_color": "ink",
        "block_info_text_color": "mut",
        "input_background_fill": "panel2",
        "input_border_color": "line",
        "input_border_color_focus": "acc",
        "input_placeholder_color": "mut",
        "slider_color": "acc",
        "button_secondary_background_fill": "panel2",
        "button_secondary_text_color": "ink",
        "button_secondary_border_color": "line",
        "button_primary_background_fill": "acc",
        "button_primary_border_color": "acc",
        "button_primary_background_fill_hover": "acc",
        "button_secondary_background_fill_hover": "line",
        "checkbox_background_color_selected": "acc",
        "checkbox_border_color_selected": "acc",
    }
    values = {}
    for name, key in pairs.items():
        values[name] = LIGHT[key]
        if name != "color_accent":
            values[f"{name}_dark"] = DARK[key]
    values |= {"button_primary_text_color": "#ffffff", "button_primary_text_color_dark": "#0b1220"}
    return theme.set(block_shadow="none", block_shadow_dark="none", **values)

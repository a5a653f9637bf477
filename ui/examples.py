"""Prompts to start from.

Contract: a model that brings `examples.json` beside its weights (a list of {"name", "prompt"}) gets those, because a small model knows
only what it was trained on; every other model gets the general ones.
"""

from __future__ import annotations

import json
from pathlib import Path

DEMO = Path(__file__).resolve().parent.parent / "assets" / "demo" / "examples.json"
GENERAL = (
    ("Word problem", "A baker makes 24 rolls in the morning and twice as many in the afternoon. She sells 50. How many rolls are left?"),
    ("List", "Name five rivers of Africa, one on each line."),
    ("Code", "Write a Python function that tells whether a word is a palindrome."),
    ("Story", "Tell a story of four sentences about a lighthouse keeper who finds a letter."),
)


def start_values(model: str) -> dict[str, int]:
    """Where the page starts other than at the paper's defaults: the bundled model's answers are short."""
    return {"gen_length": 128} if model == "demo" else {}


def examples_of(model: str) -> list[tuple[str, str]]:
    """(name, prompt) pairs for a model, given by name or folder."""
    path = DEMO if model == "demo" else Path(model) / "examples.json"
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return [(str(e["name"]), str(e["prompt"])) for e in entries][:8] or list(GENERAL)
    except (OSError, ValueError, KeyError, TypeError):
        return list(GENERAL)

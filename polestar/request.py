"""What a decode is asked for: can it run, what may be edited, and with which libraries.

Contract: checks raise before any work is done; nothing here touches a device.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence

import torch

from polestar.canvas import Canvas
from polestar.config import DecodeConfig
from polestar.models.transformer import Transformer
from polestar.trace.step import LEVELS


def check_request(model: Transformer, prompt_ids: Sequence[int], config: DecodeConfig, level: str) -> None:
    """Raises ValueError in one sentence when a decode could not run to its end."""
    cfg = model.cfg
    if level not in LEVELS:
        raise ValueError(f"level {level!r} is not one of {', '.join(LEVELS)}; choose one of those")
    if isinstance(prompt_ids, str):
        raise ValueError(f"the prompt is the text {prompt_ids[:40]!r}, not token ids; give model.codec.encode_chat(text)")
    if len(prompt_ids) == 0:
        raise ValueError("the prompt is empty (0 tokens); give at least one token")
    wrong = [i for i in prompt_ids if not 0 <= int(i) < cfg.vocab_size]
    if wrong:
        raise ValueError(f"prompt id {wrong[0]} is outside the model's vocabulary of {cfg.vocab_size}; give ids from 0 to {cfg.vocab_size - 1}")
    length = len(prompt_ids) + config.gen_length
    if length > cfg.max_length:
        raise ValueError(
            f"prompt {len(prompt_ids)} + generation {config.gen_length} = {length} positions is more than the model's maximum of "
            f"{cfg.max_length}; shorten the prompt or the generation to fit"
        )


def check_edits(canvas: Canvas, vocab_size: int, edits: Mapping[int, int | None]) -> dict[int, int]:
    """Edits of the canvas with [MASK] in place of None. Raises ValueError in one sentence when a position or token cannot be."""
    start, end, checked = canvas.prompt_length, len(canvas), {}
    for position, token in edits.items():
        token = canvas.mask_id if token is None else token
        if isinstance(position, bool) or not isinstance(position, int) or not start <= position < end:
            raise ValueError(f"position {position!r} cannot be edited; the generation holds positions {start} to {end - 1}")
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ValueError(f"token {token!r} at position {position} is no id of the vocabulary; give one from 0 to {vocab_size - 1}")
        checked[position] = token
    return checked


def versions() -> dict[str, str]:
    """Library versions that a trace records."""
    from polestar import __version__

    found = {"polestar": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", "tokenizers", "safetensors", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found

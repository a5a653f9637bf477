"""What a decode is asked for: can it run, and with which libraries.

Contract: `check_request` raises before any work is done; nothing here touches a device.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence

import torch

from polestar.config import DecodeConfig
from polestar.models.transformer import Transformer
from polestar.trace.step import LEVELS


def check_request(model: Transformer, prompt_ids: Sequence[int], config: DecodeConfig, level: str) -> None:
    """Raises ValueError in one sentence when a decode could not run to its end."""
    cfg = model.cfg
    if level not in LEVELS:
        raise ValueError(f"level {level!r} is not one of {', '.join(LEVELS)}; choose one of those")
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

"""Loading a checkpoint: a directory of config.json and safetensors files becomes a `Transformer` on its device.

Contract: `load_model(name_or_dir)` never downloads (`polestar.models.download` does, when asked) and never runs code that a checkpoint brings.
Memory is checked before anything is read; the model is built on the meta device and filled tensor by tensor.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from polestar.models import families, machine, registry, weights
from polestar.models.families import UnsupportedModel
from polestar.models.machine import Machine, NotEnoughMemory
from polestar.models.transformer import ModelConfig, Transformer
from polestar.models.weights import CheckpointError
from polestar.text import TextCodec

__all__ = ["CheckpointError", "LoadedModel", "NotEnoughMemory", "UnsupportedModel", "load_model", "locate"]

DEMO = Path(__file__).resolve().parents[2] / "assets" / "demo"


@dataclass(slots=True, kw_only=True)
class LoadedModel:
    """A model ready to decode. `revision` is the 40-hex commit, or "" where none is known (local directories, the bundled model)."""

    model: Transformer
    config: ModelConfig
    codec: TextCodec
    name: str
    revision: str
    path: Path
    note: str = ""  # one sentence for the page: device and dtype, and why
    quantize: str | None = None

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the arithmetic."""
        return self.model.dtype

    def free(self) -> None:
        """Give the memory back. The model is unusable afterwards, even where somebody still holds it."""
        device = self.device.type
        for module in self.model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = torch.nn.Parameter(torch.empty(parameter.shape, device="meta"), requires_grad=False)
        self.model._rope = None
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        elif device == "mps":
            torch.mps.empty_cache()


def load_model(
    name_or_dir: str | Path,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    quantize: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    on: Machine | None = None,
) -> LoadedModel:
    """Load a named checkpoint ("demo", or one of the registry that was downloaded before) or a directory.

    `device` and `dtype` default to what suits the machine; `quantize` is "8bit", "4bit" or None. `progress(done, total)` is told bytes read.
    `on` stands in for the machine in tests. Raises FileNotFoundError (nothing there), UnsupportedModel (a family this transformer does not run),
    CheckpointError (bad files), NotEnoughMemory, ValueError (an impossible device, dtype or quantisation).
    """
    name, revision, path = locate(name_or_dir)
    cfg = families.read_config(path)
    if cfg.tied_head and weights.ships_head(cfg, path):
        cfg = replace(cfg, tied_head=False)
    model = weights.build(cfg)
    on = on or machine.this_machine()
    choice = machine.choose(machine.size_of(model), on, device=device, dtype=dtype, quantize=quantize, name=name)
    codec = TextCodec.from_directory(path, cfg)
    if choice.quantize:
        from polestar.models.quantize import put_quantized

        weights.fill(model, path, put_quantized(choice.quantize, choice.device, choice.dtype), progress)
    elif choice.spread:
        from polestar.models.spread import assign, attach

        room = [(torch.device("cuda", g.index), int(g.free / machine.ROOM)) for g in on.gpus]
        device_of = assign(model, choice.device, room, choice.dtype)
        weights.fill(model, path, weights.put_plain(device_of, choice.dtype), progress)
        attach(model, device_of, choice.device)
    else:
        weights.fill(model, path, weights.put_plain(lambda _: choice.device, choice.dtype), progress)
    return LoadedModel(
        model=model.eval(), config=cfg, codec=codec, name=name, revision=revision, path=path, note=choice.note, quantize=choice.quantize
    )


def locate(name_or_dir: str | Path) -> tuple[str, str, Path]:
    """(name, revision, directory) of a named checkpoint or a directory; looks on this machine only.

    Raises FileNotFoundError, saying how to get it, and UnsupportedModel for names that are refused.
    """
    text = str(name_or_dir)
    if text == "demo":
        return "demo", "", DEMO
    path = Path(name_or_dir).expanduser()
    if path.is_dir():
        return named(path)
    entry = registry.find(text)
    if entry is None:
        raise FileNotFoundError(f"there is no model named {text!r} and no such directory; `python -m polestar models` lists the names")
    from polestar.models.download import cached

    found = cached(entry)
    if found is None:
        raise FileNotFoundError(
            f"{entry.name} is not on this machine; `python -m polestar models download {entry.name}` fetches "
            f"{machine.gb(entry.size.bytes(torch.bfloat16))} from {entry.repo}, or give a directory that holds it"
        )
    return entry.name, revision_of(found) or entry.revision, found


def named(path: Path) -> tuple[str, str, Path]:
    """Name and revision of a directory, read from its path where it is a snapshot in the hub's cache."""
    path = path.resolve()
    revision = revision_of(path)
    if revision and path.parent.name == "snapshots":
        return path.parent.parent.name.rpartition("--")[2], revision, path
    return path.name, "", path


def revision_of(path: Path) -> str:
    """The commit in the name of a cached snapshot, else ""."""
    return path.name if re.fullmatch(r"[0-9a-f]{40}", path.name) else ""

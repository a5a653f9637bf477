"""Published tensors streamed into a model, one by one, checked on the way.

Contract: `fill(model, directory, ...)` puts every published tensor in its place; memory never holds a second copy of the model.
A missing, extra, wrongly shaped or non-finite tensor is a `CheckpointError` that names it (published name), all faults in one message.
Only safetensors is read: a format that could run code when opened is refused unopened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from polestar.models import families
from polestar.models.transformer import ModelConfig, Transformer

Put = Callable[[Transformer, str, Tensor], None]
Progress = Callable[[int, int], None]


class CheckpointError(ValueError):
    """The files of a checkpoint are not what its config says; the message names the tensor or file."""


def build(cfg: ModelConfig) -> Transformer:
    """The transformer without memory behind its weights (meta device)."""
    with torch.device("meta"):
        return Transformer(cfg)


def shards(directory: Path) -> list[Path]:
    """The safetensors files of a model directory: those of the index when there is one. Raises CheckpointError when one is missing."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CheckpointError(f"{index} is not a safetensors index ({error!r}); fetch the file again") from None
        if odd := [n for n in names if Path(n).name != n]:
            raise CheckpointError(f"{index} points outside its directory ({odd[0]}); use a checkpoint whose shards lie beside the index")
        files = [directory / name for name in names]
        if gone := [f.name for f in files if not f.is_file()]:
            raise CheckpointError(f"{directory} lacks {len(gone)} of {len(files)} shards ({', '.join(gone[:3])}); finish the download")
        return files
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        other = [f.name for f in sorted(directory.iterdir()) if f.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl")]
        hint = f" ({other[0]} could run code when opened and is not read)" if other else ""
        raise CheckpointError(f"{directory} holds no safetensors file{hint}; use a checkpoint published as safetensors")
    return files


def tensors(files: Iterable[Path]) -> Iterator[tuple[str, list[int], Any]]:
    """(published name, shape, lazy slice) of every tensor. Raises CheckpointError when a file is damaged."""
    for file in files:
        try:
            with safe_open(file, framework="pt", device="cpu") as store:
                for name in store.keys():  # noqa: SIM118 (not a dict)
                    view = store.get_slice(name)
                    yield name, list(view.get_shape()), view
        except SafetensorError as error:
            raise CheckpointError(f"{file} is not a readable safetensors file ({error}); fetch the file again") from None


def ships_head(cfg: ModelConfig, directory: Path) -> bool:
    """Whether the files hold a head of their own. Checkpoints exist that ship a trained head under a config that still says tied."""
    return any(
        at is not None and at[0].parameter == "head.weight"
        for at in (families.places(name, cfg, shape[0] if shape else 0) for name, shape, _ in tensors(shards(directory)))
    )


def put_plain(device_of: Callable[[str], torch.device], dtype: torch.dtype) -> Put:
    """Places a tensor on its device in `dtype`."""

    def put(model: Transformer, parameter: str, tensor: Tensor) -> None:
        owner, leaf = parameter.rpartition(".")[::2]
        placed = tensor.to(device=device_of(parameter), dtype=dtype, copy=True)  # a copy: the file may change under a memory map
        setattr(model.get_submodule(owner), leaf, nn.Parameter(placed, requires_grad=False))

    return put


def fill(model: Transformer, directory: Path, put: Put, progress: Progress | None = None) -> None:
    """Stream the tensors of `directory` into `model` (built on meta) through `put`. `progress(done, total)` counts bytes.

    Raises CheckpointError.
    """
    cfg = model.cfg
    wanted = {name: list(p.shape) for name, p in model.named_parameters()}
    filled: dict[str, str] = {}
    faults: list[str] = []
    files = shards(directory)
    done, total = 0, sum(f.stat().st_size for f in files)
    for name, shape, view in tensors(files):
        at = families.places(name, cfg, shape[0] if shape else 0)
        if at is None or any(p.parameter not in wanted for p in at):
            if not families.ignorable(name):
                faults.append(f"{name} is not part of this {cfg.family} model")
            continue
        expected = [sum(wanted[p.parameter][0] for p in at), *wanted[at[0].parameter][1:]]
        for place in at:
            if place.parameter in filled:
                faults.append(f"{name} gives what {filled[place.parameter]} gave already")
            filled.setdefault(place.parameter, name)
        if shape != expected:
            faults.append(f"{name} has shape {shape} where config.json asks for {expected}")
            continue
        for place in at:
            tensor = view[place.rows[0] : place.rows[1]] if place.rows else view[:]
            if not tensor.is_floating_point() or tensor.element_size() < 2:
                faults.append(f"{name} is stored as {tensor.dtype}, not as plain floating point".replace("torch.", ""))
                break
            if not finite(tensor):
                faults.append(f"{name} holds values that are not finite")
                break
            put(model, place.parameter, tensor)
            done += tensor.numel() * tensor.element_size()
        if progress is not None:
            progress(min(done, total), total)
    faults += [f"{families.published_name(p, cfg)} is missing" for p in wanted if p not in filled]
    if faults:
        shown = "; ".join(faults[:8]) + (f"; and {len(faults) - 8} more" if len(faults) > 8 else "")
        raise CheckpointError(f"{directory} does not fit its config.json: {shown}; fetch the checkpoint again or correct config.json")
    if cfg.tied_head:
        model.head.weight = model.embed.weight
    if progress is not None:
        progress(total, total)


def finite(tensor: Tensor) -> bool:
    """Whether all values are finite, without a mask of the tensor's size."""
    if not tensor.numel():
        return True
    low, high = torch.aminmax(tensor)
    return math.isfinite(low) and math.isfinite(high)

"""Loading a checkpoint: a directory of config.json and safetensors files becomes a `Transformer` on its device.

Contract: `load_model(name_or_dir)` never downloads (`polestar.models.download` does, when asked) and never runs code that a checkpoint brings.
The model is built on the meta device and tensors are streamed to their place one by one, so that memory never holds two copies.
A missing, extra, wrongly shaped or non-finite tensor is a `CheckpointError` that names it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from polestar.models import families
from polestar.models.transformer import ModelConfig, Transformer
from polestar.text import TextCodec


class CheckpointError(ValueError):
    """The files of a checkpoint are not what its config says; the message names the tensor or file."""


@dataclass(slots=True, kw_only=True)
class LoadedModel:
    """A model ready to decode. `revision` is the pinned 40-hex commit, or "" where none is known (local directories)."""

    model: Transformer
    config: ModelConfig
    codec: TextCodec
    name: str
    revision: str
    path: Path
    note: str = ""  # one sentence for the page: device and dtype, and why


def load_model(
    name_or_dir: str | Path,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LoadedModel:
    """Load a named checkpoint ("demo", or one of the registry that was downloaded before) or a directory.

    `device` and `dtype` default to what suits the machine (`polestar.models.machine`). `progress(done, total)` is told bytes read.
    Raises FileNotFoundError (nothing there), UnsupportedModel (a family this transformer does not run), CheckpointError (bad files).
    """
    name, revision, path = locate(name_or_dir)
    cfg = families.read_config(path)
    device, dtype, note = choose(cfg, device, dtype)
    model = build(cfg)
    fill(model, path, device=device, dtype=dtype, progress=progress)
    return LoadedModel(
        model=model.eval(), config=cfg, codec=TextCodec.from_directory(path, cfg), name=name, revision=revision, path=path, note=note
    )


DEMO = Path(__file__).resolve().parents[2] / "assets" / "demo"


def locate(name_or_dir: str | Path) -> tuple[str, str, Path]:
    """(name, revision, directory) of a named checkpoint or a directory. Raises FileNotFoundError, saying what there is."""
    if str(name_or_dir) == "demo":
        return "demo", "", DEMO
    path = Path(name_or_dir).expanduser()
    if path.is_dir():
        return path.resolve().name, "", path
    raise FileNotFoundError(f"there is no model named {str(name_or_dir)!r} and no such directory; `python -m polestar models` lists the names")


def choose(cfg: ModelConfig, device: torch.device | str | None, dtype: torch.dtype | str | None) -> tuple[torch.device, torch.dtype, str]:
    """Device, dtype and a sentence about the choice."""
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    return device, dtype, f"{dtype} on {device}".replace("torch.", "")


def build(cfg: ModelConfig) -> Transformer:
    """The transformer without memory behind its weights (meta device)."""
    with torch.device("meta"):
        return Transformer(cfg)


# -- filling


def shards(directory: Path) -> list[Path]:
    """The safetensors files of a model directory: those of the index when there is one. Raises CheckpointError when one is missing."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{index} is not a safetensors index ({error!r}); fetch the file again") from None
        files = [directory / name for name in names]
        if odd := [f.name for f in files if f.resolve().parent != directory.resolve() and not f.is_symlink()]:
            raise CheckpointError(f"{index} points outside its directory ({odd[0]}); use a checkpoint whose shards lie beside the index")
        if gone := [f.name for f in files if not f.is_file()]:
            raise CheckpointError(f"{directory} lacks {len(gone)} of {len(files)} shards ({', '.join(gone[:3])}); finish the download")
        return files
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        other = [f.name for f in directory.iterdir() if f.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl")] if directory.is_dir() else []
        hint = f" ({other[0]} could run code when opened and is not read)" if other else ""
        raise CheckpointError(f"{directory} holds no safetensors file{hint}; use a checkpoint published as safetensors")
    return files


def _tensors(files: Iterable[Path]) -> Iterator[tuple[Path, str, object]]:
    """(file, name, slice) of every tensor in the shards."""
    for file in files:
        try:
            with safe_open(file, framework="pt", device="cpu") as store:
                for name in store.keys():  # noqa: SIM118 (not a dict)
                    yield file, name, store.get_slice(name)
        except SafetensorError as error:
            raise CheckpointError(f"{file} is not a readable safetensors file ({error}); fetch the file again") from None


def fill(
    model: Transformer,
    directory: Path,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Stream every published tensor of `directory` into `model` (built on meta). Raises CheckpointError; names every tensor at fault."""
    cfg = model.cfg
    wanted = dict(model.named_parameters())
    if cfg.tied_head:
        wanted.pop("head.weight", None)
    seen: dict[str, str] = {}
    extra: list[str] = []
    wrong: list[str] = []
    files = shards(directory)
    total, done = sum(f.stat().st_size for f in files), 0
    for _file, name, view in _tensors(files):
        shape = list(view.get_shape())
        at = families.places(name, cfg, shape[0] if shape else 0)
        if at is None or any(p.parameter not in wanted and p.parameter != "head.weight" for p in at):
            if not families.ignorable(name):
                extra.append(name)
            continue
        rows = sum(p.rows[1] - p.rows[0] for p in at) if at[0].rows else shape[0]
        for place in at:
            if cfg.tied_head and place.parameter == "head.weight":
                _check_tied(model, name, view[:], wrong)
                continue
            if place.parameter in seen:
                wrong.append(f"{name} fills {place.parameter}, which {seen[place.parameter]} filled already")
                continue
            want = list(wanted[place.parameter].shape)
            have = [place.rows[1] - place.rows[0], *shape[1:]] if place.rows else shape
            if have != want or rows != shape[0]:
                wrong.append(f"{name} has shape {shape} where the config asks for {want if place.rows is None else 'other rows'}")
                seen[place.parameter] = name
                continue
            tensor = view[place.rows[0] : place.rows[1]] if place.rows else view[:]
            done += tensor.numel() * tensor.element_size()
            if not _finite(tensor):
                wrong.append(f"{name} holds values that are not finite")
            _put(model, place.parameter, tensor.to(device=device, dtype=dtype, copy=True))
            seen[place.parameter] = name
        if progress is not None:
            progress(min(done, total), total)
    missing = [families.published_name(p, cfg) for p in wanted if p not in seen]
    problems = wrong + [f"{n} is missing" for n in missing] + [f"{n} is not part of a {cfg.family} model" for n in extra]
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise CheckpointError(f"{directory} does not fit its config.json: {shown}; fetch the checkpoint again or correct config.json")
    if cfg.tied_head:
        model.head.weight = model.embed.weight
    if progress is not None:
        progress(total, total)


def _check_tied(model: Transformer, name: str, tensor: torch.Tensor, wrong: list[str]) -> None:
    """A tied checkpoint may repeat the embedding as its head: fine when it is the same."""
    embed = model.embed.weight
    if not embed.is_meta and not torch.equal(embed.cpu(), tensor.to(embed.dtype)):
        wrong.append(f"{name} differs from the embedding although the config ties them")


def _finite(tensor: torch.Tensor) -> bool:
    """Whether all values are finite, without a mask of the tensor's size."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    low, high = torch.aminmax(tensor.float() if tensor.element_size() == 1 else tensor)
    return math.isfinite(low) and math.isfinite(high)


def _put(model: nn.Module, parameter: str, tensor: torch.Tensor) -> None:
    """Replace a meta parameter by `tensor`."""
    owner, leaf = parameter.rpartition(".")[::2]
    setattr(model.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=False))

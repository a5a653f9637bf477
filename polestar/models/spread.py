"""One model over several devices, through accelerate's hooks, an optional extra.

Contract: `assign` says which device holds which layer's projections; `attach` makes them run there. Activations, norms, embedding, head and K/V stay
on the main device: inputs travel to the weights and come back, so that the transformer and every cache see one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from polestar.models.transformer import Transformer


def assign(model: Transformer, main: torch.device, room: Sequence[tuple[torch.device, int]], dtype: torch.dtype) -> Callable[[str], torch.device]:
    """Device of each parameter: layers in order, each device filled up to its `room` in bytes, `main` first.

    Raises ValueError when the layers do not fit; what stays on `main` is counted first.
    """
    kept = {name: p for name, p in model.named_parameters() if not _moves(name)}
    left = {device: space for device, space in sorted(room, key=lambda r: r[0] != main)}
    left[main] -= sum(p.numel() for p in kept.values()) * dtype.itemsize
    at: dict[int, torch.device] = {}
    for i, layer in enumerate(model.layers):
        need = sum(p.numel() for name, p in layer.named_parameters() if _moves(f"layers.{i}.{name}")) * dtype.itemsize
        device = next((d for d, space in left.items() if space >= need), None)
        if device is None:
            raise ValueError(f"layer {i} of {len(model.layers)} fits on none of {len(left)} devices; quantise the model or choose a smaller one")
        left[device] -= need
        at[i] = device
    return lambda name: at[int(name.split(".")[1])] if _moves(name) else main


def _moves(name: str) -> bool:
    return name.startswith("layers.") and "_proj." in name


def attach(model: Transformer, device_of: Callable[[str], torch.device], main: torch.device) -> None:
    """Hook every projection that lives away from `main`: its input is sent there and its output sent back."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and (device := device_of(f"{name}.weight")) != main:
            add_hook_to_module(module, AlignDevicesHook(execution_device=device, io_same_device=True))

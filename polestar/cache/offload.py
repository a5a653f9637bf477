"""Where the packed hidden states of the window lie, and how rows of them move: on the device, or in host memory beside it (paper, section 4.3).

Contract: `DeviceRows` and `HostRows` keep byte rows [n, W, c] of n layers and answer alike, so tokens do not depend on the place. Host memory is
pinned when the model is on a GPU; rows then move on a side stream, ordered by events: the host never waits. On a CPU the same calls run at once.
Row numbers below 0 are padding of a fixed-size packet: rows taken there hold anything, rows put there go nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from kernels.packet import fetch_rows, store_rows

Parts = tuple[Tensor, ...]


class SideStream:
    """A second queue of device work, first in first out. A CPU has none: work is done on the spot, and there is nothing to wait for."""

    def __init__(self, device: torch.device):
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def after_main(self, *used: Tensor) -> Iterator[None]:
        """Within: work goes to the side, behind all that the main stream was given so far.

        `used`: the main stream's tensors that it reads; their memory is not given away before the side is done with them. Memory that the side
        allocates is reused by the side alone, which by then has waited for the main stream's reads.
        """
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            yield
        for tensor in used:
            tensor.record_stream(self.stream)

    def mark(self) -> torch.cuda.Event | None:
        """A point behind all that the side was given so far, for `wait`."""
        return None if self.stream is None else self.stream.record_event()

    def wait(self, mark: torch.cuda.Event | None) -> None:
        """Main-stream work given from here on runs behind `mark`."""
        if mark is not None:
            torch.cuda.current_stream(self.stream.device).wait_event(mark)


class DeviceRows:
    """Byte rows on the model's device."""

    pinned_bytes = 0
    host_bytes = 0

    def __init__(self, parts: Parts, *, padded: bool):
        self.dtypes = tuple(part.dtype for part in parts)
        self.parts = tuple(part.contiguous().view(torch.uint8) for part in parts)
        self.padded = padded

    def whole(self, layer: int) -> Parts | None:
        """All rows of `layer` where they lie on the device."""
        return tuple(part[layer] for part in self.parts)

    def prefetch(self, layer: int, rows: Int[Tensor, "m"]) -> None:
        """Rows of `layer` will be taken soon."""

    def take(self, layer: int, rows: Int[Tensor, "m"]) -> Parts:
        """Rows of `layer` on the device, each part [m, c] in its own dtype."""
        rows = rows.clamp(min=0) if self.padded else rows
        return tuple(part[layer].index_select(0, rows).view(dtype) for part, dtype in zip(self.parts, self.dtypes, strict=True))

    def put(self, layer: int, rows: Int[Tensor, "m"], new: Parts) -> None:
        """Replace rows of `layer`."""
        for part, fresh in zip(self.parts, new, strict=True):
            if self.padded:
                store_rows(part[layer], rows, fresh.view(torch.uint8))
            else:
                part[layer].index_copy_(0, rows, fresh.view(torch.uint8))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(part.numel() for part in self.parts)


class Staged(NamedTuple):
    """Rows on their way to the device, and the point behind which they have arrived."""

    rows: Int[Tensor, "m"]
    parts: Parts
    arrived: torch.cuda.Event | None


class HostRows:
    """Byte rows in host memory. To be made on the side (within `SideStream.after_main`), where the parts were computed."""

    def __init__(self, parts: Parts, side: SideStream):
        self.dtypes = tuple(part.dtype for part in parts)
        self.device, self.side = parts[0].device, side
        pin = self.device.type == "cuda"
        self.parts = tuple(torch.empty(part.view(torch.uint8).shape, dtype=torch.uint8, pin_memory=pin) for part in parts)
        for part, new in zip(self.parts, parts, strict=True):
            part.copy_(new.contiguous().view(torch.uint8), non_blocking=True)
        self.staged: dict[int, Staged] = {}

    def whole(self, layer: int) -> None:
        """Rows in host memory have to be taken."""
        return None

    def prefetch(self, layer: int, rows: Int[Tensor, "m"]) -> None:
        """Start moving rows of `layer`. A later `put` to the layer makes them stale: take them before."""
        with self.side.after_main(rows):
            parts = tuple(
                fetch_rows(part[layer], rows, torch.empty(rows.shape[0], part.shape[2], dtype=torch.uint8, device=self.device)) for part in self.parts
            )
            self.staged[layer] = Staged(rows, parts, self.side.mark())

    def take(self, layer: int, rows: Int[Tensor, "m"]) -> Parts:
        """Rows of `layer` on the device: those that were prefetched where they are the same, else fetched now."""
        staged = self.staged.get(layer)
        if staged is None or staged.rows is not rows:
            self.prefetch(layer, rows)
        staged = self.staged.pop(layer)
        self.side.wait(staged.arrived)
        return tuple(part.view(dtype) for part, dtype in zip(staged.parts, self.dtypes, strict=True))

    def put(self, layer: int, rows: Int[Tensor, "m"], new: Parts) -> None:
        """Replace rows of `layer`; what was prefetched of it is forgotten."""
        self.staged.pop(layer, None)
        with self.side.after_main(rows, *new):
            for part, fresh in zip(self.parts, new, strict=True):
                store_rows(part[layer], rows, fresh.view(torch.uint8))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(part.numel() for part in self.parts)

    @property
    def host_bytes(self) -> int:
        """Bytes held in host memory beside the device."""
        return self.nbytes

    @property
    def pinned_bytes(self) -> int:
        """Bytes of host memory that are pinned."""
        return self.nbytes if self.device.type == "cuda" else 0

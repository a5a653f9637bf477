"""Where the packed hidden states of the window lie, and how rows of them move: on the device, or in host memory beside it (paper, section 4.3).

Contract: `DeviceRows` and `HostRows` keep byte rows [n, W, c] of n layers and answer alike, so tokens do not depend on the place. Host memory is
pinned when the model is on a GPU; rows then move on a side stream, ordered by events: the host never waits. On a CPU the same calls run at once.
A `Pick` says which rows: numbers below 0 are padding of a fixed-size packet; rows taken there hold anything, rows put there go nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from kernels.packet import fetch_rows, store_rows
from polestar.clock import PhaseClock

Parts = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pick:
    """Window rows that a packet picks, with what every layer needs of them, made once: `safe` has a row of the window in place of padding, `slots`
    numbers the packet's own rows with -1 for padding (None where nothing is padded)."""

    rows: Int[Tensor, "m"]
    safe: Int[Tensor, "m"]
    slots: Int[Tensor, "m"] | None = None

    @classmethod
    def of(cls, rows: Int[Tensor, "m"], *, padded: bool = False) -> Pick:
        """`padded`: numbers below 0 may occur."""
        if not padded:
            return cls(rows, rows)
        return cls(rows, rows.clamp(min=0), torch.arange(rows.shape[0], device=rows.device).masked_fill_(rows < 0, -1))

    def __len__(self) -> int:
        return self.rows.shape[0]


class SideStream:
    """A second queue of device work, first in first out. A CPU has none, nor has `apart` False: work is done in turn, and there is nothing to wait for."""

    def __init__(self, device: torch.device, *, apart: bool = True):
        self.stream = torch.cuda.Stream(device) if apart and device.type == "cuda" else None

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

    def __init__(self, parts: Parts):
        self.dtypes = tuple(part.dtype for part in parts)
        self.parts = tuple(part.contiguous().view(torch.uint8) for part in parts)

    def whole(self, layer: int) -> Parts | None:
        """All rows of `layer` where they lie on the device."""
        return tuple(part[layer] for part in self.parts)

    def prefetch(self, layer: int, pick: Pick) -> None:
        """Rows of `layer` will be taken soon."""

    def take(self, layer: int, pick: Pick) -> Parts:
        """Rows of `layer` on the device, each part [m, c] in its own dtype."""
        return tuple(part[layer].index_select(0, pick.safe).view(dtype) for part, dtype in zip(self.parts, self.dtypes, strict=True))

    def put(self, layer: int, pick: Pick, new: Parts) -> None:
        """Replace rows of `layer`."""
        for part, fresh in zip(self.parts, new, strict=True):
            if pick.slots is not None:
                store_rows(part[layer], pick.rows, fresh.view(torch.uint8))
            else:
                part[layer].index_copy_(0, pick.rows, fresh.view(torch.uint8))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(part.numel() for part in self.parts)


class Staged(NamedTuple):
    """Rows on their way to the device, and the point behind which they have arrived."""

    pick: Pick
    parts: Parts
    arrived: torch.cuda.Event | None


class HostRows:
    """Byte rows in host memory. To be made on the side (within `SideStream.after_main`), where the parts were computed.

    Time of moving them is charged to the phase "offload" of `clock`.
    """

    def __init__(self, parts: Parts, side: SideStream, clock: PhaseClock):
        self.dtypes = tuple(part.dtype for part in parts)
        self.device, self.side, self.clock = parts[0].device, side, clock
        pin = self.device.type == "cuda"
        self.parts = tuple(torch.empty(part.view(torch.uint8).shape, dtype=torch.uint8, pin_memory=pin) for part in parts)
        with clock.aside("offload"):
            for part, new in zip(self.parts, parts, strict=True):
                part.copy_(new.contiguous().view(torch.uint8), non_blocking=True)
        self.staged: dict[int, Staged] = {}

    def whole(self, layer: int) -> None:
        """Rows in host memory have to be taken."""
        return None

    def prefetch(self, layer: int, pick: Pick) -> None:
        """Start moving rows of `layer`. A later `put` to the layer makes them stale: take them before."""
        with self.side.after_main(pick.rows), self.clock.aside("offload"):
            parts = tuple(
                fetch_rows(part[layer], pick.rows, torch.empty(len(pick), part.shape[2], dtype=torch.uint8, device=self.device)) for part in self.parts
            )
            self.staged[layer] = Staged(pick, parts, self.side.mark())

    def take(self, layer: int, pick: Pick) -> Parts:
        """Rows of `layer` on the device: those that were prefetched where they are the same, else fetched now."""
        staged = self.staged.get(layer)
        if staged is None or staged.pick is not pick:
            self.prefetch(layer, pick)
        staged = self.staged.pop(layer)
        self.side.wait(staged.arrived)
        return tuple(part.view(dtype) for part, dtype in zip(staged.parts, self.dtypes, strict=True))

    def put(self, layer: int, pick: Pick, new: Parts) -> None:
        """Replace rows of `layer`; what was prefetched of it is forgotten."""
        self.staged.pop(layer, None)
        with self.side.after_main(pick.rows, *new), self.clock.aside("offload"):
            for part, fresh in zip(self.parts, new, strict=True):
                store_rows(part[layer], pick.rows, fresh.view(torch.uint8))

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

"""Hidden states of the local window, kept as quantised residuals to their centroids (paper, sections 4.1, 4.3, C.3).

Contract: `read` gives float32 hidden states back, `read_normed` what an update packet starts with, `write` replaces some. A residual is taken to
the centroid as it was at block entry (`base`: float32 on a CPU, the model's dtype on a GPU): a centroid that moves later, for the proxy attention,
leaves the states of untouched members as they were. Formats are those of Table 11; `none` keeps the states as they are, `nvfp4-direct` quantises them
without a centroid. Rows of a `Pick` that are padding are zeros when read.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.dequant_norm import dequant_norm
from kernels.formats import Format, get_format
from kernels.nvfp4 import quantize_nvfp4, quantize_residual
from polestar.cache.offload import DeviceRows, HostRows, Parts, Pick, SideStream
from polestar.clock import PhaseClock


class ResidualStore:
    """Hidden states [n, W, d] of n layers. `base` [n, K, d] are the centroids at block entry, `labels` [n, W] their members."""

    def __init__(
        self, name: str, hidden: Float[Tensor, "n W d"], base: Float[Tensor, "n K d"], labels: Int[Tensor, "n W"],
        *, side: SideStream | None = None, clock: PhaseClock | None = None,
    ):
        """`side`: keep the rows in host memory, moved on this stream; None keeps them on the device."""
        clock = clock or PhaseClock(enabled=False)
        self.plain = name == "none"
        self.packed = name in ("nvfp4", "nvfp4-direct")
        self.format: Format | None = None if self.plain else get_format(name)
        self.base = None if self.plain or name == "nvfp4-direct" else base
        self.labels, self.dim = labels, hidden.shape[-1]
        self.unit = torch.ones(self.dim, device=hidden.device)
        with clock.aside("clustering"):
            parts = self._encode(hidden, self.base, labels)
        self.place = DeviceRows(parts) if side is None else HostRows(parts, side, clock)

    def _encode(self, hidden: Tensor, base: Tensor | None, labels: Tensor) -> Parts:
        """Rows of one layer, or (with a leading dimension everywhere) of all."""
        if self.plain:
            return (hidden.clone(),)
        if self.packed:
            return quantize_nvfp4(hidden) if base is None else quantize_residual(hidden, base, labels)
        return self.format.encode(hidden.float() - base.gather(-2, labels.unsqueeze(-1).expand(*labels.shape, base.shape[-1])).float())

    def prefetch(self, layer: int, pick: Pick) -> None:
        """These rows of `layer` are read next."""
        self.place.prefetch(layer, pick)

    def read(self, layer: int, pick: Pick, labels: Int[Tensor, "m"] | None = None) -> Float[Tensor, "m d"]:
        """Hidden states of window rows at `layer`, float32. `labels`: those of the rows, where they are at hand."""
        if self.packed and pick.slots is not None:  # a GPU's packet: one kernel, whose norm is not used
            return self._dequantised(layer, pick, self.unit, 1e-6)[0]
        parts = self.place.take(layer, pick)
        if self.plain:
            hidden = parts[0].float()
        else:
            hidden = self.format.decode(parts, self.dim)
            if self.base is not None:
                labels = self.labels[layer].index_select(0, pick.safe) if labels is None else labels
                hidden = hidden + self.base[layer].index_select(0, labels)
        return hidden if pick.slots is None else hidden.masked_fill(pick.slots.unsqueeze(-1) < 0, 0.0)

    def read_normed(self, layer: int, pick: Pick, norm: torch.nn.Module) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m d"]]:
        """Hidden states of window rows in the dtype of `norm` (an RMSNorm: `weight`, `eps`), and the same normed: NVFP4 in one kernel."""
        if self.packed:
            return self._dequantised(layer, pick, norm.weight, norm.eps)
        hidden = self.read(layer, pick).to(norm.weight.dtype)
        return hidden, norm(hidden)

    def _dequantised(self, layer: int, pick: Pick, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        base, parts = None if self.base is None else self.base[layer], self.place.whole(layer)
        if parts is not None:
            labels, at = self.labels[layer], pick.rows
        else:
            parts, labels, at = self.place.take(layer, pick), self.labels[layer].index_select(0, pick.safe), pick.slots
        return dequant_norm(*parts, base, None if base is None else labels, weight, eps, rows=at)

    def write(self, layer: int, pick: Pick, hidden: Float[Tensor, "m d"], labels: Int[Tensor, "m"] | None = None) -> None:
        """Replace the hidden states of window rows at `layer`."""
        labels = self.labels[layer].index_select(0, pick.safe) if labels is None else labels
        self.place.put(layer, pick, self._encode(hidden, None if self.base is None else self.base[layer], labels))

    @property
    def nbytes(self) -> int:
        """Bytes of the stored states, without the centroids."""
        return self.place.nbytes

    @property
    def host_bytes(self) -> int:
        """Bytes of them that lie in host memory beside the device."""
        return self.place.host_bytes

    @property
    def pinned_bytes(self) -> int:
        """Bytes of them in pinned host memory."""
        return self.place.pinned_bytes

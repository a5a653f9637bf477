"""Hidden states of the local window, kept as quantised residuals to their centroids (paper, sections 4.1, 4.3, C.3).

Contract: `read` gives float32 hidden states back, `read_normed` what an update packet starts with, `write` replaces some. A residual is taken to
the centroid as it was at block entry (`base`: float32 on a CPU, the model's dtype on a GPU): a centroid that moves later, for the proxy attention,
leaves the states of untouched members as they were. Formats are those of Table 11; `none` keeps the states as they are, `nvfp4-direct` quantises them
without a centroid. Row numbers below 0 are padding (see `polestar.cache.offload`): zeros when read.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.dequant_norm import dequant_norm
from kernels.formats import Format, get_format
from kernels.nvfp4 import quantize_nvfp4, quantize_residual
from polestar.cache.offload import DeviceRows, HostRows, Parts, SideStream


class ResidualStore:
    """Hidden states [n, W, d] of n layers. `base` [n, K, d] are the centroids at block entry, `labels` [n, W] their members."""

    def __init__(
        self, name: str, hidden: Float[Tensor, "n W d"], base: Float[Tensor, "n K d"], labels: Int[Tensor, "n W"],
        *, side: SideStream | None = None, padded: bool = False,
    ):
        """`side`: keep the rows in host memory, moved on this stream; None keeps them on the device. `padded`: row numbers may be below 0."""
        self.plain = name == "none"
        self.packed = name in ("nvfp4", "nvfp4-direct")
        self.format: Format | None = None if self.plain else get_format(name)
        self.base = None if self.plain or name == "nvfp4-direct" else base
        self.labels, self.dim, self.padded = labels, hidden.shape[-1], padded
        parts = self._encode(hidden, self.base, labels)
        self.place = DeviceRows(parts, padded=padded) if side is None else HostRows(parts, side)

    def _encode(self, hidden: Tensor, base: Tensor | None, labels: Tensor) -> Parts:
        """Rows of one layer, or (with a leading dimension everywhere) of all."""
        if self.plain:
            return (hidden.clone(),)
        if self.packed:
            return quantize_nvfp4(hidden) if base is None else quantize_residual(hidden, base, labels)
        return self.format.encode(hidden.float() - base.gather(-2, labels.unsqueeze(-1).expand(*labels.shape, base.shape[-1])).float())

    def _labels(self, layer: int, rows: Int[Tensor, "m"]) -> Int[Tensor, "m"]:
        return self.labels[layer].index_select(0, rows.clamp(min=0) if self.padded else rows)

    def prefetch(self, layer: int, rows: Int[Tensor, "m"]) -> None:
        """These rows of `layer` are read next, given as this very tensor."""
        self.place.prefetch(layer, rows)

    def read(self, layer: int, rows: Int[Tensor, "m"]) -> Float[Tensor, "m d"]:
        """Hidden states of window rows at `layer`, float32."""
        parts = self.place.take(layer, rows)
        if self.plain:
            hidden = parts[0].float()
        else:
            hidden = self.format.decode(parts, self.dim)
            if self.base is not None:
                hidden = hidden + self.base[layer].index_select(0, self._labels(layer, rows))
        return hidden.masked_fill(rows.unsqueeze(-1) < 0, 0.0) if self.padded else hidden

    def read_normed(self, layer: int, rows: Int[Tensor, "m"], norm: torch.nn.Module) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m d"]]:
        """Hidden states of window rows in the dtype of `norm` (an RMSNorm: `weight`, `eps`), and the same normed: NVFP4 in one kernel."""
        dtype = norm.weight.dtype
        if not self.packed:
            hidden = self.read(layer, rows).to(dtype)
            return hidden, norm(hidden)
        base, parts = None if self.base is None else self.base[layer], self.place.whole(layer)
        if parts is not None:
            labels, at = self.labels[layer], rows
        else:
            parts, labels = self.place.take(layer, rows), self._labels(layer, rows)
            at = torch.arange(rows.shape[0], device=rows.device).masked_fill(rows < 0, -1) if self.padded else None
        return dequant_norm(*parts, base, None if base is None else labels, norm.weight, norm.eps, rows=at, dtype=dtype)

    def write(self, layer: int, rows: Int[Tensor, "m"], hidden: Float[Tensor, "m d"]) -> None:
        """Replace the hidden states of window rows at `layer`."""
        base = None if self.base is None else self.base[layer]
        self.place.put(layer, rows, self._encode(hidden, base, self._labels(layer, rows)))

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

"""Hidden states of the local window, kept as quantised residuals to their centroids (paper, sections 4.1, 4.3, C.3).

Contract: `read` gives float32 hidden states back, `write` replaces some. A residual is taken to the centroid as it was at block entry: a
centroid that moves later (for the proxy attention) leaves the states of untouched members as they were.
Formats are those of Table 11; `none` keeps the states as they are, `nvfp4-direct` quantises them without a centroid.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from kernels.formats import Format, get_format


class ResidualStore:
    """Hidden states [n, W, d] of n layers. `base` [n, K, d] are the centroids at block entry, `labels` [n, W] their members."""

    def __init__(self, name: str, hidden: Float[Tensor, "n W d"], base: Float[Tensor, "n K d"], labels: Int[Tensor, "n W"]):
        self.plain = name == "none"
        self.format: Format | None = None if self.plain else get_format(name)
        self.base = None if self.plain or name == "nvfp4-direct" else base
        self.labels = labels
        if self.plain:
            self.parts = (hidden.clone(),)
        else:
            centre = 0 if self.base is None else base.gather(1, labels[..., None].expand(-1, -1, base.shape[-1]))
            self.parts = self.format.encode(hidden.float() - centre)
        self.dim = hidden.shape[-1]

    def read(self, layer: int, index: Int[Tensor, "s"]) -> Float[Tensor, "s d"]:
        """Hidden states of window rows `index` at `layer`, float32."""
        picked = tuple(part[layer].index_select(0, index) for part in self.parts)
        if self.plain:
            return picked[0].float()
        residual = self.format.decode(picked, self.dim)
        return residual if self.base is None else residual + self.base[layer, self.labels[layer, index]]

    def write(self, layer: int, index: Int[Tensor, "s"], hidden: Float[Tensor, "s d"]) -> None:
        """Replace the hidden states of window rows `index` at `layer`."""
        if self.plain:
            self.parts[0][layer].index_copy_(0, index, hidden.to(self.parts[0].dtype))
            return
        residual = hidden.float() if self.base is None else hidden.float() - self.base[layer, self.labels[layer, index]]
        for part, new in zip(self.parts, self.format.encode(residual), strict=True):
            part[layer].index_copy_(0, index, new)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored states, without the centroids."""
        return sum(p.numel() * p.element_size() for p in self.parts)

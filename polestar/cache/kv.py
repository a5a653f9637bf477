"""Keys and values of every position and layer, written in place.

Contract: preallocated once a decode; `write` replaces the rows it is given and nothing else; no method of this class clones.
Keys are kept rotated (what attention reads). Un-rotated keys are kept beside them only when asked: proxy attention of the
Polestar release reads keys without rotary embedding.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from polestar.plan import Rows


class KVStore:
    """K/V of `length` positions: each [n_layers, n_kv_heads, length, head_dim]."""

    def __init__(
        self, *, n_layers: int, n_kv_heads: int, length: int, head_dim: int, dtype: torch.dtype, device: torch.device | str, raw_keys: bool = False
    ):
        shape = (n_layers, n_kv_heads, length, head_dim)
        self.length = length
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.raw_k = torch.zeros(shape, dtype=dtype, device=device) if raw_keys else None
        self.filled = False  # has a full pass been written yet

    def write(
        self, layer: int, rows: Rows, raw_k: Float[Tensor, "kv r hd"], k: Float[Tensor, "kv r hd"], v: Float[Tensor, "kv r hd"]
    ) -> None:
        """Put K (un-rotated and rotated) and V of `rows` in place."""
        pairs = [(self.k[layer], k), (self.v[layer], v)]
        if self.raw_k is not None:
            pairs.append((self.raw_k[layer], raw_k))
        for store, new in pairs:
            if rows.span is not None:
                store[:, rows.span[0] : rows.span[1]].copy_(new)
            else:
                store.index_copy_(1, rows.index, new)

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(t.numel() * t.element_size() for t in (self.k, self.v, self.raw_k) if t is not None)

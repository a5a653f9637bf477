"""The local window of a block: hidden states, clusters, centroids and proxy attention, layer by layer (paper, section 4.1).

Contract: built once at block entry from the entry pass's hidden states; changed only by update packets. Centroids move with their members; labels
and counts stay until the next entry.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polestar.cache.clustering import Assign, Clustering, assign, cluster_split, cluster_whole
from polestar.cache.kv import KVStore
from polestar.cache.residual import ResidualStore
from polestar.drift import drift, proxy_attention
from polestar.models.transformer import Transformer
from polestar.plan import Rows


def window_spans(start: int, end: int, length: int, before: int, after: int) -> list[tuple[int, int]]:
    """Prefix and suffix part of the local window around [start, end), clipped to [0, length); empty parts are left out."""
    parts = [(max(0, start - before), start), (end, min(length, end + after))]
    return [(a, b) for a, b in parts if b > a]


class LocalWindow:
    """W window positions of n layers, in K clusters. `hidden` [n, W, d]: layer inputs at block entry."""

    def __init__(
        self,
        *,
        model: Transformer,
        positions: Int[Tensor, "W"],
        hidden: Float[Tensor, "n W d"],
        K: int,
        residual_format: str,
        generator: torch.Generator,
        split_at: int | None = None,
        assign: Assign = assign,
    ):
        """`split_at`: number of prefix positions when prefix and suffix are clustered apart (release), else None."""
        self.model = model
        self.positions = positions
        clusters: Clustering = (
            cluster_whole(hidden, K, generator) if split_at is None else cluster_split(hidden, K, split_at, generator, assign)
        )
        self.labels, self.counts = clusters.labels, clusters.counts
        self.centroids = clusters.centroids
        self.states = ResidualStore(residual_format, hidden, clusters.centroids.clone(), clusters.labels)
        self.proxy: list[Float[Tensor, "heads K L"]] = []

    @property
    def K(self) -> int:
        return self.centroids.shape[1]

    def proxy_of(self, layer: int, kv: KVStore) -> Float[Tensor, "heads K L"]:
        """Proxy attention of `layer`'s centroids over the keys as they stand."""
        block = self.model.layers[layer]
        queries = block.queries(block.attn_norm(self.centroids[layer].to(self.model.dtype)))
        return proxy_attention(queries, kv.raw_k[layer])

    def store_proxy(self, kv: KVStore) -> None:
        """Proxy attention of every layer, against which the first refresh measures drift."""
        self.proxy = [self.proxy_of(layer, kv) for layer in range(len(self.model.layers))]

    def proxy_drift(self, layer: int, kv: KVStore) -> Float[Tensor, "K"]:
        """Drift of each cluster since the last refresh or the entry (nats); the new proxy attention replaces the old."""
        now = self.proxy_of(layer, kv)
        score = drift(now, self.proxy[layer])
        self.proxy[layer] = now
        return score

    def members(self, layer: int, clusters: Int[Tensor, "k"]) -> Int[Tensor, "s"]:
        """Window rows that belong to any of `clusters` at `layer`, ascending."""
        chosen = torch.zeros(self.K, dtype=torch.bool, device=clusters.device)
        chosen[clusters] = True
        return chosen[self.labels[layer]].nonzero()[:, 0]

    def patch(self, layer: int, index: Int[Tensor, "s"], hidden: Float[Tensor, "s d"], rows: Rows, kv: KVStore) -> None:
        """Bring an update packet into `layer`: hidden states, centroids, and K/V of the window rows `index` (positions `rows`)."""
        block = self.model.layers[layer]
        labels = self.labels[layer, index]
        change = hidden.float() - self.states.read(layer, index)
        self.centroids[layer].index_add_(0, labels, change / self.counts[layer, labels].unsqueeze(-1))
        self.states.write(layer, index, hidden)
        self.model.write_kv(layer, block.attn_norm(hidden), rows, kv)

    def rows(self, index: Int[Tensor, "s"], length: int) -> Rows:
        """`Rows` of window rows."""
        return self.model.rows(self.positions[index], length)

    def all_states(self) -> Float[Tensor, "n W d"]:
        """Hidden states of every layer, dequantised (for the log)."""
        every = torch.arange(self.positions.shape[0], device=self.positions.device)
        return torch.stack([self.states.read(layer, every) for layer in range(self.labels.shape[0])])

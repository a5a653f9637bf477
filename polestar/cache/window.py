"""The local window of a block: hidden states, clusters, centroids and proxy attention, layer by layer (paper, section 4.1).

Contract: built once at block entry from the entry pass's hidden states; changed only by update packets. Centroids move with their members; labels
and counts stay until the next entry. On a GPU the window is built on a side stream: `join` puts the main stream behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kernels.packet import select_packet
from kernels.proxy import proxy_drift
from polestar.cache.clustering import Assign, Clustering, assign, cluster_split, cluster_whole
from polestar.cache.kv import KVStore
from polestar.cache.offload import Pick, SideStream
from polestar.cache.residual import ResidualStore
from polestar.clock import PhaseClock
from polestar.models.transformer import Transformer
from polestar.plan import Rows


def window_spans(start: int, end: int, length: int, before: int, after: int) -> list[tuple[int, int]]:
    """Prefix and suffix part of the local window around [start, end), clipped to [0, length); empty parts are left out."""
    parts = [(max(0, start - before), start), (end, min(length, end + after))]
    return [(a, b) for a, b in parts if b > a]


@dataclass(slots=True)
class Packet:
    """An update packet: window rows on their way through the layers. In a fixed-size packet the positions of padding are -1."""

    pick: Pick
    at: Rows  # positions with their rotary tables
    hidden: Float[Tensor, "m d"] | None = None  # input of the next layer


class LocalWindow:
    """W window positions of n layers, in K clusters. `hidden` [n, W, d]: layer inputs at block entry."""

    def __init__(
        self,
        *,
        model: Transformer,
        spans: list[tuple[int, int]],
        length: int,
        hidden: Float[Tensor, "n W d"],
        K: int,
        residual_format: str,
        generator: torch.Generator,
        split_at: int | None = None,
        assign: Assign = assign,
        side: SideStream | None = None,
        offload: bool = False,
        fixed: bool = False,
        clock: PhaseClock | None = None,
    ):
        """`spans`: the window's positions, ascending. `split_at`: prefix positions when prefix and suffix are clustered apart (release), else None.

        `side`: where the device builds the window. `offload`: keep packed states in host memory. `fixed`: packets of a size known beforehand.
        """
        device = hidden.device
        self.model, self.fixed = model, fixed
        self.side = side or SideStream(device)
        clock = clock or PhaseClock(enabled=False)
        self.host_positions = [p for a, b in spans for p in range(a, b)]
        # Made on the device: a copy from the host would wait for the entry pass.
        self.positions = torch.cat([torch.arange(a, b, device=device) for a, b in spans])
        # Positions and rotary tables have one row more than the window, which is what -1 finds.
        padding = torch.full((1,), -1, device=device)
        self.tables = (torch.cat((self.positions, padding)), *(torch.cat((t[self.positions], t[:1])) for t in model.rope(length)))
        with self.side.after_main(hidden):
            with clock.aside("clustering"):
                clusters: Clustering = (
                    cluster_whole(hidden, K, generator) if split_at is None else cluster_split(hidden, K, split_at, generator, assign)
                )
                self.labels, self.counts = clusters.labels, clusters.counts
                self.centroids = clusters.centroids  # float32: they move in small steps
                # What a row's change moves each centroid by: 1 / cluster size for its own cluster, nothing for padding.
                share = F.one_hot(self.labels, self.K) / self.counts.clamp(min=1).unsqueeze(1)
                self.share: Float[Tensor, "n W+1 K"] = F.pad(share, (0, 0, 0, 1))
                base = clusters.centroids.to(torch.float32 if device.type == "cpu" else model.dtype, copy=True)
            self.states = ResidualStore(residual_format, hidden, base, clusters.labels, side=self.side if offload else None, clock=clock)
            self.built = self.side.mark()
        self.proxy: list[Float[Tensor, "heads K L"]] = []
        self.sizes: Int[Tensor, "n K"] | None = None

    @property
    def K(self) -> int:
        return self.centroids.shape[1]

    @property
    def layers(self) -> int:
        return self.labels.shape[0]

    def join(self) -> None:
        """The main stream goes on behind the building of the window."""
        self.side.wait(self.built)

    def nbytes(self) -> dict[str, int]:
        """Bytes on the device, by part."""
        every = {
            "centroids": [self.centroids, self.states.base], "proxy": self.proxy, "states": self.states.place.parts,
            "members": [self.labels, self.counts, self.share, *self.tables],
        }  # fmt: skip
        size = {name: sum(t.numel() * t.element_size() for t in tensors if t is not None) for name, tensors in every.items()}
        return size | {"states": size["states"] - self.states.host_bytes}

    # -- drift of the clusters

    def proxy_of(self, layer: int, kv: KVStore, before: Tensor | None = None) -> tuple[Float[Tensor, "heads K L"], Float[Tensor, "K"] | None]:
        """Proxy attention of `layer`'s centroids over the keys as they stand, and its drift from `before`.

        Neither the centroids' queries nor the keys get rotary positions (ALGORITHM, step 3c).
        """
        block = self.model.layers[layer]
        queries = block.queries(block.attn_norm(self.centroids[layer].to(self.model.dtype)))
        return proxy_drift(queries, kv.raw_k[layer], before)

    def store_proxy(self, kv: KVStore, clock: PhaseClock) -> None:
        """Proxy attention of every layer, against which the first refresh measures drift."""
        with self.side.after_main(), clock.aside("proxy"):
            self.proxy = [self.proxy_of(layer, kv)[0] for layer in range(self.layers)]
            self.built = self.side.mark()

    def proxy_drift(self, layer: int, kv: KVStore) -> Float[Tensor, "K"]:
        """Drift of each cluster since the last refresh or the entry (nats); the new proxy attention replaces the old.

        With fixed packets in the same memory, where a recorded pass finds it again.
        """
        now, score = self.proxy_of(layer, kv, self.proxy[layer])
        if self.fixed:
            self.proxy[layer].copy_(now)
        else:
            self.proxy[layer] = now
        return score

    # -- packets

    def packet_sizes(self, k: list[int]) -> list[int]:
        """The most rows that k[layer] clusters of each layer can have, in steps of 16. Reads the member counts: between passes, not in a layer."""
        if self.sizes is None:
            self.sizes = self.counts.cpu().sort(-1, descending=True).values.cumsum(-1)
        W = len(self.host_positions)
        return [min(W, -(-int(self.sizes[layer, n - 1]) // 16) * 16) for layer, n in enumerate(k)]

    def select(self, layer: int, scores: Float[Tensor, "K"], k: int, size: int) -> tuple[Int[Tensor, "m"], Bool[Tensor, "K"]]:
        """Window rows of the k most drifting clusters, ascending, and the clusters. Fixed: `size` rows, decided on the device."""
        if self.fixed:
            rows, selected = select_packet(scores, self.labels[layer], k)
            return rows[:size], selected
        return self.members(layer, torch.argsort(scores, descending=True, stable=True)[:k])

    def members(self, layer: int, clusters: Int[Tensor, "k"]) -> tuple[Int[Tensor, "m"], Bool[Tensor, "K"]]:
        """Window rows that belong to any of `clusters` at `layer`, ascending, and the clusters as a mask."""
        chosen = torch.zeros(self.K, dtype=torch.bool, device=clusters.device)
        chosen[clusters] = True
        return chosen.index_select(0, self.labels[layer]).nonzero()[:, 0], chosen

    def packet(self, rows: Int[Tensor, "m"]) -> Packet:
        """A packet of window rows, without hidden states yet."""
        index, cos, sin = (self._rows_of(table, rows) for table in self.tables)
        return Packet(Pick.of(rows, padded=self.fixed), Rows(index=index, cos=cos, sin=sin))

    def _rows_of(self, table: Tensor, rows: Int[Tensor, "m"]) -> Tensor:
        return table[rows] if self.fixed else table.index_select(0, rows)

    def patch(self, layer: int, packet: Packet) -> None:
        """Bring a packet's hidden states into `layer`: states and centroids (K/V are the caller's)."""
        pick = packet.pick
        labels = self.labels[layer].index_select(0, pick.safe)
        change = packet.hidden.float() - self.states.read(layer, pick, labels)
        self.centroids[layer].addmm_(self._rows_of(self.share[layer], pick.rows).t(), change)
        self.states.write(layer, pick, packet.hidden, labels)

    def all_states(self) -> Float[Tensor, "n W d"]:
        """Hidden states of every layer, dequantised (for the log)."""
        self.join()
        every = Pick.of(torch.arange(self.labels.shape[1], device=self.labels.device))
        return torch.stack([self.states.read(layer, every) for layer in range(self.layers)])

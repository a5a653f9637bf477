"""A refresh pass: patch, main rows, proxy attention, drift, selection and update packet of every layer (paper, Algorithm 1; ALGORITHM steps 3a-3f).

Contract: each layer runs once, on main rows and packet rows together. That is the order of the algorithm: K/V of the packet that comes in and of the
main rows are written first; proxy attention reads them and selects; then main rows and the selected rows, both queries against the same keys, go
through attention and MLP as one batch. Weights are read once, so a packet costs a GPU little more than its selection.
With `fixed` packets nothing here asks the device a question, and what a pass leaves behind stays where it was: it can be recorded (`polestar.graphs`).
Time of packet rows in attention and MLP counts as those; "packets" is what remains.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kernels.rope_scatter import scatter_kv
from polestar.cache.window import LocalWindow, Packet
from polestar.models.transformer import rotate
from polestar.plan import LayerCall, LayerHook, Rows

if TYPE_CHECKING:
    from polestar.cache.polestar import PolestarCache
    from polestar.driver import Run


class RefreshHook(LayerHook):
    """One per refresh pass. `packet`: what travels; after the pass, the last layer's packet with its final hidden states."""

    def __init__(self, policy: PolestarCache, run: Run):
        window: LocalWindow = policy.window
        self.policy, self.window, self.offload = policy, window, window.states.host_bytes > 0
        config = run.config
        self.k = [min(config.k, window.K)] * window.layers
        if config.last_layer_k:
            self.k[-1] = min(config.last_layer_k, window.K)
        self.sizes = window.packet_sizes(self.k) if window.fixed else None
        self.drifts: list[Float[Tensor, "K"]] = []
        self.chosen: list[Bool[Tensor, "K"]] = []
        self.packet: Packet | None = None
        self.joined: Float[Tensor, "b+m d"] | None = None  # main and packet rows after the last layer run
        self.first: Int[Tensor, "m"] | None = None  # window rows whose embedding changed: what the first layer's packet holds
        if config.refresh_embeddings and policy.changed:
            rows = [i for i, p in enumerate(window.host_positions) if p in policy.changed]
            if rows:
                padding = min(len(window.host_positions), -(-len(rows) // 16) * 16) - len(rows) if window.fixed else 0
                self.first = torch.tensor(rows + padding * [-1], device=run.model.device)
        policy.changed.clear()

    def begin(self, call: LayerCall) -> None:
        if self.first is not None:
            self.packet = self.window.packet(self.first)
            self.packet.hidden = call.model.embed(call.tokens[self.packet.at.index])

    def recording(self) -> Hashable | None:
        if not self.window.fixed or self.offload or self.policy.choose is not None:
            return None
        return type(self), self.window, tuple(self.k), tuple(self.sizes), 0 if self.first is None else len(self.first)

    def again(self, recorded: RefreshHook, replay: Callable[[], None]) -> None:
        if self.first is not None:
            recorded.first.copy_(self.first)
        replay()
        self.drifts, self.chosen, self.packet = recorded.drifts, recorded.chosen, recorded.packet

    def layer(self, call: LayerCall, layer: int, x: Float[Tensor, "b d"], rows: Rows) -> tuple[Tensor, Rows]:
        window, packet, b = self.window, self.packet, x.shape[0]
        block, states = call.model.layers[layer], window.states
        every = x if packet is None else torch.cat((x, packet.hidden)) if self.joined is None else self.joined
        normed = block.attn_norm(every)
        raw, values = block.keys(normed), block.values(normed)
        if packet is not None:
            self._write(call, layer, raw[:, b:], values[:, b:], packet.at, padded=window.fixed)
        # The main rows come last: a position in both (a family's shift feeds the one before the block) is the main pass's.
        self._write(call, layer, raw[:, :b], values[:, :b], rows)
        call.clock.lap("attention")
        if packet is not None:
            window.patch(layer, packet)
            call.clock.lap("packets")
        scores = window.proxy_drift(layer, call.kv)
        call.clock.lap("proxy")
        packet = self._select(layer, scores)
        if self.offload:
            states.prefetch(layer, packet.pick)
            if layer + 1 < window.layers:  # where these rows are patched
                states.prefetch(layer + 1, packet.pick)
        old, old_normed = states.read_normed(layer, packet.pick, block.attn_norm)
        call.clock.lap("packets")
        cos, sin = torch.cat((rows.cos, packet.at.cos)), torch.cat((rows.sin, packet.at.sin))
        q = rotate(block.queries(torch.cat((normed[:b], old_normed))), cos, sin)
        h = torch.cat((x, old)).add_(block.o_proj(self._attend(call, layer, q, rows)))
        call.clock.lap("attention")
        h = h.add_(block.mlp(h))
        call.clock.lap("mlp")
        packet.hidden = h[b:]
        self.packet, self.joined = (packet, h) if len(packet.pick) else (None, None)
        return h[:b], rows

    def _write(self, call: LayerCall, layer: int, raw: Tensor, values: Tensor, at: Rows, *, padded: bool = False) -> None:
        kv = call.kv
        if at.span is not None and not raw.is_cuda:
            kv.write(layer, at, raw, rotate(raw, at.cos, at.sin), values)  # contiguous rows: plain copies
        else:
            scatter_kv(kv.k[layer], kv.v[layer], raw, values, at.index, at.cos, at.sin, raw_cache=kv.raw_k[layer], padded=padded)

    def _select(self, layer: int, scores: Float[Tensor, "K"]) -> Packet:
        window, k = self.window, self.k[layer]
        if self.policy.choose is None:
            rows, chosen = window.select(layer, scores, k, self.sizes[layer] if window.fixed else 0)
        else:
            rows, chosen = window.members(layer, self.policy.choose(layer, scores, scores.topk(k).indices))
        self.drifts.append(scores)
        self.chosen.append(chosen)
        return window.packet(rows)

    def _attend(self, call: LayerCall, layer: int, q: Float[Tensor, "h r hd"], rows: Rows) -> Float[Tensor, "r q"]:
        """Attention of all rows before `o_proj`; keeps the probabilities that the plan asked for, which are of main rows."""
        block, k, v = call.model.layers[layer], call.kv.k[layer], call.kv.v[layer]
        if call.keep is None or layer not in call.keep_layers:
            return block.attend(q, k, v)
        first, last = call.keep[0] - rows.span[0], call.keep[1] - rows.span[0]
        kept = call.attentions[layer] = call.attention(layer, q[:, first:last])
        parts = [block.weigh(kept, v)]
        if first > 0:
            parts.insert(0, block.attend(q[:, :first], k, v))
        if last < q.shape[1]:
            parts.append(block.attend(q[:, last:], k, v))
        return torch.cat(parts)

    # -- what the pass did, for the log; read after it

    def scores(self) -> np.ndarray:
        """Drift of every cluster, float32 [n, K]."""
        return torch.stack(self.drifts).cpu().numpy()

    def selected(self) -> np.ndarray:
        """Clusters refreshed, bool [n, K]."""
        return torch.stack(self.chosen).cpu().numpy()

    def packet_rows(self) -> np.ndarray:
        """Window rows refreshed in each layer (padding not counted), int32 [n]."""
        return (torch.stack(self.chosen) * self.window.counts).sum(-1).cpu().numpy().astype(np.int32)

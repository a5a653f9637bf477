"""The straightforward path of a refresh pass: each step of the algorithm by itself, as written down. For benchmarks and tests; decodes do not use it.

Contract: same tokens as `polestar.cache.refresh` up to the rounding of equal sums. `use(decoder)` puts a decoder on this path: packet rows run as a layer of
their own, the device is asked how many there are, packed states are fetched when they are needed, and all work goes into one stream.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from polestar.cache.offload import SideStream
from polestar.cache.refresh import RefreshHook
from polestar.driver import Decoder
from polestar.plan import LayerCall, Rows

FLOOR = 1e-12


def drift(now: Float[Tensor, "heads r L"], before: Float[Tensor, "heads r L"]) -> Float[Tensor, "r"]:
    """Equation 4, term by term."""
    p, q = now.clamp(min=FLOOR), before.clamp(min=FLOOR)
    return (p * (p.log() - q.log())).sum(-1).mean(0).clamp_(min=0)


class StraightHook(RefreshHook):
    """Steps 3a to 3f one after the other: packet rows are patched, then main rows run, then the selected rows run as a layer of their own."""

    def layer(self, call: LayerCall, layer: int, x: Float[Tensor, "b d"], rows: Rows) -> tuple[Tensor, Rows]:
        window, packet, model = self.window, self.packet, call.model
        block = model.layers[layer]
        if packet is not None:
            labels, change = window.labels[layer, packet.pick.rows], packet.hidden.float() - window.states.read(layer, packet.pick)
            window.centroids[layer].index_add_(0, labels, change / window.counts[layer, labels].unsqueeze(-1))
            window.states.write(layer, packet.pick, packet.hidden)
            model.write_kv(layer, block.attn_norm(packet.hidden), packet.at, call.kv)
            call.clock.lap("packets")
        x = call.run(layer, x, rows)
        queries = block.queries(block.attn_norm(window.centroids[layer].to(model.dtype)))
        now = block.scores(queries, call.kv.raw_k[layer])
        scores = drift(now, window.proxy[layer])
        window.proxy[layer] = now
        call.clock.lap("proxy")
        packet = self._select(layer, scores)
        old = window.states.read(layer, packet.pick).to(x.dtype)
        packet.hidden = model.query_layer(layer, old, packet.at, call.kv)
        self.packet = packet if len(packet.pick) else None
        call.clock.lap("packets")
        return x, rows


def use(decoder: Decoder) -> Decoder:
    """Put a `polestar` decoder, before its first pass, on the straightforward path. Raises ValueError for another method."""
    if decoder.run.config.method != "polestar":
        raise ValueError(f"only polestar has a straightforward path, not {decoder.run.config.method}; give a polestar decoder")
    decoder.cache.hook, decoder.cache.fixed, decoder.cache.side = StraightHook, False, SideStream(decoder.run.model.device, apart=False)
    decoder.commit.drift, decoder.commit.fused = drift, False
    return decoder

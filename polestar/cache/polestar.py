"""Polestar-Cache: refresh the drifting clusters of the local window, layer by layer (paper, section 4.1, Algorithm 1).

Contract: block entries recompute all rows, or only window and block; between entries the block is fed, and when enough tokens were
committed the most drifting clusters are recomputed by update packets that travel one layer ahead. The presets' differences are parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.kmeans import assign
from polestar.cache.offload import SideStream
from polestar.cache.policy import CachePolicy
from polestar.cache.refresh import RefreshHook
from polestar.cache.window import LocalWindow, window_spans
from polestar.plan import ForwardPlan, LayerCall, LayerHook, PassResult, Rows
from polestar.trace.step import Clusters

if TYPE_CHECKING:
    from polestar.driver import Run
    from polestar.trace.step import Commit, Step


class EntryHook(LayerHook):
    """Keeps every layer's input at the window positions."""

    def __init__(self, run: Run, spans: list[tuple[int, int]]):
        self.spans = spans
        size = sum(b - a for a, b in spans)
        self.hidden = torch.empty(run.model.cfg.n_layers, size, run.model.cfg.d_model, dtype=run.model.dtype, device=run.model.device)

    def layer(self, call: LayerCall, layer: int, x: Float[Tensor, "r d"], rows: Rows) -> tuple[Tensor, Rows]:
        at, origin = 0, rows.span[0]
        for a, b in self.spans:
            self.hidden[layer, at : at + b - a] = x[a - origin : b - origin]
            at += b - a
        call.clock.lap("clustering")
        return call.run(layer, x, rows), rows


class PolestarCache(CachePolicy):
    """Window entries, drift-triggered cluster refreshes.

    `choose(layer, scores, top) -> clusters` and `assign(directions, centroids) -> labels` let a test replay recorded ties. `fixed`: packets of a size
    that the device need not tell; None is what the device wants (a GPU: yes). `hook` runs refresh passes.
    """

    raw_keys = True
    hook = RefreshHook

    def __init__(self, *, fixed: bool | None = None):
        self.fixed = fixed
        self.side: SideStream | None = None
        self.window: LocalWindow | None = None
        self.entry: EntryHook | None = None
        self.refresh: RefreshHook | None = None
        self.changed: set[int] = set()  # positions outside the block whose token changed since their embedding was fed
        self.since = 0  # M: tokens committed since the last refresh
        self.last = 0  # N: tokens committed by the previous pass
        self.counts: tuple[int, int] | None = None
        self.choose = None
        self.assign = assign

    def plan(self, run: Run, masked: Int[Tensor, "m"]) -> ForwardPlan:
        return self._plan_entry(run, masked) if run.entering else self._plan_within(run, masked)

    def _plan_entry(self, run: Run, masked: Int[Tensor, "m"]) -> ForwardPlan:
        config, B = run.config, run.config.block_length
        spans = window_spans(run.block_start, run.block_end, run.length, config.window_prefix * B, config.window_suffix * B)
        schedule = config.entry_schedule if config.cache_refresh else "full"
        windowed = run.kv.filled and {"alternate": run.block % 2 == 1, "every-fourth": run.block % 4 == 3, "full": False}[schedule]
        if self.window is not None:
            self.window.join()  # it reads keys that this pass replaces
        self.window = self.refresh = None
        self.since, self.counts = 0, None
        self.entry = EntryHook(run, spans) if config.cache_refresh and spans else None
        self.changed.clear()
        rows = (0, run.length)
        if windowed:
            start, end = run.model.span_for(run.block_start, run.block_end)
            rows = (min([start] + [a for a, _ in spans]), max([end] + [b for _, b in spans]))
        return ForwardPlan(kind="entry-window" if windowed else "entry-full", rows=rows, logits_for=masked, hook=self.entry)

    def _plan_within(self, run: Run, masked: Int[Tensor, "m"]) -> ForwardPlan:
        config = run.config
        total = config.tau_upd if config.tau_upd_total < 0 else config.tau_upd_total
        self.since += self.last
        self.counts = (self.last, self.since)
        reason = ""
        if self.last > config.tau_upd:
            reason = f"N = {self.last} > τ_upd = {config.tau_upd:g}"
        elif self.since > total:
            reason = f"M = {self.since} > τ_upd = {total:g}"
        if self.window is not None:
            self.window.join()
        fires = bool(reason) and self.window is not None
        self.refresh = self.hook(self, run) if fires else None
        if fires:
            self.since = 0
        rows = run.model.span_for(run.block_start, run.block_end)
        return ForwardPlan(kind="within", rows=rows, logits_for=masked, refresh=fires, reason=reason if fires else "", hook=self.refresh)

    def observe(self, run: Run, result: PassResult) -> None:
        if not run.entering or self.entry is None:
            return
        config, spans, device = run.config, self.entry.spans, run.model.device
        prefix = sum(b - a for a, b in spans if a < run.block_start)
        self.side = self.side or SideStream(device)
        self.window = LocalWindow(
            model=run.model,
            spans=spans,
            length=run.length,
            hidden=self.entry.hidden,
            K=config.K,
            residual_format=config.residual_format,
            generator=run.cluster_rng,
            split_at=prefix if config.split_clusters else None,
            assign=self.assign,
            side=self.side,
            offload={"on": True, "off": False}.get(config.offload, device.type == "cuda"),
            fixed=device.type == "cuda" if self.fixed is None else self.fixed,
            clock=run.clock,
        )
        self.window.store_proxy(run.kv, run.clock)
        if run.level != "full":
            self.entry = None

    def outside(self, run: Run) -> tuple[Int[Tensor, "s"], Float[Tensor, "s d"]] | None:
        if run.entering or self.refresh is None or self.refresh.packet is None or not run.config.suffix_commit:
            return None
        packet = self.refresh.packet
        positions = packet.at.index + int(run.model.cfg.shift)
        # On the host, where the commit is decided: rows after the block that are not padding.
        keep = ((positions.cpu() >= run.block_end) & (packet.pick.rows.cpu() >= 0)).nonzero()[:, 0]
        if not keep.numel():
            return None
        keep = keep.to(positions.device)
        return positions.index_select(0, keep), packet.hidden.index_select(0, keep)

    def committed(self, run: Run, commits: list[Commit]) -> None:
        outside = {c.position for c in commits if not run.block_start <= c.position < run.block_end}
        self.changed |= outside
        self.last = len(commits) if run.config.count_suffix else len(commits) - len(outside)

    def memory(self, run: Run) -> dict:
        found = super().memory(run)
        if self.window is not None:
            found["parts"] |= self.window.nbytes()
            found |= {"device": sum(found["parts"].values()), "host": self.window.states.host_bytes}
        return found

    def log(self, run: Run, step: Step) -> None:
        if self.counts is not None and not run.entering:
            step.count_last, step.count_since = self.counts
        if self.refresh is not None:
            step.packet_rows = self.refresh.packet_rows()
        if self.window is None or run.level == "off":
            return
        self.window.join()
        clusters = Clusters()
        if run.entering:
            clusters.window = self.window.positions.cpu().numpy().astype(np.int32)
            clusters.labels = self.window.labels.cpu().numpy().astype(np.uint8)
            clusters.counts = self.window.counts.cpu().numpy().astype(np.int32)
        elif self.refresh is not None:
            clusters.scores, clusters.selected = self.refresh.scores(), self.refresh.selected()
        else:
            return
        if run.level == "full":
            hidden = self.entry.hidden if run.entering else self.window.all_states()
            clusters.points = run.project(hidden, self.window.centroids)
        step.clusters = clusters

"""Polestar-Cache: refresh the drifting clusters of the local window, layer by layer (paper, section 4.1, Algorithm 1).

Contract: block entries recompute all rows, or only window and block; between entries the block is fed, and when enough tokens were
committed the most drifting clusters are recomputed by update packets that travel one layer ahead. The presets' differences are parameters.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from polestar.cache.clustering import assign
from polestar.cache.policy import CachePolicy
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


class RefreshHook(LayerHook):
    """Patch, main rows, proxy attention, drift, selection and update packet of every layer (ALGORITHM steps 3a-3f)."""

    def __init__(self, policy: PolestarCache, run: Run):
        window = policy.window
        self.policy, self.window, self.length = policy, window, run.length
        n, K = window.labels.shape[0], window.K
        config = run.config
        self.k = [min(config.k, K)] * n
        if config.last_layer_k:
            self.k[-1] = min(config.last_layer_k, K)
        self.scores = torch.full((n, K), math.nan)
        self.selected = torch.zeros((n, K), dtype=torch.bool)
        self.packet_rows = np.zeros(n, dtype=np.int32)
        self.packet: tuple[Tensor, Rows, Tensor] | None = None
        if config.refresh_embeddings and policy.changed:
            positions = torch.tensor(sorted(policy.changed), device=run.model.device)
            index = torch.isin(window.positions, positions).nonzero()[:, 0]
            if index.numel():
                rows = window.rows(index, run.length)
                self.packet = (index, rows, run.model.embed(run.canvas.tokens[rows.index]))
        policy.changed.clear()

    def layer(self, call: LayerCall, layer: int, x: Float[Tensor, "r d"], rows: Rows) -> tuple[Tensor, Rows]:
        window, clock = self.window, call.clock
        if self.packet is not None:
            index, at, hidden = self.packet
            window.patch(layer, index, hidden, at, call.kv)
            clock.lap("packets")
        x = call.run(layer, x, rows)
        scores = window.proxy_drift(layer, call.kv)
        clock.lap("proxy")
        top = scores.topk(self.k[layer]).indices
        if self.policy.choose is not None:
            top = self.policy.choose(layer, scores, top)
        index = window.members(layer, top)
        self.scores[layer] = scores.cpu()
        self.selected[layer, top.cpu()] = True
        self.packet_rows[layer] = index.shape[0]
        if index.numel():
            at = window.rows(index, self.length)
            old = window.states.read(layer, index).to(x.dtype)
            self.packet = (index, at, call.model.query_layer(layer, old, at, call.kv))
        else:
            self.packet = None
        clock.lap("packets")
        return x, rows


class PolestarCache(CachePolicy):
    """Window entries, drift-triggered cluster refreshes.

    `choose(layer, scores, top) -> clusters` and `assign(directions, centroids) -> labels` let a test replay recorded ties.
    """

    raw_keys = True

    def __init__(self):
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
        fires = bool(reason) and self.window is not None
        self.refresh = RefreshHook(self, run) if fires else None
        if fires:
            self.since = 0
        rows = run.model.span_for(run.block_start, run.block_end)
        return ForwardPlan(kind="within", rows=rows, logits_for=masked, refresh=fires, reason=reason if fires else "", hook=self.refresh)

    def observe(self, run: Run, result: PassResult) -> None:
        if not run.entering or self.entry is None:
            return
        config, spans = run.config, self.entry.spans
        prefix = sum(b - a for a, b in spans if a < run.block_start)
        self.window = LocalWindow(
            model=run.model,
            positions=torch.cat([torch.arange(a, b, device=run.model.device) for a, b in spans]),
            hidden=self.entry.hidden,
            K=config.K,
            residual_format=config.residual_format,
            generator=run.cluster_rng,
            split_at=prefix if config.split_clusters else None,
            assign=self.assign,
        )
        run.clock.lap("clustering")
        self.window.store_proxy(run.kv)
        run.clock.lap("proxy")
        if run.level != "full":
            self.entry = None

    def outside(self, run: Run) -> tuple[Int[Tensor, "s"], Float[Tensor, "s d"]] | None:
        if run.entering or self.refresh is None or self.refresh.packet is None or not run.config.suffix_commit:
            return None
        _, at, hidden = self.refresh.packet
        positions = at.index + int(run.model.cfg.shift)
        keep = positions >= run.block_end
        if not bool(keep.any()):
            return None
        return positions[keep], hidden[keep]

    def committed(self, run: Run, commits: list[Commit]) -> None:
        outside = {c.position for c in commits if not run.block_start <= c.position < run.block_end}
        self.changed |= outside
        self.last = len(commits) if run.config.count_suffix else len(commits) - len(outside)

    def log(self, run: Run, step: Step) -> None:
        if self.counts is not None and not run.entering:
            step.count_last, step.count_since = self.counts
        if self.refresh is not None:
            step.packet_rows = self.refresh.packet_rows.copy()
        if self.window is None or run.level == "off":
            return
        clusters = Clusters()
        if run.entering:
            clusters.window = self.window.positions.cpu().numpy().astype(np.int32)
            clusters.labels = self.window.labels.cpu().numpy().astype(np.uint8)
            clusters.counts = self.window.counts.cpu().numpy().astype(np.int32)
        elif self.refresh is not None:
            clusters.scores = self.refresh.scores.numpy().copy()
            clusters.selected = self.refresh.selected.numpy().copy()
        else:
            return
        if run.level == "full":
            hidden = self.entry.hidden if run.entering else self.window.all_states()
            clusters.points = run.project(hidden, self.window.centroids)
        step.clusters = clusters

"""The paper's motivating figures, for any run: pure functions of an observed trace (level full, observe mode).

Contract: numbers in, numbers out; nothing is drawn, no model is run. Every function raises ValueError in one sentence when the trace was not
observed, or does not hold what the figure needs. Positions are absolute, drift is in nats, staleness is E of section C.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polestar.trace.step import Step
from polestar.trace.trace import Trace

NOTHING_STALE = 1e-6  # staleness below this is rounding: there is no stalest quarter to find
GROUPS = ("window, most drifting quarter", "window, second quarter", "window, rest", "outside")


def observed(trace: Trace) -> bool:
    """Was the trace recorded in observe mode?"""
    return any(s.staleness is not None for s in trace)


def drift_map(trace: Trace) -> np.ndarray:
    """Figure 4: drift float32 [passes, L] of every position between full recomputes (final layer); NaN where there is none (the first pass)."""
    _need(trace)
    empty = np.full(trace.header.length, np.nan, np.float32)
    return np.stack([empty if s.full_drift is None else s.full_drift for s in trace])


def cumulative_staleness(trace: Trace, *, before: int = 1, after: int = 1, layer: int | None = None) -> dict[str, Any]:
    """Figure 3a: staleness summed over passes, by group of positions, as a share of the whole.

    The local window is `before` blocks before the block and `after` after it; in each pass its positions are ranked by their drift in that pass. The
    block itself is fed every pass and belongs to no group. `layer`: that layer's staleness, or the mean over layers.
    Returns {"pass" int [S], "groups" {name of GROUPS: float [S]}, "positions" {name: mean number of positions}, "total": the sum that is 1}.
    """
    _need(trace)
    h, size = trace.header, trace.header.block_length
    sums, counts = {name: [] for name in GROUPS}, {name: [] for name in GROUPS}
    for step in trace:
        error = step.staleness.mean(0) if layer is None else step.staleness[layer]
        low, high = max(0, step.block_start - before * size), min(h.length, step.block_end + after * size)
        near = np.r_[low : step.block_start, step.block_end : high]
        far = np.r_[0:low, high : h.length]
        drift = np.zeros(len(near)) if step.full_drift is None else step.full_drift[near]
        ranked = near[np.argsort(-drift, kind="stable")]
        quarter = 0 if step.full_drift is None else -(-len(near) // 4)
        parts = (ranked[:quarter], ranked[quarter : 2 * quarter], ranked[2 * quarter :], far)
        for name, part in zip(GROUPS, parts, strict=True):
            sums[name].append(float(error[part].sum()))
            counts[name].append(len(part))
    total = sum(sum(values) for values in sums.values())
    groups = {name: np.cumsum(values) / total if total > 0 else np.zeros(len(trace)) for name, values in sums.items()}
    positions = {name: float(np.mean(values)) for name, values in counts.items()}
    return {"pass": np.arange(len(trace)), "groups": groups, "positions": positions, "total": total}


def selection(trace: Trace, *, share: float = 0.25, ahead: int = 1) -> dict[str, np.ndarray]:
    """Figure 6a: does cluster drift find the positions of the window whose K/V are truly the stalest `share`?

    One entry for each refresh and layer: pass, layer; accuracy: of the stalest positions, the share found when as many are taken in order of their
    cluster's drift (a cluster that fits only in part counts in proportion); recall: the share of them in the clusters that were in fact
    chosen; chosen: the share of the window that these hold, which is what chance would reach. Staleness is measured before the refresh, in
    the layer whose K/V the choice renews: `ahead` layers on (an update packet of layer l is written into l + 1). Entries where
    nothing is stale are left out.
    """
    _need(trace)
    rows: list[tuple[float, ...]] = []
    window = labels = None
    for step in trace:
        c = step.clusters
        if c is not None and c.window is not None:
            window, labels = c.window, c.labels
        if c is None or c.selected is None or window is None or "stale_before" not in step.extra:
            continue
        for layer in range(trace.header.n_layers - ahead):
            stale = np.asarray(step.extra["stale_before"])[layer + ahead, window]
            if stale.max(initial=0) <= NOTHING_STALE:
                continue
            wanted = np.zeros(len(window), bool)
            wanted[np.argsort(-stale, kind="stable")[: max(1, round(share * len(window)))]] = True
            inside = c.selected[layer][labels[layer]]
            accuracy = _found(c.scores[layer], labels[layer], wanted)
            rows.append((step.index, layer, accuracy, wanted[inside].sum() / wanted.sum(), inside.mean()))
    columns = np.array(rows, dtype=np.float64).reshape(-1, 5).T
    names = ("pass", "layer", "accuracy", "recall", "chosen")
    return {n: a.astype(np.int64) if n in names[:2] else a for n, a in zip(names, columns, strict=True)}


def _found(scores: np.ndarray, labels: np.ndarray, wanted: np.ndarray) -> float:
    """Share of `wanted` among the first wanted.sum() positions in order of their cluster's score."""
    left, hits = int(wanted.sum()), 0.0
    for cluster in np.argsort(-np.nan_to_num(scores, nan=-1.0), kind="stable"):
        members = wanted[labels == cluster]
        if not len(members):
            continue
        taken = min(left, len(members))
        hits += members.sum() * taken / len(members)
        left -= taken
        if not left:
            break
    return float(hits / wanted.sum())


def progress(trace: Trace, position: int) -> dict[str, Any]:
    """Figure 3b: how a token came to its final state, and its drift beside it.

    Returns {"pass" [T]: from when it was first masked to its commit; "cos" [T]: cosine of its centred log-probabilities to the final ones (section
    3.2); "gain" [T]: its rise since the pass before (NaN first); "drift" [T]; "committed": the pass; "reason"}. The last commit counts.
    """
    _need(trace)
    step = _commit_of(trace, position)
    entry = step.extra.get("progress", {"position": ()})
    at = np.flatnonzero(np.asarray(entry["position"]) == position)
    if not at.size:
        raise ValueError(f"the progress of position {position} was not kept; it was committed without having been masked in an observed pass")
    first = np.asarray(entry["first"])
    ends = np.cumsum(step.index + 1 - first)
    begin, end = int(ends[at[0]] - (step.index + 1 - first[at[0]])), int(ends[at[0]])
    cos = np.asarray(entry["cos"], dtype=np.float32)[begin:end]
    passes = np.arange(int(first[at[0]]), step.index + 1)
    gain = np.diff(cos, prepend=np.float32(np.nan))
    reason = next(c.reason for c in step.commits if c.position == position)
    return {"pass": passes, "cos": cos, "gain": gain, "drift": drift_map(trace)[passes, position], "committed": step.index, "reason": reason}


def value_path(trace: Trace, position: int) -> dict[str, Any]:
    """Figure 3c: the path of a position's last-layer value state over the run, in its own two principal directions.

    Returns {"pass" [S], "xy" float32 [S, 2], "share" [2] of the path's variance, "kept": the least share of variance that the recorded directions hold,
    "committed": pass or None, "event": first pass in which the drift rule Δ >= α (τ_s - c)² would have fired on full recomputes, or None,
    "static": first pass with c >= τ_s, or None}. α, τ_s and h are the run's, or the paper's where its method has none.
    """
    _need(trace)
    h = trace.header
    j = _generated(trace, position)
    states = np.stack([np.asarray(s.extra["value_states"], dtype=np.float32)[j] for s in trace])
    centred = states - states.mean(0)
    _, size, directions = np.linalg.svd(centred, full_matrices=False)
    axes = np.zeros((2, states.shape[1]), np.float32)
    axes[: min(2, len(directions))] = directions[:2]
    axes *= np.where(np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1) < 0, -1, 1)
    power = size**2 / max(float((size**2).sum()), 1e-30)
    committed = next((s.index for s in reversed(trace.steps) for c in s.commits if c.position == position), None)
    conf = np.array([np.asarray(s.extra["full_conf"])[j] for s in trace], dtype=np.float64)
    event, static = _first_events(drift_map(trace)[:, position], conf, h.config)
    return {
        "pass": np.arange(len(trace)), "xy": (centred @ axes.T).astype(np.float32), "share": np.pad(power[:2], (0, 2 - len(power[:2]))),
        "kept": min(float(s.extra["value_kept"]) for s in trace), "committed": committed, "event": event, "static": static,
    }  # fmt: skip


def _first_events(drift: np.ndarray, conf: np.ndarray, config: dict[str, Any]) -> tuple[int | None, int | None]:
    alpha, tau, h = float(config.get("alpha", 10.0)), float(config.get("tau_s", 0.9)), int(config.get("h", 5))
    event = static = None
    past: list[float] = []
    for t in range(len(drift)):
        if np.isnan(conf[t]):
            past = []
            continue
        if static is None and conf[t] >= tau:
            static = t
        if not np.isnan(drift[t]):
            recent = past[-h:] if h else []
            delta = drift[t] - (np.mean(recent) if recent else 0.0)
            # Without a past every drift is an event; the rule is asked of positions that have one.
            if event is None and (recent or h == 0) and conf[t] < tau and delta >= alpha * (tau - conf[t]) ** 2:
                event = t
            past.append(float(drift[t]))
    return event, static


def _need(trace: Trace) -> None:
    if not len(trace) or any(s.staleness is None for s in trace):
        raise ValueError(f"this trace ({trace.header.level}) was not recorded in observe mode from its first pass on; run it again with observe on")


def _generated(trace: Trace, position: int) -> int:
    h = trace.header
    if not h.prompt_length <= position < h.length:
        raise ValueError(f"position {position} is not generated; choose one from {h.prompt_length} to {h.length - 1}")
    return position - h.prompt_length


def _commit_of(trace: Trace, position: int) -> Step:
    _generated(trace, position)
    for step in reversed(trace.steps):
        if any(c.position == position for c in step.commits):
            return step
    raise ValueError(f"position {position} was never committed, so it has no final state")

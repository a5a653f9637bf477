"""One forward pass of a decode, as the log keeps it.

Contract: a `Step` holds copies only (numpy, CPU); nothing in it aliases the engine's buffers. Fields that do not exist for a
pass or a method are None, never 0 (drift at a block entry, clusters of a method without clusters). Positions are absolute: the
prompt occupies [0, L_p), the generation [L_p, L).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

KINDS = ("entry-full", "entry-window", "within")
REASONS = ("confidence", "forced", "drift", "suffix")
LEVELS = ("off", "steps", "full")


@dataclass(frozen=True, slots=True)
class Commit:
    """One token put on the canvas.

    `delta` (nats) and `gate` are the two sides of the drift rule, Delta >= alpha (tau_s - c)^2 (paper, section 4.2); both are None
    where the rule was not evaluated (block entry, suffix, methods without it).
    """

    position: int
    token: int
    confidence: float
    reason: str
    delta: float | None = None
    gate: float | None = None


@dataclass(frozen=True, slots=True)
class ParamChange:
    """A parameter changed while the run was going; it took effect before the pass that carries it."""

    name: str
    old: Any
    new: Any


@dataclass(slots=True, kw_only=True)
class Clusters:
    """The clustered local window (paper, section 4.1). W window positions, K centroids, n layers.

    `window`, `labels` and `counts` are given at block entry, `scores` (nats; drift per cluster) and `selected` at a refresh,
    `points` at both when the level is `full`.
    """

    window: np.ndarray | None = None  # int32 [W] absolute positions
    labels: np.ndarray | None = None  # uint8 [n, W]
    counts: np.ndarray | None = None  # int32 [n, K]
    scores: np.ndarray | None = None  # float32 [n, K], NaN where not measured
    selected: np.ndarray | None = None  # bool [n, K] clusters chosen for refresh
    points: np.ndarray | None = None  # float32 [n, W + K, P] hidden states then centroids, in the run's PCA basis of each layer


@dataclass(slots=True, kw_only=True)
class Step:
    """One forward pass and what it committed."""

    index: int  # 0-based pass number; NFE = number of steps
    block: int
    block_start: int
    block_end: int
    kind: str  # one of KINDS
    refresh: bool = False  # did the cache policy refresh something in this within-block pass
    refresh_reason: str = ""
    count_last: int | None = None  # N: tokens committed by the previous step
    count_since: int | None = None  # M: tokens committed since the last refresh, the previous step included
    rows: int = 0  # positions fed through the main pass
    packet_rows: np.ndarray | None = None  # int32 [n] update-packet rows of each layer
    commits: list[Commit] = field(default_factory=list)
    conf: np.ndarray | None = None  # float32 [block_end - block_start], NaN where the position was not masked
    argmax: np.ndarray | None = None  # int32 [block_end - block_start], -1 where not masked
    drift: np.ndarray | None = None  # float32 [block], final-layer drift delta_j of every block position (nats)
    delta: np.ndarray | None = None  # float32 [block], drift minus its mean over the history
    gate: np.ndarray | None = None  # float32 [block], alpha (tau_s - c)^2, NaN where not masked
    clusters: Clusters | None = None
    candidate_ids: np.ndarray | None = None  # int32 [block, 5] (level full)
    candidate_probs: np.ndarray | None = None  # float32 [block, 5] (level full)
    staleness: np.ndarray | None = None  # float32 [n, L] 1 - mean cosine against a full recompute (observe mode; section C.2)
    full_drift: np.ndarray | None = None  # float32 [L] drift of every position in a no-cache pass (observe mode; Equation 4)
    seconds: float = 0.0  # wall time of this pass
    elapsed: float = 0.0  # wall time since the decode began, at the end of this pass
    phases: dict[str, float] = field(default_factory=dict)  # seconds by part
    changes: list[ParamChange] = field(default_factory=list)
    edits: list[tuple[int, int]] = field(default_factory=list)  # (position, token) put on the canvas by hand before this pass
    extra: dict[str, Any] = field(default_factory=dict)  # what a method adds; JSON values or numpy arrays

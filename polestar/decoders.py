"""The methods: each is a block scheduler, a cache policy and a commit policy.

Contract: one row a method. A row names its parameters (the page and the command line show them by themselves) and its presets as overrides of
defaults. Adding a method is one file for its policy and one row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from polestar.cache.d2 import D2_PARAMS, D2Cache
from polestar.cache.dkv import DKV_PARAMS, DKVCache
from polestar.cache.dllm import DLLM_PARAMS, DLLMCache
from polestar.cache.dream import DreamDualCache, DreamPrefixCache
from polestar.cache.dynamic import DYNAMIC_PARAMS, DynamicCache
from polestar.cache.elastic import ELASTIC_PARAMS, ElasticCache
from polestar.cache.entropy import ENTROPY_PARAMS, EntropyCache
from polestar.cache.polestar import PolestarCache
from polestar.cache.policy import CachePolicy, DualCache, PrefixCache
from polestar.commit.adaptive import APD_PARAMS, AdaptiveThreshold
from polestar.commit.dawn import DAWN_PARAMS, Dawn
from polestar.commit.dream import DREAM_PARAMS, FIRST_PARAMS, DreamSchedule, FirstThenThreshold
from polestar.commit.klass import KLASS_PARAMS, Klass
from polestar.commit.polestar import PolestarCommit
from polestar.commit.policy import FACTOR_PARAMS, SCHEDULE_PARAMS, CommitPolicy, Schedule, Threshold, ThresholdOrFactor
from polestar.config import PARAMS, SHARED, Param
from polestar.scheduler import BlockScheduler, WholeCanvas
from polestar.schedulers.adablock import ADABLOCK_PARAMS, AdaBlock, ChosenCache
from polestar.schedulers.sliding import SlidingWindow


@dataclass(frozen=True, kw_only=True)
class Method:
    """A decoder by name. `shared` are names from `polestar.config.PARAMS`, `params` its own."""

    name: str
    title: str
    help: str
    cache: Callable[[], CachePolicy] = CachePolicy
    commit: Callable[[], CommitPolicy] = Threshold
    scheduler: Callable[[], BlockScheduler] = BlockScheduler
    shared: tuple[str, ...] = ()
    params: tuple[Param, ...] = ()
    presets: dict[str, dict[str, Any]] = field(default_factory=lambda: {"paper": {}, "release": {}})
    note: str = ""  # a sentence the page shows beside the method, e.g. that it is reconstructed

    @property
    def specs(self) -> dict[str, Param]:
        """Every parameter that this method takes, by name."""
        return {name: PARAMS[name] for name in (*SHARED, *self.shared)} | {p.name: p for p in self.params}


EXTRA_PASS = Param(
    name="extra_pass", symbol="extra pass", kind=bool, default=False, group="commit", live="block", expert=True,
    help="Spend one more pass on a block that its entry pass already filled, as Fast-dLLM's June 2025 code does.",
)
POLESTAR = tuple(name for name in PARAMS if name not in SHARED)

_ROWS = (
    Method(
        name="vanilla", title="Vanilla", commit=Schedule, shared=(), params=SCHEDULE_PARAMS,
        help="LLaDA's own decoding: a fixed number of tokens per pass, every row recomputed, no cache.",
    ),
    Method(
        name="parallel", title="Parallel", commit=Threshold, shared=("tau_s",),
        help="Every token whose confidence reaches τ_s is committed; every row recomputed, no cache.",
    ),
    Method(
        name="fast-dllm-prefix", title="Fast-dLLM prefix", cache=PrefixCache, commit=ThresholdOrFactor, shared=("tau_s",),
        params=(*FACTOR_PARAMS, EXTRA_PASS), presets={"paper": {}, "release": {"extra_pass": True, "exclude_mask": False}},
        help="Parallel decoding with the prefix cached at block entry; block and suffix are recomputed every pass.",
    ),
    Method(
        name="fast-dllm-dual", title="Fast-dLLM dual", cache=DualCache, commit=ThresholdOrFactor, shared=("tau_s",),
        params=(*FACTOR_PARAMS, EXTRA_PASS), presets={"paper": {}, "release": {"extra_pass": True, "exclude_mask": False}},
        help="Parallel decoding with prefix and suffix cached at block entry; only the block is recomputed.",
    ),
    Method(
        name="vanilla-dream", title="Vanilla (Dream)", scheduler=WholeCanvas, commit=DreamSchedule, shared=("tau_s",), params=DREAM_PARAMS,
        presets={"paper": {}, "release": {"waits": True, "exclude_mask": False}},
        help="Dream's own decoding: a scheduled number of tokens per pass anywhere in the canvas, every row recomputed, no blocks, no cache.",
    ),
    Method(
        name="fast-dllm-prefix-dream", title="Fast-dLLM prefix (Dream code)", cache=DreamPrefixCache, commit=FirstThenThreshold,
        shared=("tau_s",), params=FIRST_PARAMS, presets={"paper": {}, "release": {"waits": True, "exclude_mask": False}},
        help="Fast-dLLM's prefix cache as its Dream code has it: a block's entry commits its first position alone, whatever the confidence.",
    ),
    Method(
        name="fast-dllm-dual-dream", title="Fast-dLLM dual (Dream code)", cache=DreamDualCache, commit=FirstThenThreshold,
        shared=("tau_s",), params=FIRST_PARAMS, presets={"paper": {}, "release": {"waits": True, "exclude_mask": False}},
        help="Fast-dLLM's dual cache as its Dream code has it: a block's entry commits its first position alone, whatever the confidence.",
    ),
    Method(
        name="polestar", title="Polestar", cache=PolestarCache, commit=PolestarCommit, shared=POLESTAR,
        presets={
            "paper": {},
            "release": {
                "entry_schedule": "every-fourth", "tau_upd": 1.0, "tau_upd_total": 2.0, "count_suffix": False, "split_clusters": True,
                "last_layer_k": 1, "refresh_embeddings": False, "drift_min_confidence": 0.7, "drift_max_delta": 2.0,
                "exclude_mask": False, "residual_format": "none",
            },
        },
        help="Refreshes only drifting clusters of a local window, and commits tokens when their drift spikes.",
    ),
    Method(
        name="dynamic-dllm", title="Dynamic-dLLM", cache=DynamicCache, commit=AdaptiveThreshold, shared=("tau_s",),
        params=(*DYNAMIC_PARAMS, *APD_PARAMS),
        help="Each layer recomputes a window around the last commit and the rows whose values drifted most, within a layer budget.",
    ),
    Method(
        name="elastic-cache", title="Elastic-Cache", scheduler=SlidingWindow, cache=ElasticCache, shared=("tau_s",), params=ELASTIC_PARAMS,
        presets={"paper": {}, "release": {"block_length": 16}},
        help="A sliding window; when attention of the most attended token drifts, all later layers are recomputed. B is the window's length.",
    ),
    Method(
        name="d2cache", title="d²Cache", cache=D2Cache, shared=("tau_s",), params=D2_PARAMS,
        presets={"paper": {}, "release": {"stale_conf": True}},
        help="Recomputes the masks most certain to be decoded next and the rows that attention rollout flows through.",
    ),
    Method(
        name="entropycache", title="EntropyCache", cache=EntropyCache, shared=("tau_s",), params=ENTROPY_PARAMS,
        help="Recomputes every row only after a token of high entropy was decoded; else the block's masks and recent tokens.",
        note="Reconstructed: the paper has no published code and does not give τ_E; the default comes from a scan on the bundled model.",
    ),
    Method(
        name="adablock", title="AdaBlock-dLLM", scheduler=AdaBlock, cache=ChosenCache, shared=("tau_s",), params=ADABLOCK_PARAMS,
        help="Fast-dLLM with blocks that end at a confidently predicted newline instead of a fixed length.",
    ),
    Method(
        name="dawn", title="DAWN", commit=Dawn, shared=("tau_s",), params=DAWN_PARAMS,
        help="Reads dependencies out of attention and commits together what does not depend on each other; every row recomputed, no cache.",
    ),
    Method(
        name="klass", title="KLASS", commit=Klass, params=KLASS_PARAMS, presets={"paper": {}, "release": {"block_length": 64, "exclude_mask": False}},
        help="Commits tokens that are confident and whose distribution has stopped changing; every row recomputed, no cache.",
    ),
    Method(
        name="dllm-cache", title="dLLM-Cache", cache=DLLMCache, shared=("tau_s",), params=DLLM_PARAMS,
        help="Prompt and generation are recomputed at intervals, in between a fixed share of rows whose values turned most.",
    ),
    Method(
        name="dkv-cache", title="dKV-Cache", cache=DKVCache, shared=("tau_s",), params=DKV_PARAMS,
        help="Keys and values of a token are kept one pass after it was decoded; masks are recomputed every pass.",
    ),
)

METHODS: dict[str, Method] = {row.name: row for row in _ROWS}


def method_named(name: str) -> Method:
    """The row of `name`. Raises ValueError naming the known ones."""
    if name not in METHODS:
        raise ValueError(f"no method is called {name!r}; choose one of {', '.join(METHODS)}")
    return METHODS[name]

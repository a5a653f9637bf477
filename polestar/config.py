"""Every parameter of a decode: default, range, help, and when a change may take effect.

Contract: a `DecodeConfig` is immutable and valid: values are of their declared kind and inside their range, and k never exceeds K
(corrected, and said in `corrections`). Presets are overrides of defaults, declared by the method that has them
(`polestar.decoders`). `paper` is Table 5 of the paper; `release` reproduces a method's public code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PRESETS = ("paper", "release")


@dataclass(frozen=True, kw_only=True)
class Param:
    """One parameter. `live` says when a change made during a run takes effect: at the next "pass", the next "block", or only in a new "run"."""

    name: str
    symbol: str
    kind: type  # int, float, bool or str
    default: Any
    help: str
    group: str = "method"  # "length", "cache", "commit", "run", "method"
    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""  # what text must match in full, said in words by `wanted`
    wanted: str = ""
    live: str = "pass"
    expert: bool = False  # shown on the page only under "more"
    label: str = ""  # what people read, where the symbol alone would not do

    @property
    def called(self) -> str:
        """What people read: on the page's control, in lane heads, comparisons and labels of forks."""
        return self.label or self.symbol

    def parse(self, value: Any) -> Any:
        """`value` (a number, or text from the command line) as this parameter's kind. Raises ValueError in one sentence."""
        try:
            parsed = self._convert(value)
        except (TypeError, ValueError, OverflowError, LookupError):
            raise ValueError(f"{self.name} takes {self._wanted()}, not {value!r}; give one of those") from None
        outside = self.kind in (int, float) and (
            (isinstance(parsed, float) and math.isnan(parsed))
            or (self.minimum is not None and parsed < self.minimum)
            or (self.maximum is not None and parsed > self.maximum)
        )
        if outside or (self.choices and parsed not in self.choices) or (self.pattern and not re.fullmatch(self.pattern, parsed)):
            raise ValueError(f"{self.name} takes {self._wanted()}, not {value!r}; give one of those")
        return parsed

    def _convert(self, value: Any) -> Any:
        if self.kind is bool:
            if isinstance(value, str):
                return {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False, "no": False}[value.lower()]
            if value not in (True, False):
                raise ValueError
            return bool(value)
        if self.kind is int:
            number = float(value)
            if isinstance(value, bool) or not number.is_integer():
                raise ValueError
            return int(number)
        if self.kind is float and isinstance(value, bool):
            raise ValueError
        return self.kind(value)

    def _wanted(self) -> str:
        if self.wanted:
            return self.wanted
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind is bool:
            return "true or false"
        noun = "a whole number" if self.kind is int else "a number"
        low = "" if self.minimum is None else f" from {self.minimum:g}"
        high = "" if self.maximum is None else f" to {self.maximum:g}"
        return noun + low + high


def _params(*params: Param) -> dict[str, Param]:
    return {p.name: p for p in params}


# Parameters that every method shares, or that Polestar owns. A method's own file declares the rest.
PARAMS: dict[str, Param] = _params(
    Param(name="gen_length", symbol="L_G", label="length", kind=int, default=256, minimum=1, maximum=8192, step=1, group="length", live="run",
          help="How many tokens are generated; the canvas holds this many [MASK] after the prompt."),
    Param(name="block_length", symbol="B", label="block length", kind=int, default=32, minimum=1, maximum=8192, step=1, group="length", live="block",
          help="How many positions are decoded together before moving right; a last block may be shorter."),
    Param(name="K", symbol="K", kind=int, default=8, minimum=1, maximum=64, step=1, group="cache", live="block",
          help="How many centroids summarise the hidden states of the local window."),
    Param(name="k", symbol="k", kind=int, default=4, minimum=1, maximum=64, step=1, group="cache", live="pass",
          help="How many of the most drifting clusters a refresh recomputes."),
    Param(name="tau_upd", symbol="τ_upd", kind=float, default=3.0, minimum=0.0, step=1, group="cache", live="pass",
          help="Refresh when the last pass, or all passes since the last refresh, committed more than this many tokens; inf never refreshes."),
    Param(name="window_prefix", symbol="Ω prefix", kind=int, default=2, minimum=0, maximum=64, step=1, group="cache", live="block",
          help="How many blocks before the current one belong to the local window."),
    Param(name="window_suffix", symbol="Ω suffix", kind=int, default=1, minimum=0, maximum=64, step=1, group="cache", live="block",
          help="How many blocks after the current one belong to the local window."),
    Param(name="residual_format", symbol="residuals", kind=str, default="nvfp4", group="cache", live="block",
          choices=("nvfp4", "fp32", "fp16", "fp8", "int8", "mxfp4", "int2", "nvfp4-direct", "none"),
          help="How hidden states of the window are stored: as residuals to their centroid in this format; none keeps them as they are."),
    Param(name="tau_s", symbol="τ_s", kind=float, default=0.9, minimum=0.0, maximum=2.0, step=0.01, group="commit", live="pass",
          help="A token whose confidence reaches this is committed; above 1 one token is committed per pass."),
    Param(name="tau_suf", symbol="τ_suf", kind=float, default=0.9, minimum=0.0, maximum=2.0, step=0.01, group="commit", live="pass",
          help="A refreshed position after the block is pre-committed when its confidence reaches this."),
    Param(name="alpha", symbol="α", kind=float, default=10.0, minimum=0.0, step=0.5, group="commit", live="pass",
          help="Steepness of the drift gate: a token is committed when its drift delta reaches α (τ_s - c)²."),
    Param(name="h", symbol="h", kind=int, default=5, minimum=0, maximum=1024, step=1, group="commit", live="pass",
          help="How many past passes make the mean that drift is compared with; 0 compares with nothing."),
    Param(name="cache_refresh", symbol="Polestar-Cache", label="cache", kind=bool, default=True, group="cache", live="block",
          help="Refresh drifting clusters and recompute only the window at every other block entry; off is Fast-dLLM's dual cache."),
    Param(name="drift_commit", symbol="current-block commit", label="drift", kind=bool, default=True, group="commit", live="pass",
          help="Commit tokens of the current block on drift events."),
    Param(name="suffix_commit", symbol="suffix commit", label="suffix", kind=bool, default=True, group="commit", live="pass",
          help="Pre-commit confident positions after the block out of a refresh's update packet."),
    Param(name="temperature", symbol="T", kind=float, default=0.0, minimum=0.0, maximum=10.0, step=0.05, group="run", live="pass",
          help="Gumbel noise on the choice of tokens; 0 always takes the most likely. Confidence stays the softmax probability."),
    Param(name="seed", symbol="seed", kind=int, default=0, minimum=0, maximum=2**31 - 1, step=1, group="run", live="run",
          help="Seeds clustering and sampling; the same seed gives the same decode."),
    Param(name="entry_schedule", symbol="entries", kind=str, default="alternate", choices=("alternate", "every-fourth", "full"), group="cache",
          live="block", expert=True, help="Which block entries recompute only the window: every odd block, every fourth block, or none."),
    Param(name="tau_upd_total", symbol="τ_upd (since refresh)", kind=float, default=-1.0, minimum=-1.0, group="cache", live="pass", expert=True,
          help="A separate trigger for the tokens since the last refresh; -1 uses τ_upd for both."),
    Param(name="count_suffix", symbol="count suffix", kind=bool, default=True, group="cache", live="pass", expert=True,
          help="Let suffix pre-commits count towards τ_upd."),
    Param(name="split_clusters", symbol="split clusters", kind=bool, default=False, group="cache", live="block", expert=True,
          help="Cluster prefix and suffix apart, in the order and with the random draws of the public release."),
    Param(name="last_layer_k", symbol="k (last layer)", kind=int, default=0, minimum=0, maximum=64, group="cache", live="pass", expert=True,
          help="Clusters refreshed in the last layer; 0 means k."),
    Param(name="refresh_embeddings", symbol="refresh embeddings", kind=bool, default=True, group="cache", live="pass", expert=True,
          help="Feed the new embedding of window positions whose token changed since the block entry."),
    Param(name="offload", symbol="offload", kind=str, default="auto", choices=("auto", "on", "off"), group="cache", live="block", expert=True,
          help="Keep the window's packed hidden states in host memory and fetch what a refresh needs; auto: when the model is on a GPU."),
    Param(name="drift_min_confidence", symbol="c floor", kind=float, default=0.0, minimum=0.0, maximum=1.0, group="commit", live="pass", expert=True,
          help="A drift event counts only above this confidence; 0 is no floor."),
    Param(name="drift_max_delta", symbol="Δ ceiling", kind=float, default=math.inf, minimum=0.0, group="commit", live="pass", expert=True,
          help="A drift event counts only below this drift delta; inf is no ceiling."),
    Param(name="exclude_mask", symbol="exclude [MASK]", kind=bool, default=True, group="commit", live="pass", expert=True,
          help="Never let [MASK] be the chosen token (Equation 1)."),
)



def parameter_names(method: str) -> dict[str, str]:
    """What people read for each parameter of a method (`Param.called`), by name; empty for a method that this version does not know."""
    from polestar.decoders import METHODS  # the table of methods imports this module

    return {name: param.called for name, param in METHODS[method].specs.items()} if method in METHODS else {}


SHARED = ("gen_length", "block_length", "temperature", "seed", "exclude_mask")


class DecodeConfig(Mapping):
    """A method with all its parameters. Read them as attributes (`config.tau_s`) or items (`config["tau_s"]`)."""

    def __init__(self, method: str, preset: str, values: dict[str, Any], corrections: tuple[str, ...]):
        self.__dict__.update(method=method, preset=preset, _values=values, corrections=corrections)

    @classmethod
    def make(cls, *, method: str = "polestar", preset: str = "paper", **values: Any) -> DecodeConfig:
        """A valid config from the preset's values and `values` (text is parsed). Raises ValueError in one sentence."""
        from polestar.decoders import method_named  # the table of methods imports this module

        row = method_named(method)
        if preset not in row.presets:
            raise ValueError(f"preset {preset!r} is not one of {', '.join(row.presets)} of {method}; choose one of those")
        specs = row.specs
        settled = {name: p.default for name, p in specs.items()} | row.presets[preset]
        for name, value in values.items():
            if name not in specs:
                raise ValueError(f"{method} has no parameter {name!r}; it takes {', '.join(sorted(specs))}")
            settled[name] = specs[name].parse(value)
        corrections = []
        if "k" in settled and settled["k"] > settled["K"]:
            corrections.append(f"k = {settled['k']} is more than K = {settled['K']} clusters; k is {settled['K']} instead.")
            settled["k"] = settled["K"]
        return cls(method, preset, settled, tuple(corrections))

    def replace(self, **values: Any) -> DecodeConfig:
        """The same config with `values` changed, validated again."""
        return DecodeConfig.make(method=self.method, preset=self.preset, **{**self._values, **values})

    def as_dict(self) -> dict[str, Any]:
        """Every parameter by name, for JSON (infinities as text "inf")."""
        return {k: ("inf" if isinstance(v, float) and math.isinf(v) else v) for k, v in self._values.items()}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"{self.__dict__.get('method')} has no parameter {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a DecodeConfig does not change; use replace({name}=...)")

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self):
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"DecodeConfig(method={self.method!r}, preset={self.preset!r}, {', '.join(f'{k}={v!r}' for k, v in self._values.items())})"

"""What was run: everything needed to run a decode again and to say where its numbers came from.

Contract: a `Header` is checked when it is made; one that exists is sound. It knows no model and no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from .step import LEVELS

MAX_LENGTH = 1 << 20  # positions; far above any dLLM's maximum, low enough that a damaged file cannot ask for all memory


class TraceError(ValueError):
    """A trace, or a file that should hold one, is not what it must be. The message is one sentence for the person."""


def _int(name: str, value: Any, low: int, high: int = 2**31 - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise TraceError(f"header field {name} is {short(value)}; it must be a whole number from {low} to {high}")
    return int(value)


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True, kw_only=True)
class Header:
    """What was run. Positions [0, L_p) are the prompt, [L_p, L) the generation; L = L_p + L_G.

    Sequences become tuples. `created` is an ISO 8601 time and takes no part in equality, digests or the deterministic part of a
    file. `blocks` holds [start, end) of every block as planned; a scheduler that sets blocks as it goes may leave it empty, and
    each step says its own block. Raises TraceError when a field has the wrong type or lies outside its range.
    """

    method: str
    prompt_ids: Sequence[int]
    gen_length: int
    block_length: int
    mask_id: int
    version: int = 1
    preset: str = "paper"
    title: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    revision: str | None = None
    prompt_text: str | None = None
    blocks: Sequence[Sequence[int]] = ()
    n_layers: int = 1
    n_heads: int = 1
    eos_ids: Sequence[int] = ()
    shift: int = 0  # 1 where logits at row i predict position i + 1 (Dream), else 0
    seed: int | None = 0
    level: str = "steps"
    device: str = "cpu"
    dtype: str = "float32"
    versions: dict[str, str] = field(default_factory=dict)
    parent: dict[str, Any] | None = None  # a fork: {"digest", "pass", "edits", "changes"}
    extra: dict[str, Any] = field(default_factory=dict)  # JSON values a method or an analysis adds
    created: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)  # the dataclass is frozen

        for name in ("method", "preset", "title", "model", "level", "device", "dtype"):
            if not isinstance(getattr(self, name), str):
                raise TraceError(f"header field {name} is {short(getattr(self, name))}; it must be text")
        for name in ("revision", "prompt_text", "created"):
            if not isinstance(getattr(self, name), (str, type(None))):
                raise TraceError(f"header field {name} is {short(getattr(self, name))}; it must be text or nothing")
        for name in ("config", "versions", "extra"):
            if not isinstance(getattr(self, name), dict):
                raise TraceError(f"header field {name} is {short(getattr(self, name))}; it must be a table of names and values")
        if not isinstance(self.parent, (dict, type(None))):
            raise TraceError(f"header field parent is {short(self.parent)}; it must be a table or nothing")
        if self.level not in LEVELS:
            raise TraceError(f"header field level is {short(self.level)}; it must be one of {', '.join(LEVELS)}")
        put("prompt_ids", self._ids("prompt_ids", MAX_LENGTH))
        put("eos_ids", self._ids("eos_ids", 1024))
        put("mask_id", _int("mask_id", self.mask_id, 0))
        put("version", _int("version", self.version, 1))
        put("gen_length", _int("gen_length", self.gen_length, 1, MAX_LENGTH))
        put("block_length", _int("block_length", self.block_length, 1, MAX_LENGTH))
        put("n_layers", _int("n_layers", self.n_layers, 1, 4096))
        put("n_heads", _int("n_heads", self.n_heads, 1, 65536))
        put(
            "shift",
            _int(
                "shift",
                int(self.shift) if isinstance(self.shift, bool) else self.shift,
                0,
                1,
            ),
        )
        if self.seed is not None:
            put("seed", _int("seed", self.seed, -(2**63), 2**64 - 1))
        put("versions", {str(name): str(value) for name, value in self.versions.items()})
        put("blocks", self._spans())

    def _ids(self, name: str, most: int) -> tuple[int, ...]:
        value = getattr(self, name)
        value = value.tolist() if isinstance(value, np.ndarray) else value
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) > most:
            raise TraceError(f"header field {name} is {short(value)}; it must be a list of at most {most} token ids")
        return tuple(_int(name, v, 0) for v in value)

    def _spans(self) -> tuple[tuple[int, int], ...]:
        if isinstance(self.blocks, str) or not isinstance(self.blocks, Sequence):
            raise TraceError(f"header field blocks is {short(self.blocks)}; it must be a list of [start, end] pairs")
        spans, at = [], self.prompt_length
        for pair in self.blocks:
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise TraceError(f"header field blocks holds {short(pair)}; it must hold [start, end] pairs")
            s, e = (
                _int("blocks", pair[0], at, self.length),
                _int("blocks", pair[1], 0, self.length),
            )
            if e <= s:
                raise TraceError(f"header field blocks holds [{s}, {e}]; a block must end after its start")
            spans.append((s, e))
            at = e
        return tuple(spans)

    @property
    def prompt_length(self) -> int:
        """L_p, positions."""
        return len(self.prompt_ids)

    @property
    def length(self) -> int:
        """L = L_p + L_G, positions."""
        return len(self.prompt_ids) + self.gen_length

    def to_dict(self, *, created: bool = True) -> dict[str, Any]:
        """Plain lists, dicts and numbers; without `created` on request."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out["prompt_ids"], out["eos_ids"] = list(self.prompt_ids), list(self.eos_ids)
        out["blocks"] = [list(b) for b in self.blocks]
        if not created:
            del out["created"]
        return out

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Header:
        """The inverse of `to_dict`. Raises TraceError on unknown, missing or wrong fields."""
        if not isinstance(data, dict):
            raise TraceError(f"the header is {short(data)}; it must be a table of names and values")
        unknown = sorted(set(map(str, data)) - {f.name for f in fields(cls)})
        if unknown:
            raise TraceError(f"the header has an unknown field {short(unknown[0])}; it may come from a newer version")
        missing = [n for n in ("method", "prompt_ids", "gen_length", "block_length", "mask_id") if n not in data]
        if missing:
            raise TraceError(f"the header lacks the field {missing[0]}; this is no complete trace")
        return cls(**data)

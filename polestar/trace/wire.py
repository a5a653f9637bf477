"""The log as the page reads it: stream version 1 (docs/architecture.md, "Stream from server to page").

Contract: pure functions from `Header`, `Step` and `Trace` to JSON values; they keep no state and change nothing. Arrays are base64
of little-endian data. What does not exist is null; NaN and infinities outside typed arrays become null and "inf" / "-inf", since
JSON has neither. The server and the exported HTML file send the same messages, made here.
"""

from __future__ import annotations

import binascii
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .header import Header, TraceError
from .step import Step
from .trace import Trace, step_ids

STREAM_VERSION = 1
STEPS_PER_MESSAGE = 16
UNSENT = frozenset(("value_states", "stale_before", "progress", "full_conf"))  # large extras of observe mode; figures are made from them on the server


LIMITS = {name: (np.iinfo(name).min, np.iinfo(name).max) for name in ("i4", "u2", "u1")}


def b64(array: np.ndarray | None, dtype: str) -> str | None:
    """Base64 of the array's values as little-endian `dtype` (f4, i4, u2, u1); None stays None. Raises TraceError on overflow."""
    if array is None:
        return None
    array = np.asarray(array)
    kind = np.dtype("<" + dtype)
    if kind.kind in "iu" and array.size and array.dtype.kind in "iu":
        low, high, limits = array.min(), array.max(), LIMITS[dtype]
        if low < limits[0] or high > limits[1]:
            raise TraceError(f"values from {low} to {high} do not fit the stream's {kind.name}; this trace is too large to show")
    return binascii.b2a_base64(np.ascontiguousarray(array, dtype=kind).tobytes(), newline=False).decode("ascii")


def plain(value: Any) -> Any:
    """`value` as strict JSON: numpy becomes lists and numbers, tuples lists, NaN null, infinities "inf" and "-inf"."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):  # half a surrogate pair is text to Python, but cannot be sent as UTF-8
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    return str(value)


def dump(value: Any) -> str:
    """One line of strict JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def encode_header(source: Header | Trace, *, live: bool = False) -> dict[str, Any]:
    """HEADER of the stream. `live` is True while the decode runs, False for a replay."""
    from polestar.config import parameter_names

    h = source.header if isinstance(source, Trace) else source
    out = {
        "method": h.method, "title": h.title or h.method, "preset": h.preset, "config": h.config, "model": h.model,
        "revision": h.revision, "device": h.device, "dtype": h.dtype, "prompt_ids": h.prompt_ids, "prompt_text": h.prompt_text,
        "gen_length": h.gen_length, "block_length": h.block_length, "n_layers": h.n_layers, "n_heads": h.n_heads,
        "mask_id": h.mask_id, "eos_ids": h.eos_ids, "prompt_length": h.prompt_length, "length": h.length, "blocks": h.blocks,
        "level": h.level, "live": bool(live), "seed": h.seed, "shift": h.shift, "versions": h.versions, "parent": h.parent,
        "created": h.created, "changed": changed(h), "names": parameter_names(h.method),
    }  # fmt: skip
    return plain(out)


def changed(header: Header) -> dict[str, Any]:
    """Parameters of the config that are not those of the method's preset, as this version knows it; none for a method or preset it does not know."""
    from polestar.config import DecodeConfig

    try:
        preset = DecodeConfig.make(method=header.method, preset=header.preset).as_dict()
    except ValueError:
        return {}
    return {name: value for name, value in header.config.items() if name in preset and value != preset[name]}


def encode_step(step: Step, header: Header) -> dict[str, Any]:
    """STEP of the stream. Beyond the table in the docs: "ed" [[position, token], ...], edits made by hand before the pass, only
    where there are any."""
    c = step.clusters
    numbers = {
        "i": step.index, "b": step.block, "s": step.block_start, "e": step.block_end, "k": step.kind,
        "rf": int(step.refresh), "why": step.refresh_reason, "N": step.count_last, "M": step.count_since,
        "rows": step.rows, "t": step.elapsed, "dt": step.seconds,
        "c": [[m.position, m.token, m.confidence, m.reason, m.delta, m.gate] for m in step.commits],
        "ph": step.phases, "par": [[p.name, p.old, p.new] for p in step.changes],
        "x": {name: value for name, value in step.extra.items() if name not in UNSENT},
    }  # fmt: skip
    if step.edits:
        numbers["ed"] = step.edits
    out = plain(numbers) | {
        "prows": b64(step.packet_rows, "u2"), "conf": b64(step.conf, "f4"), "am": b64(step.argmax, "i4"),
        "drift": b64(step.drift, "f4"), "delta": b64(step.delta, "f4"), "gate": b64(step.gate, "f4"),
        "win": b64(c and c.window, "u2"), "lab": b64(c and c.labels, "u1"), "cs": b64(c and c.scores, "f4"),
        "sel": b64(c and c.selected, "u1"), "pts": b64(_plane(c and c.points), "f4"), "cand": None,
        "stale": b64(step.staleness, "f4"), "fulldrift": b64(step.full_drift, "f4"),
    }  # fmt: skip
    if step.candidate_ids is not None and step.candidate_probs is not None:
        out["cand"] = {
            "tok": b64(step.candidate_ids, "i4"),
            "p": b64(step.candidate_probs, "f4"),
        }
    return out


def _plane(points: np.ndarray | None) -> np.ndarray | None:
    """The first two of P coordinates, float32 [n, W + K, 2]; a missing second one is 0."""
    if points is None:
        return None
    xy = np.zeros((*points.shape[:2], 2), np.float32)
    xy[..., : min(2, points.shape[2])] = points[..., :2]
    return xy


def encode_metrics(source: Trace | Mapping[str, Any], tokenizer: Any = None) -> dict[str, Any]:
    """METRICS of the stream, from a trace or from what its `metrics()` returned."""
    return plain(source.metrics(tokenizer) if isinstance(source, Trace) else source)


def token_entry(codec: Any, token: int) -> dict[str, Any]:
    """TOKEN of the stream: {"t": display text, "s": 1 if special, "b": hex bytes where the token is not whole UTF-8}.

    `codec` has `token_text(id)`, and may have `token_bytes(id)` and `is_special(id)` (or `special_ids`). Without a codec, or for
    an id it does not know (a model's padded vocabulary), the text is the id in brackets.
    """
    token = int(token)
    if codec is None:
        return {"t": f"[{token}]"}
    try:
        entry: dict[str, Any] = {"t": str(codec.token_text(token))}
        raw = codec.token_bytes(token) if hasattr(codec, "token_bytes") else b""
        special = bool(codec.is_special(token)) if hasattr(codec, "is_special") else token in getattr(codec, "special_ids", ())
    except (KeyError, IndexError, ValueError, OverflowError):
        return {"t": f"[{token}]"}
    if special:
        entry["s"] = 1
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        entry["b"] = raw.hex()
    return entry


class VocabSender:
    """Gives each token once: `need(ids)` returns the vocab event for ids not sent before, or None."""

    def __init__(self, codec: Any = None, known: Mapping[int, dict[str, Any]] | None = None) -> None:
        self.codec, self.known, self.sent = codec, known or {}, set()

    def need(self, ids: Any) -> dict[str, Any] | None:
        new = sorted({int(i) for i in ids} - self.sent)
        if not new:
            return None
        self.sent.update(new)
        entries = {str(i): self.known[i] if i in self.known else token_entry(self.codec, i) for i in new}
        return {"type": "vocab", "map": entries}

    def for_header(self, h: Header) -> dict[str, Any] | None:
        return self.need({*h.prompt_ids, *h.eos_ids, h.mask_id})

    def for_step(self, step: Step) -> dict[str, Any] | None:
        return self.need(step_ids(step))


def message(run: str, seq: int, events: list[dict[str, Any]]) -> str:
    """One message of the stream as a JSON string."""
    return dump({"v": STREAM_VERSION, "run": run, "seq": seq, "events": events})


def messages(
    traces: Trace | Mapping[str, Trace] | list[Trace],
    codec: Any = None,
    *,
    run: str = "replay",
    per_message: int = STEPS_PER_MESSAGE,
    transform: Callable[[Step], Step] | None = None,
    said: str = "",
) -> list[str]:
    """A whole replay as messages: reset, headers and vocab, then steps (`per_message` to a message), then an end for each lane.

    `traces` is one trace (lane A), a list (lanes A, B, ...) or a mapping from lane to trace. Texts come from each trace's own
    vocabulary first, then from `codec`. `transform` may replace a step by a lighter one; `said` goes
    with the status.
    """
    if isinstance(traces, Trace):
        traces = {"A": traces}
    elif not isinstance(traces, Mapping):
        traces = dict(zip("ABCDEFGH", traces, strict=False))
    known = {i: entry for trace in traces.values() for i, entry in trace.vocab.items()}
    vocab = VocabSender(codec, known)
    batches = [[{"type": "reset"}]]
    for lane, trace in traces.items():
        batches[0].append({"type": "header", "lane": lane, "header": encode_header(trace)})
        batches[0].append(vocab.for_header(trace.header))
        if trace.notes:
            batches[0].append({"type": "notes", "lane": lane, "notes": plain(trace.notes)})
    batches[0].append({"type": "status", "state": "replay", "text": said, "place": None})
    for lane, trace in traces.items():
        for at in range(0, len(trace), per_message):
            steps = trace[at : at + per_message]
            event = {
                "type": "steps",
                "lane": lane,
                "steps": [encode_step(transform(s) if transform else s, trace.header) for s in steps],
            }
            batches.append([vocab.need(set().union(*map(step_ids, steps))), event])
        status = trace.status if trace.status in ("done", "stopped", "error") else "done" if trace.complete else "stopped"
        batches.append(
            [
                {
                    "type": "end",
                    "lane": lane,
                    "status": status,
                    "metrics": encode_metrics(trace, codec),
                }
            ]
        )
    return list(_numbered(run, batches))


def _numbered(run: str, batches: list[list[dict[str, Any] | None]]) -> Iterator[str]:
    for seq, events in enumerate(batches):
        yield message(run, seq, [e for e in events if e is not None])

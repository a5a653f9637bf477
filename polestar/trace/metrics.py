"""What a decode cost and gave (paper, section D.1), counted from token ids and the log, never from text.

NFE = forward passes. TPF = non-[EOS] generated tokens / NFE. TPS = the same count / decode seconds. `tpf_all` and `tps_all` count
every committed position, [EOS] included. Prompt tokens never count, nor do positions that still hold [MASK] (a stopped run).
A figure whose divisor is 0 is None, never infinite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def rates(
    ids: Iterable[int],
    nfe: int,
    seconds: float,
    eos_ids: Sequence[int],
    mask_id: int | None = None,
) -> dict[str, Any]:
    """TPF and TPS of generated ids [L_G] after `nfe` passes and `seconds` of decoding.

    Returns nfe, seconds, tokens (committed positions), non_eos, tpf, tps, tpf_all, tps_all.
    """
    ids = np.asarray(list(ids) if not isinstance(ids, np.ndarray) else ids)
    committed = ids[ids != mask_id] if mask_id is not None else ids
    tokens, non_eos = len(committed), int((~np.isin(committed, list(eos_ids))).sum())

    def per(count: int, by: float) -> float | None:
        return count / by if by > 0 else None

    return {
        "nfe": int(nfe), "seconds": float(seconds), "tokens": tokens, "non_eos": non_eos,
        "tpf": per(non_eos, nfe), "tps": per(non_eos, seconds), "tpf_all": per(tokens, nfe), "tps_all": per(tokens, seconds),
    }  # fmt: skip


def metrics(trace: Any, tokenizer: Any = None) -> dict[str, Any]:
    """All figures of a trace.

    Beyond `rates`: `rows` (positions fed through the main passes), `packet_rows` (update-packet rows, summed over layers and
    divided by the number of layers, so that one unit is one position through the whole model; None where the level `off` kept none
    of a refresh), `rows_per_token` ((rows +
    packet_rows) per committed position), `reasons` (commits by reason), `refreshes` (passes in which the cache policy refreshed),
    `kinds` (passes by kind), `blocks` (a table, see `per_block`), `text` (the answer up to its first [EOS]; None without a
    `tokenizer` that has `decode(ids)` and without the trace's own vocabulary) and `blank` (is there no answer at all?).
    """
    h, ids = trace.header, trace.tokens
    out = rates(ids, len(trace), trace.seconds, h.eos_ids, h.mask_id)
    rows, packets = sum(s.rows for s in trace), packet_rows(trace, h)
    out["rows"], out["packet_rows"] = rows, packets
    out["rows_per_token"] = (rows + packets) / out["tokens"] if out["tokens"] and packets is not None else None
    out["reasons"] = dict(sorted(Counter(c.reason for s in trace for c in s.commits).items()))
    out["refreshes"] = sum(1 for s in trace if s.refresh)
    out["kinds"] = dict(sorted(Counter(s.kind for s in trace).items()))
    out["blocks"] = per_block(trace)
    answer = answer_ids(ids, h.eos_ids, h.mask_id)
    out["text"] = _text(trace, answer, tokenizer)
    out["blank"] = len(trace) > 0 and (len(answer) == 0 or (out["text"] is not None and not out["text"].strip()))
    return out


def per_block(trace: Any) -> list[dict[str, Any]]:
    """One row for each block that was decoded: block, start, end, first_pass, last_pass, nfe, tokens and non_eos (positions of the
    block that hold a token now), committed (commits its passes made, suffix pre-commits included), rows, packet_rows, refreshes,
    seconds and reasons. A block that suffix pre-commits finished alone has no row."""
    h, canvas = trace.header, trace.canvas_at(len(trace) - 1)
    table: dict[int, dict[str, Any]] = {}
    for s in trace:
        row = table.get(s.block)
        if row is None:
            ids = canvas[s.block_start : s.block_end]
            done = ids[ids != h.mask_id]
            row = table[s.block] = {
                "block": s.block, "start": s.block_start, "end": s.block_end, "first_pass": s.index, "last_pass": s.index,
                "nfe": 0, "tokens": len(done), "non_eos": int((~np.isin(done, h.eos_ids)).sum()), "committed": 0,
                "rows": 0, "packet_rows": None, "refreshes": 0, "seconds": 0.0, "reasons": {},
            }  # fmt: skip
        row["last_pass"] = s.index
        row["nfe"] += 1
        row["committed"] += len(s.commits)
        row["rows"] += s.rows
        row["refreshes"] += int(s.refresh)
        row["seconds"] += s.seconds
        for c in s.commits:
            row["reasons"][c.reason] = row["reasons"].get(c.reason, 0) + 1
    for block, row in table.items():
        row["packet_rows"] = packet_rows((s for s in trace if s.block == block), h)
    return list(table.values())


def answer_ids(ids: np.ndarray, eos_ids: Sequence[int], mask_id: int) -> np.ndarray:
    """The generated ids before the first [EOS], without [MASK]."""
    stop = np.flatnonzero(np.isin(ids, list(eos_ids)))
    head = ids[: stop[0]] if len(stop) else ids
    return head[head != mask_id]


def packet_rows(steps: Iterable[Any], header: Any) -> float | None:
    """Update-packet rows of some steps, in positions through the whole model."""
    steps = list(steps)
    if header.level == "off" and any(s.refresh and s.packet_rows is None for s in steps):
        return None
    return sum(float(np.sum(s.packet_rows, dtype=np.int64)) for s in steps if s.packet_rows is not None) / header.n_layers


def _text(trace: Any, ids: np.ndarray, tokenizer: Any) -> str | None:
    if tokenizer is not None:
        return tokenizer.decode([int(i) for i in ids])
    if not trace.vocab or any(int(i) not in trace.vocab for i in ids):
        return None
    raw = b""
    for i in ids:
        entry = trace.vocab[int(i)]
        raw += bytes.fromhex(entry["b"]) if "b" in entry else entry["t"].encode("utf-8", "replace")
    return raw.decode("utf-8", "replace")

"""Run on from any pass of a recording, with other parameters, another method, or an edited canvas.

Contract: `fork` answers a `Session` that stands after pass `at_pass` and has not run on yet; its trace holds the passes up to there. With the same method
the exact state is made again by decoding the recording a second time (same seed, same changes and edits before the same passes), and every pass is
held against the record; one that differs is an error. Another method or preset needs no state: it begins on the canvas as it stood, with the
entry of the first block that holds a [MASK], all rows fed. The trace that is forked is never changed.

The new header's `parent`: {digest, pass, edits [[position, token]], changes {name: value}, and where method or preset changed: switched true, method,
preset (those of the passes before)}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from polestar.breakpoints import pieces_of
from polestar.config import DecodeConfig
from polestar.decoders import method_named
from polestar.driver import Decoder, Planned, decoder_for
from polestar.session import Session
from polestar.text import token_named
from polestar.trace.file import digest
from polestar.trace.step import Step
from polestar.trace.trace import Trace

ALWAYS_KEPT = ("gen_length", "block_length", "temperature", "seed")


class ForkError(ValueError):
    """A fork is not possible, or the recording could not be reproduced. The message is one sentence."""


def fork(
    loaded: Any,
    trace: Trace,
    at_pass: int,
    *,
    changes: Mapping[str, Any] | None = None,
    method: str | None = None,
    preset: str | None = None,
    edits: Mapping[int, int | str | None] | None = None,
    codec: Any = None,
    level: str | None = None,
    observe: bool | None = None,
    later: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    pace: float | None = None,
    paused: bool = False,
) -> Session:
    """A session that stands after pass `at_pass` of `trace` (-1: before the first) and runs on differently.

    `loaded`: the model of the recording. `changes`: parameters, also `seed`; those that change by block take effect at the next block entry.
    `method`, `preset`: another one begins on the canvas. `edits`: position -> token id, or text that is one token (needs a codec), or None for
    [MASK]. `level`, `observe`: as recorded unless given. `later`: repeat the changes and edits that the recording has *after* `at_pass` too; by
    default only when nothing else is asked, so that an unchanged fork reproduces the recording. `progress(done, total)` is told of each
    pass made again; what it raises ends the fork. Raises ForkError or ValueError, in one sentence, before the session exists.
    """
    header = trace.header
    if not -1 <= at_pass < len(trace):
        raise ForkError(f"pass {at_pass} is not in this trace; it holds passes 0 to {len(trace) - 1} (-1 is before the first)")
    _check_model(loaded, trace)
    changes, codec = dict(changes or {}), codec or getattr(loaded, "codec", None)
    edits = {int(p): _token(t, codec) for p, t in (edits or {}).items()}
    switched = (method or header.method, preset or header.preset) != (header.method, header.preset)
    level = level or header.level
    observe = bool(header.extra.get("observe")) and level == "full" if observe is None else observe
    if later is None:
        later = not (changes or edits or switched)
    # A run that still grows is named by the passes it has now.
    known = digest(trace.prefix(len(trace)) if trace.status == "running" else trace)
    parent = {"digest": known, "pass": at_pass, "edits": [[p, t] for p, t in sorted(edits.items())], "changes": changes}
    if switched:
        parent |= {"switched": True, "method": header.method, "preset": header.preset}
        config = _switched_config(trace, at_pass, method or header.method, preset, changes)
        decoder = decoder_for(loaded, header.prompt_ids, config, level=level, prompt_text=header.prompt_text, observe=observe)
        past = trace[: at_pass + 1]
        decoder.start_from(trace.canvas_at(at_pass).tolist(), at_pass + 1, past[-1].elapsed if past else 0.0)
    else:
        decoder, past = _restored(loaded, trace, at_pass, codec, level, observe, progress, later)
    try:
        if not switched:
            _change(decoder, changes)
        _edit(decoder, edits)
    except Exception:
        decoder.release()
        raise
    decoder.header = replace(decoder.header, parent=parent)
    session = Session(loaded, header.prompt_ids, decoder.run.config, decoder=decoder, past=past, pace=pace, paused=paused)
    session.trace.vocab = dict(trace.vocab)
    return session


def _check_model(loaded: Any, trace: Trace) -> None:
    header, name = trace.header, getattr(loaded, "name", "")
    cfg = getattr(loaded, "model", loaded).cfg
    if header.model and name and name != header.model:
        raise ForkError(f"the trace was recorded with {header.model}, but the model at hand is {name}; load {header.model}")
    for word, recorded, here in (
        ("layers", header.n_layers, cfg.n_layers), ("heads", header.n_heads, cfg.n_heads), ("a [MASK] id", header.mask_id, cfg.mask_id),
    ):  # fmt: skip
        if recorded != here:
            raise ForkError(f"the trace was recorded on a model of {recorded} {word}, the one at hand has {here}; load the model of the recording")


def _token(token: int | str | None, codec: Any) -> int | None:
    """A token id; text must be exactly one token."""
    if not isinstance(token, str):
        return token
    if codec is None:
        raise ForkError(f"the edit {token!r} is text, but there is no tokenizer at hand; give a token id")
    ids = codec.encode(token)
    if len(ids) != 1:
        raise ForkError(f"the edit {token!r} is {len(ids)} tokens, but a position holds one; give text that is one token, or edit more positions")
    return int(ids[0])


def _recorded_config(trace: Trace) -> DecodeConfig:
    h = trace.header
    return DecodeConfig.make(method=h.method, preset=h.preset, **h.config)


def _switched_config(trace: Trace, at_pass: int, method: str, preset: str | None, changes: dict[str, Any]) -> DecodeConfig:
    """The new method's config: its preset, what a person had set of the parameters that both have, then `changes`."""
    row, h = method_named(method), trace.header
    preset = preset or (h.preset if h.preset in row.presets else "paper")
    if "gen_length" in changes and changes["gen_length"] != h.gen_length:
        raise ForkError(f"the recording has {h.gen_length} generated positions and a fork keeps them; drop gen_length or start a new run")
    try:
        values = {name: h.config[name] for name in ALWAYS_KEPT if name in h.config} | _set_by_hand(trace, at_pass)
    except ValueError as problem:
        raise ForkError(f"the recorded parameters cannot be read ({problem})") from problem
    kept = {name: value for name, value in values.items() if name in row.specs}
    return DecodeConfig.make(method=method, preset=preset, **(kept | changes))


def _set_by_hand(trace: Trace, at_pass: int) -> dict[str, Any]:
    """Parameters as they stood after `at_pass`, where they are not what the recording's preset says."""
    h = trace.header
    now = _recorded_config(trace)
    for step in trace[: at_pass + 1]:
        now = now.replace(**{c.name: c.new for c in step.changes if c.name in now})
    usual = DecodeConfig.make(method=h.method, preset=h.preset)
    return {name: now[name] for name in now if now[name] != usual[name]}


def _restored(
    loaded: Any, trace: Trace, at_pass: int, codec: Any, level: str, observe: bool, progress: Callable[[int, int], None] | None, later: bool
) -> tuple[Decoder, list[Step]]:
    """A decoder in the state after `at_pass`, and the passes up to there, made again and checked."""
    header = trace.header
    parent = header.parent or {}
    first = parent["pass"] + 1 if parent.get("switched") else 0
    if at_pass + 1 < first:
        raise ForkError(
            f"passes 0 to {first - 1} of this trace were decoded by {parent.get('method')}, so its state at pass {at_pass} is not {header.method}'s; "
            "fork the trace it came from, or name a method"
        )
    try:
        config = _recorded_config(trace)
    except ValueError as problem:
        raise ForkError(f"the recorded parameters cannot be used here ({problem})") from problem
    decoder = decoder_for(loaded, header.prompt_ids, config, level=level, prompt_text=header.prompt_text, observe=observe)
    past = trace[:first]
    if first:
        decoder.start_from(trace.canvas_at(first - 1).tolist(), first, past[-1].elapsed)
    for step in trace[first : None if later else at_pass + 1]:
        if step.changes or step.edits:
            decoder.planned[step.index] = Planned(list(step.changes), list(step.edits))
    bytes_of = pieces_of(codec)
    try:
        for recorded in trace[first : at_pass + 1]:
            again = decoder.step()
            if difference := _difference(recorded, again, lambda token: token_named(token, lambda known: bytes_of(known, trace))):
                raise ForkError(
                    f"pass {recorded.index} made again {difference}; the recording ({header.model or 'unnamed model'}, {header.dtype} on "
                    f"{header.device}) cannot be reproduced by the model at hand ({decoder.header.model or 'unnamed model'}, "
                    f"{decoder.header.dtype} on {decoder.header.device})"
                )
            past.append(again)
            if progress is not None:
                progress(recorded.index + 1 - first, at_pass + 1 - first)
    except BaseException:
        decoder.release()
        raise
    return decoder, past


def _difference(recorded: Step, again: Step | None, named: Callable[[int], str]) -> str:
    """What differs between a pass and its record, in words; "" when nothing that matters does. `named`: a token in words."""
    if again is None:
        return "found no [MASK], where the record has a pass"
    for word, a, b in (
        ("block", [again.block, again.block_start, again.block_end], [recorded.block, recorded.block_start, recorded.block_end]),
        ("kind", again.kind, recorded.kind), ("refresh", again.refresh, recorded.refresh),
        ("edits", *("; ".join(f"{named(t)} at position {p}" for p, t in s.edits) or "none" for s in (again, recorded))),
    ):  # fmt: skip
        if a != b:
            return f"has {word} {a} where the record has {b}"
    mine, theirs = ([(c.position, c.token, c.reason) for c in s.commits] for s in (again, recorded))
    for a, b in zip(mine, theirs, strict=False):
        if a != b:
            return f"commits {named(a[1])} at position {a[0]} ({a[2]}) where the record has {named(b[1])} at position {b[0]} ({b[2]})"
    return "" if len(mine) == len(theirs) else f"commits {len(mine)} tokens where the record has {len(theirs)}"


def _change(decoder: Decoder, changes: dict[str, Any]) -> None:
    config = decoder.run.config
    for name, value in changes.items():
        if name == "seed":
            decoder.pending[name] = config.replace(seed=value).seed
        elif name not in config or config.replace(**{name: value})[name] != config[name]:
            decoder.set(name, value)


def _edit(decoder: Decoder, edits: dict[int, int | None]) -> None:
    if not edits:
        return
    decoder.edit(edits)
    canvas = decoder.run.canvas
    after = canvas.host.clone()
    for position, token in decoder.edits.items():
        after[position] = token
    if not bool((after[canvas.prompt_length :] == canvas.mask_id).any()):
        raise ForkError("after these edits no position holds [MASK], so there is nothing to decode; leave or make at least one")

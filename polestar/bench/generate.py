"""`polestar generate`: decode one prompt.

Contract: the JSON is stable: method, preset, config, model, prompt_ids, tokens (the L_G generated ids), text, nfe, tpf, tpf_all, tps, seconds,
passes [{kind, block, refresh, refresh_reason, rows, commits [{position, token, confidence, reason, delta, gate}]}], and header (versions, device,
dtype, seed, revision). Numbers that do not exist are null.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from typing import Any

from polestar.arguments import Parser
from polestar.bench import common
from polestar.decoders import METHODS


def parser() -> Parser:
    """The options of the command."""
    p = Parser(prog="polestar generate", description="Decode one prompt.")
    common.add_model_options(p)
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--prompt", metavar="TEXT", help="the user's message; goes through the model's chat template")
    what.add_argument("--prompt-ids", metavar="1,2,3", help="token ids, used as they are")
    p.add_argument("--method", default="polestar", choices=tuple(METHODS), metavar="NAME", help=", ".join(METHODS))
    common.add_decode_options(p)
    common.add_graphs_option(p)
    p.add_argument("--level", default="steps", choices=("off", "steps", "full"), help="how much each pass logs")
    p.add_argument("--json", metavar="FILE", help="write the result as JSON; - is stdout")
    p.add_argument("--trace", metavar="FILE", help="save the whole log (safetensors); `python app.py --trace FILE` shows it")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    return common.run("generate", _generate, parser(), argv)


def _generate(args: argparse.Namespace) -> int:
    from polestar.driver import decoder_for
    from polestar.trace.trace import Trace

    config = common.config_from(args, args.method)
    loaded = common.load(args)
    ids = common.prompt_ids_from(loaded, text=args.prompt, ids=args.prompt_ids)
    decoder = decoder_for(loaded, ids, config, level=args.level, prompt_text=args.prompt, graphs=args.graphs)
    decoder.warm_up()
    trace = Trace(decoder.header)
    bar = common.Progress(config.gen_length, args.method, quiet=args.quiet)
    while (step := decoder.step()) is not None:
        trace.append(step)
        bar.advance(len(step.commits))
    bar.close()
    if args.trace:
        trace.save(args.trace, loaded.codec)
    result = as_json(trace, loaded)
    if args.json:
        common.write_text(args.json, json.dumps(result, ensure_ascii=False, allow_nan=False, indent=1))
    if args.json != "-":
        print(result["text"] if result["text"].strip() else "(the answer is blank: every position is [EOS] or white space)")
        if not args.quiet:
            tps = "n/a" if result["tps"] is None else f"{result['tps']:.1f}"
            print(f"\n{args.method}: NFE {result['nfe']}, TPF {result['tpf']:.2f}, TPS {tps}, {result['seconds']:.2f} s")
    return 0


def as_json(trace: Any, loaded: Any) -> dict[str, Any]:
    """The documented JSON of a decode."""
    header, m = trace.header, trace.metrics()
    tokens = [int(t) for t in trace.tokens]
    return {
        "method": header.method,
        "preset": header.preset,
        "config": header.config,
        "model": header.model,
        "prompt_ids": list(header.prompt_ids),
        "tokens": tokens,
        "text": loaded.codec.decode(tokens),
        **{name: _number(m[name]) for name in ("nfe", "tpf", "tpf_all", "tps", "seconds")},
        "passes": [_pass(step) for step in trace],
        "header": {name: getattr(header, name) for name in ("seed", "device", "dtype", "revision", "versions", "level", "gen_length", "block_length")},
    }


def _pass(step: Any) -> dict[str, Any]:
    return {
        "kind": step.kind,
        "block": step.block,
        "refresh": step.refresh,
        "refresh_reason": step.refresh_reason,
        "rows": step.rows,
        "packet_rows": None if step.packet_rows is None else [int(n) for n in step.packet_rows],
        "commits": [
            {
                "position": c.position, "token": c.token, "confidence": _number(c.confidence), "reason": c.reason,
                "delta": _number(c.delta), "gate": _number(c.gate),
            }
            for c in step.commits
        ],
    }


def _number(value: Any) -> Any:
    return None if value is None or (isinstance(value, float) and not math.isfinite(value)) else value

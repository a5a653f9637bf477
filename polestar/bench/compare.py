"""`polestar compare`: several methods on one prompt, or on a file of prompts, as a table.

Contract: every method decodes the same prompts with the same settings, one after the other in one process, after a warm-up. Passes, positions
recomputed and seconds stand in columns of their own, each with its ratio to the first method, so that nothing slower is hidden.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from polestar.arguments import Parser
from polestar.bench import common
from polestar.decoders import METHODS

COLUMNS = ("method", "NFE", "TPF", "TPS", "seconds", "rows recomputed", "rows per token", "NFE x", "rows x", "time x", "first divergence")


def parser() -> Parser:
    """The options of the command."""
    p = Parser(prog="polestar compare", description="Several methods on the same prompts; ratios are to the first one.")
    common.add_model_options(p)
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--prompt", metavar="TEXT")
    what.add_argument("--prompt-ids", metavar="1,2,3")
    what.add_argument("--prompts", metavar="FILE", help='one prompt a line; or JSON lines with "prompt" or "question"')
    p.add_argument("--methods", nargs="+", default=["vanilla", "parallel", "fast-dllm-dual", "polestar"], choices=tuple(METHODS), metavar="NAME")
    p.add_argument("--limit", type=common.at_least(1), metavar="N", help="only the first N prompts")
    common.add_decode_options(p)
    common.add_graphs_option(p)
    p.add_argument("--level", default="steps", choices=("off", "steps", "full"), help="how much each pass logs")
    p.add_argument("--json", metavar="FILE", help="write the figures; - is stdout")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    return common.run("compare", _compare, parser(), argv)


def read_prompts(path: str, limit: int | None = None) -> list[str]:
    """Prompts of a file. Raises CommandError when there is none, or a line is not what it should be."""
    prompts = []
    for number, line in enumerate(common.read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        if line.lstrip().startswith("{"):
            try:
                record = json.loads(line)
            except ValueError:
                raise common.CommandError(f"line {number} of {path} begins like JSON and is none; correct it, or write plain prompts") from None
            line = record.get("prompt") or record.get("question")
            if not isinstance(line, str):
                raise common.CommandError(f'line {number} of {path} holds neither "prompt" nor "question" as text; give one of them')
        prompts.append(line)
    if not prompts:
        raise common.CommandError(f"{path} holds no prompt; write one a line")
    return prompts[:limit]


def _compare(args: argparse.Namespace) -> int:
    from polestar.driver import decode

    twice = sorted({m for m in args.methods if args.methods.count(m) > 1})
    if twice:
        raise common.CommandError(f"{twice[0]} is named twice in --methods; name each method once")
    configs = {m: _config(args, m) for m in args.methods}
    texts = read_prompts(args.prompts, args.limit) if args.prompts else [args.prompt]
    loaded = common.load(args)
    prompts = [common.prompt_ids_from(loaded, text=t, ids=args.prompt_ids) for t in texts]
    bar = common.Progress(len(prompts) * len(configs), "compare", quiet=args.quiet)
    traces: dict[str, list[Any]] = {m: [] for m in configs}
    for number, ids in enumerate(prompts):
        for method, config in configs.items():
            traces[method].append(decode(loaded, ids, config, level=args.level, warm_up=number == 0, graphs=args.graphs))
            bar.advance()
    bar.close()
    rows = summarise(traces, loaded.codec)
    if args.json:
        common.write_text(args.json, json.dumps({"prompts": len(prompts), "model": loaded.name, "methods": rows}, ensure_ascii=False, indent=1))
    if args.json != "-":
        print(table(rows))
        print(f"\n{len(prompts)} prompt(s), ratios to {args.methods[0]}; time on this machine, now. A ratio above 1 is worse.")
    return 0


def _config(args: argparse.Namespace, method: str):
    """Settings apply to the methods that have the parameter; one that no method has is an error."""
    every = {name for m in args.methods for name in METHODS[m].specs}
    unknown = [p for p in args.set if p.partition("=")[0] not in every]
    if unknown:
        raise common.CommandError(f"none of {', '.join(args.methods)} has a parameter {unknown[0].partition('=')[0]!r}; they take {', '.join(sorted(every))}")
    kept = argparse.Namespace(**{**vars(args), "set": [p for p in args.set if p.partition("=")[0] in METHODS[method].specs]})
    return common.config_from(kept, method)


def summarise(traces: dict[str, list[Any]], codec: Any) -> list[dict[str, Any]]:
    """One row a method: sums over prompts, ratios to the first method, where its first answer leaves the first method's."""
    from polestar.trace.compare import first_divergence

    rows: list[dict[str, Any]] = []
    for method, own in traces.items():
        totals = [t.metrics() for t in own]
        nfe, seconds = sum(m["nfe"] for m in totals), sum(m["seconds"] for m in totals)
        tokens = sum(m["non_eos"] for m in totals)
        recomputed = sum(m["rows"] + (m["packet_rows"] or 0) for m in totals)
        positions = sum(m["tokens"] for m in totals)
        row: dict[str, Any] = {
            "method": method, "nfe": nfe, "tpf": tokens / nfe if nfe else 0.0, "tps": tokens / seconds if seconds else None, "seconds": seconds,
            "rows_recomputed": recomputed, "rows_per_token": recomputed / positions, "texts": [codec.decode([int(i) for i in t.tokens]) for t in own],
        }
        first = rows[0] if rows else row
        row["ratios"] = {k: row[k] / first[k] if first[k] else None for k in ("nfe", "rows_recomputed", "seconds")}
        others = next(iter(traces.values()))
        parts = [(n, d) for n, (a, b) in enumerate(zip(others, own, strict=True)) if (d := first_divergence(a, b)) is not None] if rows else []
        row["differing_prompts"] = len(parts)
        row["first_divergence"] = None
        if parts:
            n, d = parts[0]
            row["first_divergence"] = {"prompt": n, "position": d["position_b"], "pass_first": d["pass_a"], "pass": d["pass_b"],
                                       "token_first": d["token_a"], "token": d["token_b"]}  # fmt: skip
        rows.append(row)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for r in rows:
        d = r["first_divergence"]
        where = "same tokens" if d is None else f"position {d['position']}, pass {d['pass']} (prompt {d['prompt'] + 1}; {r['differing_prompts']} differ)"
        tps = "n/a" if r["tps"] is None else f"{r['tps']:.1f}"
        x = [("n/a" if v is None else f"{v:.2f}") for v in r["ratios"].values()]
        lines.append(
            f"| {r['method']} | {r['nfe']} | {r['tpf']:.2f} | {tps} | {r['seconds']:.2f} | {r['rows_recomputed']:.0f} | {r['rows_per_token']:.1f} | "
            f"{x[0]} | {x[1]} | {x[2]} | {'-' if r is rows[0] else where} |"
        )
    return "\n".join(lines)

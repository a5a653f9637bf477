"""`polestar bench demo`: accuracy and speed on the bundled model's held-out problems.

Contract: every decoder gets the same problems, one decode after the other in one process, problem by problem, so that a busy minute of the machine falls on
all of them. Finished decodes are kept in OUT/results.jsonl and never repeated for the same weights; a table is made of the problems that all of its rows
have finished. OUT/demo.md and OUT/demo.json are written whole at the end, also when the run is stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from polestar.arguments import Parser
from polestar.bench import common
from polestar.bench.demo_tables import PARTS, REFERENCE, Table, measure, tables
from polestar.decoders import METHODS
from polestar.demo.evaluate import Job, Store, canvas_length, fingerprint, judge, problem_set, turns, whole_words
from polestar.demo.problem import Problem
from polestar.demo.problems import FAMILIES

FIVE = ("vanilla", "parallel", "fast-dllm-prefix", "fast-dllm-dual", "polestar")


def parser() -> Parser:
    """The options of the command."""
    p = Parser(prog="polestar bench demo", description="Accuracy and speed on held-out problems; a stopped run goes on where it was.")
    common.add_model_options(p)
    p.add_argument("--families", nargs="+", default=list(FAMILIES), choices=tuple(FAMILIES), metavar="NAME", help="default: " + " ".join(FAMILIES))
    p.add_argument("--n", type=int, default=200, help="held-out problems a family (default 200; a family with fewer gives all)")
    p.add_argument("--methods", nargs="+", default=list(FIVE), choices=tuple(METHODS), metavar="NAME", help="default: " + " ".join(FIVE))
    p.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS, help="which tables beside the scan (default: all)")
    p.add_argument("--tradeoff-n", type=int, default=100, help="problems a family in the threshold table, the slowest (default 100, at most --n)")
    p.add_argument("--scan", action="store_true", help="also α, k, τ_upd, h and τ_s around Polestar's defaults")
    p.add_argument("--scan-n", type=int, default=50, help="problems a family in the scan (default 50, at most --n)")
    p.add_argument("--gen-length", type=int, metavar="N", help="canvas of every family; default: the longest answer of the family, up to a multiple of 32")
    p.add_argument("--share", default="1/1", metavar="I/M", help="decode every M-th problem from the I-th on (several runs can fill one OUT)")
    p.add_argument("--report-only", action="store_true", help="decode nothing, make the tables of what is there")
    p.add_argument("--out", default="~/.cache/polestar/bench-demo", metavar="DIR", help="results.jsonl, demo.md, demo.json (default: %(default)s)")
    p.add_argument("--card", nargs="?", const="", metavar="FILE", help="put the tables between the markers of FILE (default: the model's MODEL_CARD.md)")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    return common.run("bench demo", _bench, parser(), argv)


def _bench(args: argparse.Namespace) -> int:
    from polestar.bench import demo_report

    for name in ("n", "tradeoff_n", "scan_n"):
        if getattr(args, name) < 1:
            raise common.CommandError(f"--{name.replace('_', '-')} counts problems, not {getattr(args, name)}; give at least 1")
    share = _share(args.share)
    loaded = common.load(args)
    card = None if args.card is None else Path(args.card) if args.card else loaded.path / "MODEL_CARD.md"
    if card is not None:
        demo_report.check_card(card)
    out = Path(args.out).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    families = {f: problem_set(f, args.n) for f in args.families}
    lengths = {f: args.gen_length or canvas_length(f, loaded.codec.encode) for f in args.families}
    wanted = tables(args.methods, args.parts, scan=args.scan, n=args.n, tradeoff_n=args.tradeoff_n, scan_n=args.scan_n)
    store = Store(out / "results.jsonl", fingerprint(loaded))
    stopped = False
    if not args.report_only:
        try:
            decode_all(loaded, families, lengths, wanted, store, share=share, quiet=args.quiet)
        except KeyboardInterrupt:
            stopped = True
    report = describe(args, loaded, store.model, families, lengths)
    report |= {"reference": REFERENCE, "tables": [measure(t, families, lengths, store) for t in wanted]}
    report["words"] = demo_report.words(report)
    text = demo_report.markdown(report)
    common.write_text(str(out / "demo.json"), json.dumps(report, ensure_ascii=False, indent=1, allow_nan=False))
    common.write_text(str(out / "demo.md"), text)
    if card is not None:
        demo_report.fill_card(card, report)
    print(text)
    if stopped:
        raise KeyboardInterrupt
    return 0


def decode_all(
    loaded: Any, families: dict[str, list[Problem]], lengths: dict[str, int], wanted: Sequence[Table], store: Store, *, share: tuple[int, int] = (1, 1),
    quiet: bool = False,
) -> int:
    """Run every decode that the tables want and the store lacks; returns how many. One decode is in memory at a time."""
    from polestar.driver import decode

    places = {family: {p.prompt: i for i, p in enumerate(own)} for family, own in families.items()}
    todo: list[tuple[Problem, Job]] = []
    for problem in turns(families, share):
        jobs: dict[str, Job] = {}
        for table in wanted:
            if places[problem.family][problem.prompt] < table.n:
                jobs |= {job.key: job for _, job in table.rows}
        todo += [(problem, job) for job in jobs.values() if store.find(job, problem, lengths[problem.family]) is None]
    bar, warm = common.Progress(len(todo), "bench demo", quiet=quiet), set()
    started = told = monotonic()
    for done, (problem, job) in enumerate(todo, 1):
        fresh = (job.method, problem.family) not in warm
        warm.add((job.method, problem.family))
        ids = loaded.codec.encode_chat(problem.prompt)
        trace = decode(loaded, ids, job.config(lengths[problem.family]), level="steps", warm_up=fresh)
        store.add(judge(trace, problem, loaded.codec, model=store.model, job=job))
        bar.advance()
        if not quiet and not sys.stderr.isatty() and monotonic() - told > 60:
            told = monotonic()
            left = (told - started) / done * (len(todo) - done) / 60
            print(f"bench demo: {done} of {len(todo)} decodes, about {left:.0f} min left", file=sys.stderr, flush=True)
    bar.close()
    return len(todo)


def describe(args: argparse.Namespace, loaded: Any, named: str, families: dict[str, list[Problem]], lengths: dict[str, int]) -> dict[str, Any]:
    """What was measured, where, and on which problems; `named` is the model's fingerprint."""
    asked = {name: getattr(args, name) for name in ("n", "tradeoff_n", "scan_n", "gen_length")}
    out = {"model": about_model(loaded, named), "machine": machine(), "asked": asked, "families": {}}
    for family, problems in families.items():
        answers = [len(loaded.codec.encode(p.answer)) for p in problems]
        out["families"][family] = {
            "n": len(problems), "gen_length": lengths[family], "longest_answer": max(answers), "mean_answer": sum(answers) / len(answers),
            "too_long": sum(a >= lengths[family] for a in answers), "whole_words": whole_words(problems, loaded.codec.encode),
        }
    return out


def about_model(loaded: Any, named: str) -> dict[str, Any]:
    """Shape, size and arithmetic of the model."""
    from polestar import __version__

    c = loaded.config
    files = sorted(loaded.path.glob("*.safetensors"))
    return {
        "name": loaded.name, "revision": loaded.revision, "fingerprint": named, "family": c.family, "d_model": c.d_model,
        "n_layers": c.n_layers, "n_heads": c.n_heads, "mlp_hidden": c.mlp_hidden, "vocab_size": c.vocab_size,
        "parameters": sum(p.numel() for p in loaded.model.parameters()), "bytes": sum(f.stat().st_size for f in files),
        "dtype": str(loaded.dtype).removeprefix("torch."), "device": loaded.device.type, "polestar": __version__,
    }


def machine() -> dict[str, Any]:
    """Where it was measured."""
    import torch

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"cpus": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__, "system": platform.system(), "load": load}


def _share(text: str) -> tuple[int, int]:
    part, slash, whole = text.partition("/")
    if not (slash and part.isdigit() and whole.isdigit() and 1 <= int(part) <= int(whole)):
        raise common.CommandError(f"--share takes I/M with 1 <= I <= M, not {text!r}; write for example --share 1/2")
    return int(part), int(whole)

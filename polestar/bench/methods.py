"""`polestar bench methods`: every method on the same problems, as one table.

Contract: methods take turns on each problem, in one process, so that a busy machine slows all alike. Every finished decode is one line of OUT.jsonl,
written at once; a run that was stopped goes on where it ended, and nothing else is kept in memory. Figures follow section D.1 of the paper (TPF and TPS
count non-[EOS] tokens); OUT.md holds the table. Accuracy is exact: a problem's own check, or the last number of the answer.

`--scan NAME=V1,V2` runs each method that has the parameter once for each value, as rows of their own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polestar.arguments import Parser
from polestar.bench import common
from polestar.bench.problems import Question, demo_questions, read_questions
from polestar.config import DecodeConfig
from polestar.decoders import METHODS

FORMAT = 1
KEPT = ("nfe", "non_eos", "tokens", "rows", "packet_rows", "seconds")


@dataclass(frozen=True)
class Variant:
    """A row of the table."""

    label: str
    config: DecodeConfig


def parser() -> Parser:
    """The options of the command."""
    p = Parser(prog="polestar bench methods", description="Every method on the same problems; ratios are to the first method.")
    common.add_model_options(p)
    p.add_argument("--methods", nargs="+", default=list(METHODS), choices=tuple(METHODS), metavar="NAME")
    p.add_argument("--n", type=int, default=100, metavar="N", help="how many problems in all, spread over the families (default 100)")
    p.add_argument("--families", nargs="+", metavar="NAME", help="families of the bundled model's held-out problems; default: all")
    p.add_argument("--problems", metavar="FILE", help='JSON lines with "question" (or "prompt") and "answer", whose last number counts')
    p.add_argument("--scan", metavar="NAME=V1,V2,...", help="one row for each value of a parameter")
    common.add_decode_options(p)
    p.set_defaults(gen_length=128)
    p.add_argument("--out", default="bench-methods", metavar="PATH", help="PATH.jsonl collects decodes, PATH.md is the table (default bench-methods)")
    p.add_argument("--fresh", action="store_true", help="begin anew, without what PATH.jsonl holds")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    return common.run("bench methods", _bench, parser(), argv)


def _bench(args: argparse.Namespace) -> int:
    from polestar.driver import decode

    if args.n < 1:
        raise common.CommandError(f"--n is {args.n}; ask for at least 1 problem")
    variants = variants_of(args)
    if args.problems:
        questions = read_questions(args.problems, args.n)
    elif args.model == "demo":
        questions = demo_questions(args.n, args.families)
    else:
        raise common.CommandError(f"the held-out problems are the bundled model's, not those of {args.model}; give --problems FILE")
    loaded = common.load(args)
    log = Log(Path(f"{args.out}.jsonl"), settings(args, loaded, variants, questions), fresh=args.fresh)
    todo = [(number, q, v) for number, q in enumerate(questions) for v in variants if (number, v.label) not in log.done]
    bar = common.Progress(len(todo), "bench methods", quiet=args.quiet)
    warm: set[str] = set()
    for number, question, variant in todo:
        trace = decode(loaded, loaded.codec.encode_chat(question.prompt), variant.config, level="off", warm_up=variant.label not in warm)
        warm.add(variant.label)
        found = trace.metrics(loaded.codec)
        wrong = question.check(found["text"])
        log.add({"problem": number, "variant": variant.label, "family": question.family, "wrong": wrong} | {k: found[k] for k in KEPT})
        bar.advance()
    bar.close()
    text = report(summarise(log.records(), [v.label for v in variants]), args, loaded, len(questions))
    common.write_text(f"{args.out}.md", text)
    print(text)
    return 0


def variants_of(args: argparse.Namespace) -> list[Variant]:
    """Methods, times the scanned values. Settings go to the methods that have the parameter; one that no method has is an error."""
    every = {name for m in args.methods for name in METHODS[m].specs}
    name, _, values = (args.scan or "").partition("=")
    if args.scan and not values:
        raise common.CommandError(f"--scan takes NAME=V1,V2,..., not {args.scan!r}; write for example --scan tau_e=0.5,1")
    for given in [pair.partition("=")[0] for pair in args.set] + [name] * bool(args.scan):
        if given not in every:
            raise common.CommandError(f"none of the methods has a parameter {given!r}; they take {', '.join(sorted(every))}")
    out = []
    for method in args.methods:
        specs = METHODS[method].specs
        kept = argparse.Namespace(**{**vars(args), "set": [pair for pair in args.set if pair.partition("=")[0] in specs]})
        config = common.config_from(kept, method)
        if name and name in specs:
            out += [Variant(f"{method} {name}={value}", config.replace(**{name: value})) for value in values.split(",")]
        else:
            out.append(Variant(method, config))
    return out


def settings(args: argparse.Namespace, loaded: Any, variants: Sequence[Variant], questions: Sequence[Question]) -> dict[str, Any]:
    """What must not differ between the decodes of one table. Methods may be added later, with the same settings."""
    import torch

    return {
        "bench": "methods", "format": FORMAT, "model": loaded.name, "revision": loaded.revision, "preset": args.preset, "gen_length": args.gen_length,
        "block_length": args.block_length, "seed": args.seed, "set": sorted(args.set), "threads": torch.get_num_threads(),
        "device": str(loaded.model.device.type), "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "problems": f"{len(questions)} of {args.problems or 'demo ' + ' '.join(sorted({q.family for q in questions}))}",
    }  # fmt: skip


class Log:
    """Finished decodes, one JSON line each after a first line of settings. `done`: (problem, variant) pairs that the file holds."""

    def __init__(self, path: Path, wanted: dict[str, Any], *, fresh: bool):
        self.path = path
        if fresh or not path.exists():
            common.write_text(str(path), json.dumps(wanted))
        else:
            self._mend(wanted)
        self.done = {(r["problem"], r["variant"]) for r in self.records()}

    def _mend(self, wanted: dict[str, Any]) -> None:
        """Check the settings, and cut off a last line that was not written to its end."""
        raw = self.path.read_bytes()
        try:
            held = json.loads(raw.split(b"\n", 1)[0])
        except ValueError:
            held = None
        if not isinstance(held, dict) or held.get("bench") != "methods":
            raise common.CommandError(f"{self.path} is not a log of this command; name another --out, or begin anew with --fresh")
        for name, value in wanted.items():
            if held.get(name) != value:
                raise common.CommandError(
                    f"{self.path} was made with {name} {held.get(name)!r}, this run has {value!r}; name another --out, or begin anew with --fresh"
                )
        whole = raw.rfind(b"\n") + 1
        if whole < len(raw):
            with self.path.open("r+b") as file:
                file.truncate(whole)

    def add(self, record: dict[str, Any]) -> None:
        """Append one decode."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def records(self) -> Iterator[dict[str, Any]]:
        """Every decode of the file, one at a time."""
        with self.path.open(encoding="utf-8") as file:
            next(file)
            yield from map(json.loads, file)


def summarise(records: Iterator[dict[str, Any]], labels: Sequence[str]) -> list[dict[str, Any]]:
    """One row a variant: sums over problems, accuracy by family, ratios to the first variant."""
    sums = {label: dict.fromkeys(KEPT, 0) | {"label": label, "count": 0, "families": {}} for label in labels}
    for record in records:
        row = sums.get(record["variant"])
        if row is None:
            continue  # of an earlier run with other methods
        for name in KEPT:
            row[name] += record[name] or 0
        row["count"] += 1
        right, count = row["families"].get(record["family"], (0, 0))
        row["families"][record["family"]] = (right + (not record["wrong"]), count + 1)
    rows = [row for row in sums.values() if row["count"]]
    for row in rows:
        row["accuracy"] = sum(right for right, _ in row["families"].values()) / row["count"]
        row["tpf"], row["tps"] = row["non_eos"] / row["nfe"], row["non_eos"] / row["seconds"]
        row["rows_per_token"] = (row["rows"] + row["packet_rows"]) / row["tokens"]
        row["mean_nfe"] = row["nfe"] / row["count"]
        row["tps_ratio"] = row["tps"] / rows[0]["tps"] if rows[0]["tps"] else None
        row["nfe_ratio"] = rows[0]["nfe"] / row["nfe"]
    return rows


def report(rows: Sequence[dict[str, Any]], args: argparse.Namespace, loaded: Any, problems: int) -> str:
    """The table in Markdown, and what it was made with."""
    families = list(dict.fromkeys(f for row in rows for f in row["families"]))
    columns: list[tuple[str, Callable[[dict], str]]] = [
        ("method", lambda r: r["label"]),
        *((f, lambda r, f=f: "n/a" if f not in r["families"] else f"{100 * r['families'][f][0] / r['families'][f][1]:.0f} %") for f in families),
        ("all", lambda r: f"{100 * r['accuracy']:.1f} %"),
        ("NFE", lambda r: f"{r['mean_nfe']:.1f}"),
        ("TPF", lambda r: f"{r['tpf']:.2f}"),
        ("rows per token", lambda r: f"{r['rows_per_token']:.1f}"),
        ("TPS", lambda r: f"{r['tps']:.1f}"),
        ("passes saved", lambda r: f"{r['nfe_ratio']:.2f} x"),
        ("speed", lambda r: "n/a" if r["tps_ratio"] is None else f"{r['tps_ratio']:.2f} x"),
    ]
    lines = ["| " + " | ".join(name for name, _ in columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(cell(row) for _, cell in columns) + " |" for row in rows]
    notes = [f"{METHODS[m].title}: {METHODS[m].note}" for m in dict.fromkeys(r["label"].split()[0] for r in rows) if METHODS[m].note]
    said = (
        f"{loaded.name}, {problems} problems, generation {args.gen_length}, {str(loaded.model.dtype).removeprefix('torch.')} on "
        f"{loaded.model.device.type}, greedy, whole canvas decoded (no stop at [EOS]). Passes saved (NFE) and speed (TPS) are ratios to {rows[0]['label']}."
    )
    return "\n".join([*lines, "", said, *notes])

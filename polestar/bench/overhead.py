"""`polestar bench overhead`: what Polestar adds to a pass, straightforward and fused.

Contract: for each kind of pass, its time divided by the *main pass*: exactly the rows it fed, run as plain layers with the head and nothing else. What
a refresh adds is given as a whole (update packet included) and beyond the packet's rows, when these too are run as plain layers. Three decodes and
their floors are timed in turn, pass by pass, and the least time of each pass counts: Fast-dLLM's dual cache (what the driver itself adds), Polestar with
every step of the algorithm by itself (`polestar.bench.straight`), and Polestar as it decodes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from time import perf_counter, process_time

import torch

from polestar.arguments import Parser
from polestar.bench import common, straight
from polestar.bench.engine import plain_rows, random_llada
from polestar.config import DecodeConfig
from polestar.driver import Decoder
from polestar.models.transformer import Transformer

VARIANTS = ("fast-dllm-dual", "polestar, straightforward", "polestar")
KINDS = ("entry-full", "entry-window", "plain", "refresh")


def decoder_of(variant: str, model: Transformer, prompt: Sequence[int], values: dict, *, level: str = "off") -> Decoder:
    """A decoder of one variant; `values` are Polestar's parameters, of which another method takes the lengths."""
    method, _, path = variant.partition(", ")
    if method != "polestar":
        values = {name: values[name] for name in ("gen_length", "block_length")}
    decoder = Decoder(model, prompt, DecodeConfig.make(method=method, **values), level=level)
    return straight.use(decoder) if path else decoder


class Floors:
    """Seconds of a pass's rows as plain layers: main rows with the head, and packet rows."""

    def __init__(self, model: Transformer, length: int, clock: Callable[[], float]):
        store = model.new_store(length)
        self.model, self.length, self.clock = model, length, clock
        self.kv = (store.k.normal_(), store.v.normal_())
        self.x = torch.randn(length, model.cfg.d_model, dtype=model.dtype)

    def main(self, rows: int, wanted: int) -> float:
        started = self.clock()
        plain_rows(self.model, self.x[:rows], self.length, self.kv, range(self.model.cfg.n_layers), wanted)
        return self.clock() - started

    def packets(self, rows: Sequence[int] | None) -> float:
        started = self.clock()
        for layer, m in enumerate(() if rows is None else rows):
            if m:
                plain_rows(self.model, self.x[:m], self.length, self.kv, (layer,), 0)
        return self.clock() - started


def measure(
    model: Transformer, prompt: Sequence[int], values: dict, repeats: int, *, cpu_time: bool = False, progress: common.Progress | None = None
) -> list[dict]:
    """One row for each variant and kind of pass: passes, ms of the main pass, of its packet rows and of the whole pass, and the ratios."""
    clock = process_time if cpu_time else perf_counter
    floors, passes, best = None, {}, {}
    for variant in VARIANTS:
        decoder, passes[variant] = decoder_of(variant, model, prompt, values, level="steps"), []
        while (step := decoder.step()) is not None:
            kind = "refresh" if step.refresh else "plain" if step.kind == "within" else step.kind
            passes[variant].append((kind, step.rows, int((step.conf == step.conf).sum()), step.packet_rows))
        best[variant] = [[float("inf")] * 3 for _ in passes[variant]]
        floors = floors or Floors(model, decoder.run.length, clock)
    for _ in range(repeats):
        for variant in VARIANTS:
            decoder = decoder_of(variant, model, prompt, values)
            for least, (_, rows, wanted, packets) in zip(best[variant], passes[variant], strict=True):
                started = clock()
                decoder.step()
                now = (clock() - started, floors.main(rows, wanted), floors.packets(packets))
                least[:] = map(min, least, now)
            if progress is not None:
                progress.advance()
    out = []
    for variant in VARIANTS:
        for kind in KINDS:
            found = [least for least, (k, *_) in zip(best[variant], passes[variant], strict=True) if k == kind]
            if found:
                out.append({"variant": variant, "pass": kind} | _row(found))
    return out


def _row(found: list[list[float]]) -> dict:
    whole, main, packets = (1e3 * sum(column) / len(found) for column in zip(*found, strict=True))
    return {
        "passes": len(found), "main_ms": main, "packet_ms": packets, "pass_ms": whole,
        "extra_ratio": (whole - main) / main, "extra_ratio_beyond_packets": (whole - main - packets) / main,
    }  # fmt: skip


def table(model: str, rows: Sequence[dict]) -> str:
    """The figures as Markdown."""
    lines = [f"{model}:", "", "| | pass | passes | main ms | packet rows ms | pass ms | extra / main | beyond packet rows |", "|---|---" + "|---:" * 6 + "|"]
    for r in rows:
        packets, beyond = ("", "") if r["pass"] != "refresh" else (f"{r['packet_ms']:.2f}", f"{r['extra_ratio_beyond_packets']:.3f}")
        lines.append(
            f"| {r['variant']} | {r['pass']} | {r['passes']} | {r['main_ms']:.2f} | {packets} | {r['pass_ms']:.2f} | {r['extra_ratio']:.3f} | {beyond} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    p = Parser(prog="polestar bench overhead", description="What Polestar adds to refresh and plain passes, over the main pass.")
    p.add_argument("--models", nargs="+", choices=("random", "demo"), default=["random", "demo"], help="bench engine's random model, the bundled model")
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--prompt-length", type=int, default=256, help="of the random model")
    p.add_argument("--gen-length", type=int, default=256)
    p.add_argument("--block-length", type=int, default=32)
    p.add_argument("--threads", type=int, help="CPU threads")
    p.add_argument("--cpu-time", action="store_true", help="count CPU seconds, which a busy machine leaves alone, instead of wall seconds (with --threads 1)")
    p.add_argument("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="Polestar's parameters")
    p.add_argument("--json", metavar="FILE", help="write the figures; - is stdout")
    p.add_argument("--quiet", action="store_true")
    return common.run("bench overhead", _bench, p, argv)


def _bench(args: argparse.Namespace) -> int:
    if args.threads:
        torch.set_num_threads(args.threads)
    values = {"gen_length": args.gen_length, "block_length": args.block_length} | dict(pair.split("=", 1) for pair in args.set)
    progress = common.Progress(args.repeats * len(VARIANTS) * len(args.models), "bench overhead", quiet=args.quiet)
    results = {}
    for name in args.models:
        if name == "random":
            model = random_llada(length=args.prompt_length + args.gen_length)
            prompt = torch.randint(0, model.cfg.vocab_size - 2, (args.prompt_length,)).tolist()
        else:
            model, prompt = _bundled()
        results[name] = measure(model, prompt, values, args.repeats, cpu_time=args.cpu_time, progress=progress)
    progress.close()
    if args.json:
        common.write_text(args.json, json.dumps({"threads": torch.get_num_threads(), "cpu_time": args.cpu_time, "results": results}, indent=1))
    if args.json != "-":
        print("\n\n".join(table(name, rows) for name, rows in results.items()))
    return 0


def _bundled() -> tuple[Transformer, list[int]]:
    """The bundled model and the longest of its example prompts."""
    from polestar.models.checkpoint import load_model

    loaded = load_model("demo", device="cpu", dtype="float32")
    examples = json.loads((loaded.path / "examples.json").read_text(encoding="utf-8"))
    return loaded.model, max((loaded.codec.encode_chat(e["prompt"]) for e in examples), key=len)

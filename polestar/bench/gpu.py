"""`python -m polestar bench gpu`: what the GPU side does, measured, in at most eight minutes on one GPU.

Contract: random weights in the shapes of LLaDA-8B and Dream-7B, bf16, no downloads. Correctness and speed of each kernel, Figure 12 (time per layer and
step), Figure 13 (memory over a decode), tokens per second at equal NFE; a table, and JSON with --json. A part that the time no longer allows, or that does
not fit the memory, is listed as not measured, with the reason. Without a GPU the command says so and stops with status 1.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import torch

from polestar.arguments import Parser
from polestar.bench import common, gpu_decode, gpu_kernels, kernel_cases

TARGETS = {"added_within_ms": 0.10, "of_floor": 0.70, "extra_peak_bytes": 0.3e9}
LIMIT = 480.0


class Budget:
    """Runs parts while time is left; keeps what came out, and why a part did not run."""

    def __init__(self, seconds: float):
        self.started, self.seconds = monotonic(), seconds
        self.results: dict[str, Any] = {}
        self.missing: dict[str, str] = {}

    @property
    def used(self) -> float:
        return monotonic() - self.started

    def part(self, name: str, needs: float, work: Callable[[], Any]) -> None:
        """Do `work` if about `needs` seconds are left. A failure of one part is recorded and does not lose the others."""
        left = self.seconds - self.used
        if left < needs:
            self.missing[name] = f"not measured: about {needs:.0f} s needed, {max(0.0, left):.0f} s of {self.seconds:.0f} s left"
            return
        try:
            result = work()
            if result is not None:
                self.results[name] = result
        except torch.OutOfMemoryError:
            self.missing[name] = "not measured: out of GPU memory"
        except (RuntimeError, ValueError) as problem:
            self.missing[name] = f"failed: {str(problem).splitlines()[0]}"
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def collect(
    device: torch.device,
    *,
    seconds: float = LIMIT,
    dtype: torch.dtype = torch.bfloat16,
    shapes: Sequence[kernel_cases.Shape] = kernel_cases.SHAPES,
    models: dict[str, Any] = gpu_decode.SHAPES,
    prompt_length: int = 512,
    gen_length: int = 256,
    block_length: int = 32,
    say: Callable[[str], None] = print,
) -> dict:
    """Every part, as JSON-ready figures. Decodes take the larger share of `seconds`."""
    budget = Budget(seconds)
    watch = gpu_kernels.Stopwatch(device)
    budget.part("bandwidth", 5, lambda: gpu_kernels.bandwidth(watch))
    budget.part("empty_launch_us", 5, lambda: 1e6 * watch.cold(lambda: watch.flush[:1].zero_()))
    budget.part("fp8", 5, lambda: gpu_kernels.fp8_same_bits(device))
    for shape in shapes:
        say(f"kernels at {shape.name}'s shape ({budget.used:.0f} s used)")
        budget.part(f"correctness/{shape.name}", 20, lambda shape=shape: gpu_kernels.correctness(shape, device))
        if "bandwidth" in budget.results:
            budget.part(f"speed/{shape.name}", 20, lambda shape=shape: gpu_kernels.speed(shape, watch, budget.results["bandwidth"]))
    del watch
    for name, cfg in models.items():
        say(f"decodes in {name}'s shape ({budget.used:.0f} s used)")
        need = gpu_decode.parameters(cfg) * dtype.itemsize + 2e9
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
        if free is not None and free < need:
            budget.missing[f"decode/{name}"] = f"not measured: {need / 1e9:.0f} GB needed, {free / 1e9:.0f} GB free"
            continue
        model: list = []
        budget.part(f"model/{name}", 20, lambda cfg=cfg, model=model: model.append(gpu_decode.random_model(cfg, device, dtype)))
        if model:
            record = gpu_decode.recorder(model[0])
            args = (model.pop(), gpu_decode.prompt_for(cfg, prompt_length), gen_length, block_length, record)
            budget.part(f"decode/{name}", 45 if record is None else 65, lambda args=args: gpu_decode.figure_13_and_speed(*args))
            budget.part(f"figure12/{name}", 60 if record is None else 75, lambda args=args: gpu_decode.figure_12(*args))
            del args
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return {
        "machine": machine(device), "seconds": budget.used, "dtype": str(dtype).removeprefix("torch."),
        "prompt_length": prompt_length, "gen_length": gen_length, "block_length": block_length,
        "results": budget.results, "not_measured": budget.missing,
    }  # fmt: skip


def machine(device: torch.device) -> dict:
    """What the numbers were measured on."""
    from polestar.driver import versions

    if device.type != "cuda":
        return {"device": platform.processor() or platform.machine(), "capability": None, "memory_bytes": None, "versions": versions()}
    properties = torch.cuda.get_device_properties(device)
    capability = f"sm_{properties.major}{properties.minor}"
    return {"device": properties.name, "capability": capability, "memory_bytes": properties.total_memory, "cuda": torch.version.cuda, "versions": versions()}


def _number(value: float | None, digits: int = 2) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def table(found: dict) -> str:
    """The figures as Markdown."""
    results, lines = found["results"], []
    lines.append(f"{found['machine']['device']}, {found['dtype']}, measured in {found['seconds']:.0f} s.")
    if "bandwidth" in results:
        lines.append(f"Copy bandwidth {results['bandwidth'] / 1e9:.0f} GB/s; floors below are bytes over this.")
    if results.get("empty_launch_us") is not None:
        lines.append(f"A kernel that does nothing takes {results['empty_launch_us']:.1f} µs by the same clock.")
    if results.get("fp8") is not None:
        lines.append(f"Hardware and emulated E4M3: {'the same bits' if results['fp8']['ok'] else 'DIFFERENT BITS'} over {results['fp8']['rows']} groups.")
    checks = [row for name, rows in results.items() if name.startswith("correctness/") for row in rows]
    if checks:
        wrong = [row for row in checks if not row["ok"]]
        lines.append(f"Kernels against their references: {len(checks) - len(wrong)} of {len(checks)} agree.")
        lines += [f"- WRONG: {r['model']} {r['kernel']} {r['dtype']}: error {r['max_error']:.3g}, {100 * r['unequal']:.2f} % unequal" for r in wrong]
    rows = [row for name, part in results.items() if name.startswith("speed/") for row in part]
    if rows:
        lines += ["", "| model | kernel | layers | KB | floor µs | cold µs | warm µs | PyTorch µs | of floor |", "|---" * 9 + "|"]
        for r in rows:
            lines.append(
                f"| {r['model']} | {r['kernel']} | {r['layers']} | {r['bytes'] / 1e3:.0f} | {r['floor_us']:.1f} | {r['cold_us']:.1f} | {r['warm_us']:.1f} | "
                f"{r['torch_us']:.1f} | {100 * r['of_floor']:.0f} % |"
            )
    for name, part in results.items():
        if name.startswith("figure12/"):
            lines += _figure_12_lines(name.removeprefix("figure12/"), part)
    for name, part in results.items():
        if name.startswith("decode/"):
            lines += _decode_lines(name.removeprefix("decode/"), part)
    if found["not_measured"]:
        lines += ["", *(f"- {name}: {why}" for name, why in found["not_measured"].items())]
    return "\n".join(lines)


def _figure_12_lines(model: str, part: dict) -> list[str]:
    parts = sorted({p for variant in part.values() for kind in variant["parts_ms"].values() for p in kind})
    lines = ["", f"{model}: milliseconds per layer and step (Figure 12)", "", "| | pass | " + " | ".join(parts) + " | whole |", "|---" * (len(parts) + 3) + "|"]
    for variant, figures in part.items():
        for kind, values in figures["parts_ms"].items():
            cells = " | ".join(_number(values.get(p), 3) for p in parts)
            lines.append(f"| {variant} | {kind} | {cells} | {_number(figures['pass_ms'].get(kind), 3)} |")
    for variant, figures in part.items():
        lines.append(
            f"- {variant}: Polestar adds {_number(figures['added_within_ms'], 3)} ms to a refresh pass (target {TARGETS['added_within_ms']:.2f}), "
            f"{_number(figures['added_entry_ms'], 3)} ms to a full entry, per layer."
        )
    return lines + [f"- {name}: {what}." for name, what in (gpu_decode.ARMS | gpu_decode.RECORDED).items() if name in part]


def _decode_lines(model: str, part: list[dict]) -> list[str]:
    lines = ["", f"{model}: equal NFE, memory (Figure 13)", "", "| method | NFE | TPS (all positions) | peak GB | pinned host MB |", "|---" * 5 + "|"]
    for r in part:
        peak = None if r["peak_bytes"] is None else r["peak_bytes"] / 1e9
        lines.append(f"| {r['method']} | {r['nfe']} | {r['tps_all']:.1f} | {_number(peak)} | {r['pinned_bytes'] / 1e6:.1f} |")
    peaks = {r["method"]: r["peak_bytes"] for r in part}
    if None not in (peaks.get("polestar"), peaks.get("fast-dllm-dual")):
        extra = peaks["polestar"] - peaks["fast-dllm-dual"]
        lines.append(f"- Polestar's peak is {extra / 1e9:+.2f} GB against fast-dllm-dual (target: within {TARGETS['extra_peak_bytes'] / 1e9:.1f} GB).")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    p = Parser(prog="polestar bench gpu", description="Kernels, time per layer, memory and speed on one GPU; at most eight minutes.")
    p.add_argument("--json", metavar="FILE", help="write the figures; - is stdout")
    p.add_argument("--seconds", type=float, default=LIMIT, help=f"stop starting new parts after this long (default {LIMIT:.0f})")
    p.add_argument("--models", nargs="+", choices=tuple(gpu_decode.SHAPES), default=list(gpu_decode.SHAPES), help="shapes to decode with")
    p.add_argument("--prompt-length", type=int, default=512)
    p.add_argument("--gen-length", type=int, default=256)
    p.add_argument("--block-length", type=int, default=32)
    return common.run("bench gpu", _bench, p, argv)


def _bench(args: argparse.Namespace) -> int:
    if not torch.cuda.is_available():
        raise common.CommandError("there is no CUDA GPU here, so nothing was measured; run this on a machine that has one")
    quiet = args.json == "-"
    found = collect(
        torch.device("cuda", torch.cuda.current_device()), seconds=args.seconds, models={n: gpu_decode.SHAPES[n] for n in args.models},
        prompt_length=args.prompt_length, gen_length=args.gen_length, block_length=args.block_length, say=(lambda _: None) if quiet else print,
    )  # fmt: skip
    if args.json:
        common.write_text(args.json, json.dumps(found, indent=1))
    if not quiet:
        print(table(found))
    wrong = [r for name, rows in found["results"].items() if name.startswith("correctness/") for r in rows if not r["ok"]]
    fp8 = found["results"].get("fp8")
    return 1 if wrong or (fp8 is not None and not fp8["ok"]) else 0

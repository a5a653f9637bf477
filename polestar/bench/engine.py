"""`polestar bench engine`: what a decode costs beyond the model rows that it fed.

Contract: on a random fp32 LLaDA, decode seconds divided by the *floor*: the time of exactly the rows that the decode fed (main-pass rows; with
update-packet rows as a second figure), run as plain batched layers with nothing else, in the same process. Decode and floor are timed pass by
pass, in turn, several times; the least time of each pass counts, which is what a noisy machine leaves comparable.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from time import perf_counter

import torch

from polestar.arguments import Parser
from polestar.bench import common
from polestar.config import DecodeConfig
from polestar.driver import Decoder
from polestar.models.transformer import ModelConfig, Transformer, rotate

ROWS = ("fast-dllm-dual", "polestar")
PARTS = ("attention", "mlp", "head", "clustering", "proxy", "packets", "commit", "log")


def random_llada(*, d: int = 512, layers: int = 8, heads: int = 8, mlp: int = 1536, vocab: int = 8192, length: int = 1024, seed: int = 0) -> Transformer:
    """A LLaDA of random weights, fp32, whose confidences spread from 0 to 1 so that every rule of every method acts."""
    torch.manual_seed(seed)
    cfg = ModelConfig(
        family="llada", vocab_size=vocab, d_model=d, n_layers=layers, n_heads=heads, n_kv_heads=heads, head_dim=d // heads, mlp_hidden=mlp,
        max_length=length, rope_theta=10000.0, norm_eps=1e-5, mask_id=vocab - 1, eos_id=vocab - 2, pad_id=vocab - 2,
    )
    model = Transformer(cfg).eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.normal_(std=1.5 * module.in_features**-0.5)
    model.embed.weight.normal_()
    model.head.weight.normal_(std=4.0 * d**-0.5)
    model.head.weight[cfg.mask_id] = 0
    return model


@torch.inference_mode()
def plain_rows(model: Transformer, x: torch.Tensor, length: int, kv: tuple[torch.Tensor, torch.Tensor], layers: Sequence[int], wanted: int) -> None:
    """`x` [r, d] through `layers` as plain layers against `length` keys, then the head on `wanted` rows."""
    cos, sin = model.rope(length)
    cos, sin = cos[: x.shape[0]], sin[: x.shape[0]]
    for at in layers:
        block = model.layers[at]
        normed = block.attn_norm(x)
        rotate(block.keys(normed), cos, sin)
        block.values(normed)
        q = rotate(block.queries(normed), cos, sin)
        x = x + block.o_proj(block.attend(q, kv[0][at], kv[1][at]))
        x = x + block.mlp(x)
    if wanted:
        model.logits(x[:wanted])


def measure(model: Transformer, prompt: Sequence[int], config: DecodeConfig, repeats: int, progress: common.Progress) -> dict:
    """Ratios and shares of one method."""
    recorded = Decoder(model, prompt, config, level="steps")
    recorded.warm_up()
    steps, shares = [], dict.fromkeys(PARTS, 0.0)
    while (step := recorded.step()) is not None:
        wanted = 0 if step.conf is None else int((step.conf == step.conf).sum())
        steps.append((step.rows, wanted, step.packet_rows))
        for part, seconds in step.phases.items():
            shares[part] = shares.get(part, 0.0) + seconds
    length = len(recorded.run.canvas)
    store = model.new_store(length)
    kv = (store.k.normal_(), store.v.normal_())
    every = range(model.cfg.n_layers)
    longest = torch.randn(length, model.cfg.d_model)
    best = {name: [float("inf")] * len(steps) for name in ("decode", "main", "packets")}
    for _ in range(repeats):
        decoder = Decoder(model, prompt, config, level="off")
        for i, (rows, wanted, packets) in enumerate(steps):
            best["decode"][i] = min(best["decode"][i], decoder.step().seconds)
            started = perf_counter()
            plain_rows(model, longest[:rows], length, kv, every, wanted)
            middle = perf_counter()
            if packets is not None:
                for layer in every:
                    if packets[layer]:
                        plain_rows(model, longest[: packets[layer]], length, kv, (layer,), 0)
            best["main"][i] = min(best["main"][i], middle - started)
            best["packets"][i] = min(best["packets"][i], perf_counter() - middle)
        progress.advance()
    decode, main, packets = (sum(best[name]) for name in ("decode", "main", "packets"))
    whole = sum(shares.values())
    return {
        "method": config.method,
        "nfe": len(steps),
        "tpf_all": config.gen_length / len(steps),
        "refreshes": sum(p is not None for _, _, p in steps),
        "rows": sum(r for r, _, _ in steps),
        "packet_rows": sum(float(p.sum()) / model.cfg.n_layers for _, _, p in steps if p is not None),
        "decode_seconds": decode,
        "floor_seconds": main,
        "floor_with_packets_seconds": main + packets,
        "ratio": decode / main,
        "ratio_with_packets": decode / (main + packets),
        "shares": {part: seconds / whole for part, seconds in shares.items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    p = Parser(prog="polestar bench engine", description="Decode time divided by the time of the fed model rows alone.")
    p.add_argument("--methods", nargs="+", default=list(ROWS))
    p.add_argument("--repeats", type=common.at_least(1), default=3)
    p.add_argument("--prompt-length", type=common.at_least(1), default=256)
    p.add_argument("--gen-length", type=int, default=256)
    p.add_argument("--block-length", type=int, default=32)
    p.add_argument("--threads", type=int, help="CPU threads")
    p.add_argument("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE")
    p.add_argument("--json", metavar="FILE", help="write the figures; - is stdout")
    p.add_argument("--quiet", action="store_true")
    return common.run("bench engine", _bench, p, argv)


def _bench(args: argparse.Namespace) -> int:
    if args.threads:
        torch.set_num_threads(args.threads)
    model = random_llada()
    prompt = torch.randint(0, model.cfg.vocab_size - 2, (args.prompt_length,)).tolist()
    progress = common.Progress(args.repeats * len(args.methods), "bench engine", quiet=args.quiet)
    results = []
    for method in args.methods:
        values = dict(pair.split("=", 1) for pair in args.set)
        config = DecodeConfig.make(method=method, gen_length=args.gen_length, block_length=args.block_length, **values)
        results.append(measure(model, prompt, config, args.repeats, progress))
    progress.close()
    if args.json:
        common.write_text(args.json, json.dumps({"threads": torch.get_num_threads(), "results": results}, indent=1))
    if args.json != "-":
        print(table(results))
    return 0


def table(results: Sequence[dict]) -> str:
    """The figures as Markdown."""
    head = ("method", "NFE", "refreshes", "rows", "packet rows", "decode s", "floor s", "ratio", "ratio, packets counted as rows")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for r in results:
        lines.append(
            f"| {r['method']} | {r['nfe']} | {r['refreshes']} | {r['rows']} | {r['packet_rows']:.0f} | {r['decode_seconds']:.2f} | {r['floor_seconds']:.2f} | "
            f"{r['ratio']:.2f} | {r['ratio_with_packets']:.2f} |"
        )
    lines += ["", "Share of time by part:", "", "| method | " + " | ".join(PARTS) + " |", "|---" * (len(PARTS) + 1) + "|"]
    for r in results:
        lines.append(f"| {r['method']} | " + " | ".join(f"{100 * r['shares'].get(part, 0):.1f} %" for part in PARTS) + " |")
    return "\n".join(lines)

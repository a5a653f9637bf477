"""`python -m polestar train-demo`: from nothing to a checkpoint directory.

Contract: the same command resumes where the last one stopped (state in --work, written every few minutes and at the end, never half).
A run that was interrupted gives the weights of one that was not, on the same machine with any number of threads. Progress: stdout and `log.jsonl` in --work.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from polestar.arguments import Parser
from polestar.demo.batches import Batch, chunk, encode, mask
from polestar.demo.export import export, model_config
from polestar.demo.learn import gradients, loss_of, product_dtype
from polestar.demo.muon import Muon
from polestar.demo.plain import accuracy
from polestar.demo.problems import FAMILIES, held_out_set
from polestar.demo.start import initialise
from polestar.demo.tokenizer import train_tokenizer
from polestar.models.transformer import Transformer

CHUNK_PROBLEMS = 384


@dataclass
class Cursor:
    """Where the run stands: tokens seen, optimiser steps, next chunk, next batch of it, and the progress the chunk was made with."""

    tokens: int = 0
    step: int = 0
    chunk: int = 0
    batch: int = 0
    progress: float = 0.0


class Trainer:
    """The run: model, optimiser, average, cursor. `save` and `load` keep all of it."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.device = torch.device(args.device)
        self.work = Path(args.work).expanduser()
        self.work.mkdir(parents=True, exist_ok=True)
        self.tokenizer = self._tokenizer()
        rows = -(-self.tokenizer.get_vocab_size() // 32) * 32
        self.cfg = model_config(d_model=args.d_model, n_layers=args.layers, n_heads=args.heads, mlp_hidden=args.mlp, vocab_size=rows)
        self.model = Transformer(self.cfg)
        initialise(self.model, self.tokenizer, args.seed)
        self.model.to(self.device)
        matrices = [p for n, p in self.model.named_parameters() if n.startswith("layers") and p.dim() == 2]
        chosen = {id(p) for p in matrices}
        self.dtype = product_dtype(self.device)
        others = [p for p in self.model.parameters() if id(p) not in chosen]
        self.optimiser = Muon(matrices=matrices, others=others, lr=args.lr, adam_lr=args.adam_lr, dtype=self.dtype)
        workers = args.threads if self.device.type == "cpu" else 1
        self.pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) if workers > 1 else None
        self.average = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.cursor = Cursor()

    def _tokenizer(self) -> Tokenizer:
        """The tokenizer that the run began with, also when the generators have other words by now."""
        path = self.work / "latest" / "tokenizer.json"
        if (self.work / "state.pt").exists() and path.exists():
            return Tokenizer.from_file(str(path))
        return train_tokenizer()

    @property
    def progress(self) -> float:
        return self.cursor.tokens / self.args.tokens

    def save(self) -> None:
        """State into --work, complete or not at all."""
        state = {
            "model": self.model.state_dict(),
            "average": self.average,
            "optimiser": self.optimiser.state_dict(),
            "cursor": vars(self.cursor),
            "shape": self.shape(),
        }
        partial = self.work / "state.pt.partial"
        torch.save(state, partial)
        os.replace(partial, self.work / "state.pt")

    def shape(self) -> list[int]:
        return [self.args.d_model, self.args.layers, self.args.heads, self.args.mlp, self.cfg.vocab_size, self.args.seed]

    def load(self) -> bool:
        """Resume from --work when there is a state. Raises ValueError when it belongs to another shape or seed."""
        path = self.work / "state.pt"
        if not path.exists():
            return False
        state = torch.load(path, map_location=self.device, weights_only=True)
        if state["shape"] != self.shape():
            raise ValueError(f"{path} is of shape and seed {state['shape']}, this command asks for {self.shape()}; choose another --work")
        self.model.load_state_dict(state["model"])
        self.average = state["average"]
        self.optimiser.load_state_dict(state["optimiser"])
        self.cursor = Cursor(**state["cursor"])
        return True

    def rates(self) -> tuple[float, float]:
        """Learning-rate scale (short warm-up, constant, linear to 0) and Muon's momentum."""
        t = self.progress
        warm = min(1.0, (self.cursor.step + 1) / 50)
        scale = warm * min(1.0, max(0.0, (1 - t) / (1 - self.args.constant)))
        return scale, 0.85 + 0.1 * min(1.0, self.cursor.step / 300)

    def update(self, *batches: Batch) -> float:
        """One optimiser step on the batches together and one step of the average."""
        scale, beta = self.rates()
        parameters = [*self.optimiser.matrices, *self.optimiser.others]
        loss, grads = gradients(self.model, parameters, batches, self.dtype, self.pool)
        self.optimiser.step(grads, scale=scale, beta=beta, pool=self.pool)
        decay = min(self.args.ema, 1 - 1 / (2 + self.cursor.step / 5))
        torch._foreach_lerp_(list(self.average.values()), list(self.model.state_dict().values()), 1 - decay)
        self.cursor.tokens += sum(batch.tokens for batch in batches)
        self.cursor.step += 1
        return loss

    def averaged(self) -> Transformer:
        """A copy of the model with the averaged weights, on the CPU in float32."""
        model = Transformer(self.cfg)
        model.load_state_dict({k: v.cpu() for k, v in self.average.items()})
        return model.eval()

    def evaluate(self, n: int) -> dict[str, dict[str, float]]:
        """Held-out loss and one-token-a-pass accuracy of the averaged weights, a few problems a family (selection only; seed 7, not the benchmark's)."""
        model, out = self.averaged(), {}
        for family in FAMILIES:
            problems = held_out_set(family, max(n, 8), seed=7)
            noise = np.random.default_rng(7)
            losses = []
            for problem in problems[:32]:
                prompt, answer = encode(self.tokenizer, problem.prompt, problem.answer)
                row = mask(noise, prompt, answer, len(prompt) + len(answer) + 8, 1.0, semi=len(losses) % 2 == 0)
                with torch.no_grad():
                    losses.append(float(loss_of(model, Batch(*(x[None] for x in row)))))
            right, _ = accuracy(model, self.tokenizer, problems[:n]) if n else (math.nan, 0)
            _, tpf = accuracy(model, self.tokenizer, problems[: max(1, n // 2)], threshold=0.9) if n else (0, math.nan)
            out[family] = {"loss": round(float(np.mean(losses)), 4), "accuracy": round(right, 3), "tpf_0.9": round(tpf, 2)}
        return out

    def note(self, record: dict) -> None:
        with (self.work / "log.jsonl").open("a") as file:
            file.write(json.dumps({"time": round(time.time()), "tokens": self.cursor.tokens, "step": self.cursor.step, **record}) + "\n")

    def assess(self) -> None:
        found = self.evaluate(self.args.eval_n)
        self.note({"eval": found})
        print("held out  " + "  ".join(f"{f} loss {v['loss']:.3f} acc {v['accuracy']:.2f} tpf {v['tpf_0.9']:.1f}" for f, v in found.items()), flush=True)

    def run(self) -> None:
        """Train to the end of --tokens, or to --stop-after minutes."""
        args, began = self.args, time.time()
        saved = assessed = shown = began
        seen, losses = self.cursor.tokens, []
        while self.cursor.tokens < args.tokens:
            if self.cursor.batch == 0:
                self.cursor.progress = self.progress
            batches = chunk(
                self.tokenizer,
                seed=args.seed,
                number=self.cursor.chunk,
                progress=self.cursor.progress,
                batch_tokens=args.batch_tokens,
                problems=args.chunk_problems,
            )
            while self.cursor.batch < len(batches):
                group = batches[self.cursor.batch : self.cursor.batch + args.step_batches]
                losses.append(self.update(*group))
                if not math.isfinite(losses[-1]):
                    raise FloatingPointError(f"the loss is {losses[-1]} at step {self.cursor.step}; resume with a smaller --lr than {args.lr}")
                self.cursor.batch += len(group)
                now = time.time()
                if now - shown > args.show_seconds:
                    speed = (self.cursor.tokens - seen) / (now - began)
                    left = (args.tokens - self.cursor.tokens) / speed / 60
                    print(f"{self.progress:6.1%}  step {self.cursor.step}  loss {np.mean(losses):.3f}  {speed:,.0f} tokens/s  {left:.0f} min left", flush=True)
                    self.note({"loss": round(float(np.mean(losses)), 4), "tokens_per_s": round(speed)})
                    losses, shown = [], now
                stop = (
                    (args.stop_after and now - began > 60 * args.stop_after)
                    or (args.stop_step and self.cursor.step >= args.stop_step)
                    or self.cursor.tokens >= args.tokens
                )
                if stop or now - saved > 60 * args.save_minutes:
                    if self.cursor.batch == len(batches):
                        self.cursor.chunk, self.cursor.batch = self.cursor.chunk + 1, 0
                    self.save()
                    export(self.average, self.cfg, self.tokenizer, self.work / "latest")
                    saved = now
                    if stop:
                        return
                    if self.cursor.batch == 0:
                        break
                if args.eval_minutes and now - assessed > 60 * args.eval_minutes:
                    self.assess()
                    assessed = time.time()
            else:
                self.cursor.chunk, self.cursor.batch = self.cursor.chunk + 1, 0


def parser() -> Parser:
    """Options; the defaults are the recipe of the bundled model."""
    gpu = torch.cuda.is_available()
    p = Parser(prog="python -m polestar train-demo", description="Train the bundled model from nothing; the same command resumes.")
    p.add_argument("--out", default=str(Path(__file__).resolve().parents[2] / "assets" / "demo"), help="checkpoint directory, written at the end")
    p.add_argument("--work", default="~/.cache/polestar/train-demo", help="state, log and latest checkpoint of the run")
    p.add_argument("--tokens", type=float, default=30e6, help="tokens of the whole training (default 30e6)")
    p.add_argument("--batch-tokens", type=int, default=16384 if gpu else 2048, help="tokens of a batch")
    p.add_argument("--step-batches", type=int, default=2, help="batches of an optimiser step")
    p.add_argument("--chunk-problems", type=int, default=CHUNK_PROBLEMS * (8 if gpu else 1), help="problems generated and sorted by length at a time")
    p.add_argument("--device", default="cuda" if gpu else "cpu")
    p.add_argument("--threads", type=int, default=2, help="CPU threads, each on a batch of its own")
    p.add_argument("--seed", type=int, default=5)
    p.add_argument("--d-model", type=int, default=192)
    p.add_argument("--layers", type=int, default=5)
    p.add_argument("--heads", type=int, default=6)
    p.add_argument("--mlp", type=int, default=512)
    p.add_argument("--lr", type=float, default=0.01, help="Muon's rate")
    p.add_argument("--adam-lr", type=float, default=3e-3)
    p.add_argument("--constant", type=float, default=0.4, help="share of the training with a constant rate, before it falls linearly to 0")
    p.add_argument("--ema", type=float, default=0.998, help="decay of the averaged weights")
    p.add_argument("--save-minutes", type=float, default=4)
    p.add_argument("--eval-minutes", type=float, default=30, help="0: never")
    p.add_argument("--eval-n", type=int, default=16, help="held-out problems a family in each evaluation")
    p.add_argument("--show-seconds", type=float, default=20)
    p.add_argument("--stop-after", type=float, default=0, help="minutes after which to save and stop; 0: at the end")
    p.add_argument("--stop-step", type=int, default=0, help="optimiser step at which to save and stop; 0: at the end")
    return p


def main(argv: list[str] | None = None) -> int:
    """Train, or go on training. Returns 0 when the training is complete or stopped as asked."""
    args = parser().parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    trainer = Trainer(args)
    resumed = trainer.load()
    parameters = sum(p.numel() for p in trainer.model.parameters())
    state = "resumed" if resumed else "start"
    print(f"{state} at step {trainer.cursor.step}, {parameters / 1e6:.2f} M parameters, {trainer.cfg.vocab_size} rows, {args.device}", flush=True)
    trainer.run()
    if trainer.cursor.tokens >= args.tokens:
        if args.eval_minutes:
            trainer.assess()
        export(trainer.average, trainer.cfg, trainer.tokenizer, Path(args.out))
        print(f"complete: {args.out}", flush=True)
    else:
        print(f"stopped at step {trainer.cursor.step} of about {int(trainer.cursor.step / max(trainer.progress, 1e-9))}; the same command resumes", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

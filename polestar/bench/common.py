"""What the commands share: options, settings as NAME=VALUE, loading, progress.

Contract: wrong options end with status 2 through argparse; what cannot be done is a `CommandError`, one sentence.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from polestar.config import PRESETS, DecodeConfig


class CommandError(Exception):
    """The command cannot be done; the message is the sentence to print."""


def run(name: str, body: Callable[[argparse.Namespace], int | None], parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parse and run; turn foreseeable errors into one line on stderr and status 1."""
    args = parser.parse_args(argv)
    try:
        return body(args) or 0
    except (CommandError, ValueError, OSError, RuntimeError) as problem:
        print(f"polestar {name}: {problem}", file=sys.stderr)
        return 1


def at_least(low: int) -> Callable[[str], int]:
    """An argparse type: a whole number of at least `low`."""

    def parse(text: str) -> int:
        if not text.lstrip("-").isdigit() or int(text) < low:
            raise argparse.ArgumentTypeError(f"takes a whole number from {low} on, not {text!r}")
        return int(text)

    return parse


def read_text(path: str) -> str:
    """A text file. Raises CommandError when it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as problem:
        raise CommandError(f"cannot read {path} ({(problem.strerror or str(problem)).lower()}); give a file that is there") from None
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not UTF-8 text; give a text file") from None


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """--model, --dtype, --device, --quantize, --threads, --quiet."""
    parser.add_argument("--model", default="demo", help="a name of `polestar models`, or a directory (default: demo, the bundled model)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: what suits the device")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, mps; default: the best there is")
    parser.add_argument("--quantize", choices=("8bit", "4bit"), help="hold the projections in 8 or 4 bits (needs bitsandbytes)")
    parser.add_argument("--threads", type=at_least(1), help="CPU threads of the engine")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no remarks")


def add_decode_options(parser: argparse.ArgumentParser) -> None:
    """--preset, --gen-length, --block-length, --seed, --set."""
    parser.add_argument("--preset", default="paper", choices=PRESETS)
    parser.add_argument("--gen-length", type=int, metavar="N", help="tokens to generate (default 256)")
    parser.add_argument("--block-length", type=int, metavar="N", help="block length B (default 32)")
    parser.add_argument("--seed", type=int, metavar="N")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="any other parameter, e.g. --set alpha=5 tau_s=0.8")


def add_graphs_option(parser: argparse.ArgumentParser) -> None:
    """--graphs."""
    parser.add_argument(
        "--graphs", action="store_true", help="record passes within a block as CUDA graphs and replay them (needs a GPU; never run on one so far)"
    )


def config_from(args: argparse.Namespace, method: str) -> DecodeConfig:
    """The config that the options describe; corrections are said on stderr."""
    values: dict[str, Any] = {}
    for pair in args.set:
        name, equals, value = pair.partition("=")
        if not equals:
            raise CommandError(f"--set takes NAME=VALUE, not {pair!r}; write for example --set alpha=5")
        values[name] = value
    for name in ("gen_length", "block_length", "seed"):
        if getattr(args, name) is not None:
            values[name] = getattr(args, name)
    config = DecodeConfig.make(method=method, preset=args.preset, **values)
    if not args.quiet:
        for sentence in config.corrections:
            print(f"polestar: {sentence}", file=sys.stderr)
    return config


def load(args: argparse.Namespace):
    """The model that the options name."""
    import torch

    from polestar.models.checkpoint import load_model

    if args.threads:
        torch.set_num_threads(args.threads)
    return load_model(args.model, device=args.device, dtype=args.dtype, quantize=args.quantize)


def prompt_ids_from(loaded, *, text: str | None, ids: str | None) -> list[int]:
    """Token ids of --prompt (in the model's chat template) or of --prompt-ids."""
    if ids is not None:
        try:
            return [int(part) for part in ids.split(",") if part.strip()]
        except ValueError:
            raise CommandError(f"--prompt-ids takes whole numbers with commas between, not {ids!r}") from None
    if not text or not text.strip():
        raise CommandError("the prompt is empty; give --prompt some text")
    return loaded.codec.encode_chat(text)


class Progress:
    """A bar on stderr for work that takes more than two seconds; silent before, when quiet, and when stderr is not a terminal."""

    def __init__(self, total: int, what: str, *, quiet: bool = False):
        self.total, self.what, self.quiet = total, what, quiet or not sys.stderr.isatty()
        self.started, self.bar, self.done = monotonic(), None, 0

    def advance(self, n: int = 1) -> None:
        """`n` more units are done."""
        self.done += n
        if self.quiet or (self.bar is None and monotonic() - self.started < 2):
            return
        if self.bar is None:
            from tqdm import tqdm

            self.bar = tqdm(total=self.total, desc=self.what, leave=False, file=sys.stderr)
        self.bar.update(self.done - self.bar.n)

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()


def write_text(path: str, text: str) -> None:
    """Write a file whole or not at all; "-" is stdout."""
    if path == "-":
        print(text)
        return
    target = Path(path)
    if not target.parent.is_dir():
        raise CommandError(f"cannot write {path}: there is no folder {target.parent}; make it or name another")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")  # opened as usual, so that the file gets the usual permissions
    try:
        temporary.write_text(text + "\n", encoding="utf-8")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)

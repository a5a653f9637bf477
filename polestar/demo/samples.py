"""`polestar samples`: the sample traces that ship with the page (assets/traces), one a method, on the bundled model.

Contract: every file is a real decode at level `full`, with its token texts inside, so that it opens without the model. The same bundled model gives
the same traces apart from times.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from polestar.arguments import Parser
from polestar.bench import common
from polestar.config import DecodeConfig
from polestar.decoders import METHODS

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "traces"
PROMPT = "Take the day that is 4 days before Sunday, then the one 5 days before that. What is it?"


def parser() -> Parser:
    """The options of the command."""
    p = Parser(prog="polestar samples", description="Decode one prompt with every method that is made for the model's family, and save the traces.")
    common.add_model_options(p)
    p.add_argument("--prompt", default=PROMPT)
    p.add_argument("--gen-length", type=int, default=96, metavar="N")
    p.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    return common.run("samples", _samples, parser(), argv)


def _samples(args: argparse.Namespace) -> int:
    from polestar.driver import decoder_for
    from polestar.trace.trace import Trace

    loaded = common.load(args)
    ids = loaded.codec.encode_chat(args.prompt)
    args.out.mkdir(parents=True, exist_ok=True)
    # Rows that belong to another family's logits (the shift) have no sample on this model.
    names = [name for name in METHODS if not name.endswith("-dream")]
    bar = common.Progress(len(names), "samples", quiet=args.quiet)
    for name in names:
        decoder = decoder_for(loaded, ids, DecodeConfig.make(method=name, gen_length=args.gen_length), level="full", prompt_text=args.prompt)
        decoder.warm_up()
        trace = Trace(decoder.header)
        while (step := decoder.step()) is not None:
            trace.append(step)
        trace.status = "done"
        trace.save(args.out / f"{name}.safetensors", loaded.codec)
        bar.advance()
    bar.close()
    return 0

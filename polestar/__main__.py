"""`python -m polestar COMMAND ...`: the command line.

Contract: a table of subcommands, each a `main(argv) -> int` in a module of its own, imported when it is used. Exit status 0: done; 1: it could
not be done (one sentence on stderr); 2: the command line is wrong.
"""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "generate": ("polestar.bench.generate", "decode one prompt, as text, JSON or a trace file"),
    "compare": ("polestar.bench.compare", "several methods on one prompt or a file of prompts, as a table"),
    "models": ("polestar.models.cli", "list, show, download and check named checkpoints"),
    "export": ("polestar.bench.export", "turn a trace file into HTML, CSV or Parquet"),
    "samples": ("polestar.demo.samples", "make the sample traces of the page with the bundled model"),
    "train-demo": ("polestar.demo.train", "train the bundled model from nothing"),
    "bench engine": ("polestar.bench.engine", "decode time against the time of the model rows alone"),
    "bench overhead": ("polestar.bench.overhead", "what Polestar adds to each kind of pass, straightforward and fused"),
    "bench page": ("polestar.bench.page", "decode time with the page open against without"),
    "bench kernels": ("polestar.bench.kernels", "kernels: checks, times, and ahead-of-time compilation"),
    "bench gpu": ("polestar.bench.gpu", "kernels, memory and speed on a GPU"),
    "bench demo": ("polestar.bench.demo", "accuracy and speed on the bundled model's held-out problems"),
    "bench methods": ("polestar.bench.methods", "every method on the same problems"),
}


def usage() -> str:
    """The list of commands."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return f"usage: python -m polestar COMMAND [options]   (COMMAND --help tells its options)\n\n{rows}"


def main(argv: list[str] | None = None) -> int:
    """Run the command that `argv` names."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help") or argv == ["bench", "--help"] or argv == ["bench", "-h"]:
        print(usage())
        return 0
    if argv[0] == "--version":
        from polestar import __version__

        print(__version__)
        return 0
    words = 2 if argv[0] == "bench" and len(argv) > 1 else 1
    name = " ".join(argv[:words])
    if name not in COMMANDS:
        print(f"polestar: there is no command {name!r}; python -m polestar --help lists them", file=sys.stderr)
        return 2
    try:
        return importlib.import_module(COMMANDS[name][0]).main(argv[words:])
    except KeyboardInterrupt:
        print("polestar: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    sys.exit(main())

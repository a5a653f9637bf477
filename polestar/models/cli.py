"""`polestar models`: list the named checkpoints, show one, fetch one, check a directory.

Contract: `main(argv)` returns the exit status: 0 done, 1 it could not be done (one sentence on stderr), 2 a wrong command line (argparse).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from polestar.arguments import Parser
from polestar.models import families, machine, registry, weights
from polestar.models.registry import Entry


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand."""
    parser = Parser(prog="polestar models", description="Named checkpoints: list, show, download, check.")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("list", help="every named checkpoint (the default)")
    show = commands.add_parser("show", help="what a checkpoint needs and what this machine has")
    show.add_argument("name")
    fetch = commands.add_parser("download", help="fetch a checkpoint; an interrupted download goes on where it stopped")
    fetch.add_argument("name")
    fetch.add_argument("--dir", help="put it here instead of in the hub's cache")
    fetch.add_argument("--offline", action="store_true", help="fetch nothing; only say whether it is here")
    fetch.add_argument("--yes", action="store_true", help="do not ask before fetching")
    check = commands.add_parser("check", help="compare the tensors of a checkpoint with its config, without loading it")
    check.add_argument("name", help="a name or a directory")
    args = parser.parse_args(argv)
    run = {"show": _show, "download": _download, "check": _check}.get(args.command, _list)
    try:
        return run(args)
    except (OSError, ValueError, RuntimeError) as error:
        print(f"polestar models: {error}", file=sys.stderr)
        return 1


def size(entry: Entry) -> machine.Size:
    """Parameters of an entry; the bundled model's are counted from its config."""
    if entry.size is not None:
        return entry.size
    from polestar.models.checkpoint import DEMO

    return machine.size_of(weights.build(families.read_config(DEMO)))


def table() -> list[dict[str, str]]:
    """One row a checkpoint, as text: for the command line and the page."""
    from polestar.models.download import cached

    rows = []
    for entry in registry.REGISTRY:
        of = size(entry)
        rows.append(
            {
                "name": entry.name,
                "family": entry.family,
                "parameters": f"{(of.linear + of.other) / 1e9:.2f} B" if of.linear > 1e8 else f"{(of.linear + of.other) / 1e6:.1f} M",
                "bf16": machine.gb(of.bytes(torch.bfloat16)),
                "8-bit": machine.gb(of.bytes(torch.bfloat16, "8bit")),
                "4-bit": machine.gb(of.bytes(torch.bfloat16, "4bit")),
                "licence": entry.licence,
                "revision": entry.revision[:10] or ("bundled" if not entry.repo else "main"),
                "here": "yes" if not entry.repo or cached(entry) else "no",
                "repository": entry.repo or "assets/demo",
                "about": entry.about,
            }
        )
    return rows


def _list(_args: argparse.Namespace) -> int:
    rows = table()
    columns = ["name", "family", "parameters", "bf16", "8-bit", "4-bit", "licence", "revision", "here", "repository"]
    widths = {c: max(len(c), *(len(r[c]) for r in rows)) for c in columns}
    for row in [{c: c for c in columns}, *rows]:
        print("  ".join(row[c].ljust(widths[c]) for c in columns).rstrip())
    print("\nA directory of the LLaDA, Dream or A2D family works in place of a name. `?`: see the model card.")
    return 0


def _known(name: str) -> Entry:
    entry = registry.find(name)
    if entry is None:
        raise ValueError(f"there is no model named {name!r}; `polestar models` lists the names")
    return entry


def _show(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from polestar.models.download import before, cached

    entry = _known(args.name)
    print(f"{entry.name}: {entry.about}. Licence {entry.licence}.")
    if entry.repo:
        where = cached(entry)
        print(f"{entry.repo} at {entry.revision or 'main'}; {'here: ' + str(where) if where else 'not on this machine'}.")
    print("\n".join(before(replace(entry, size=size(entry)), machine.this_machine())))
    return 0


def _download(args: argparse.Namespace) -> int:
    from polestar.models import download as fetch

    entry = _known(args.name)
    if entry.repo and (found := fetch.cached(entry, args.dir)) is not None:
        print(found)
        return 0
    if entry.repo and not args.offline:
        print("\n".join(fetch.before(entry, machine.this_machine())), file=sys.stderr)
        if not args.yes and not _agreed(f"Fetch {machine.gb(entry.size.bytes(torch.bfloat16))} from {entry.repo}? [y/N] "):
            print("polestar models: nothing was fetched; answer y or give --yes", file=sys.stderr)
            return 1
    print(fetch.download(entry, directory=args.dir, offline=args.offline))
    return 0


def _agreed(question: str) -> bool:
    """The answer to a yes/no question; no where nobody can answer."""
    if not sys.stdin.isatty():
        return False
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _check(args: argparse.Namespace) -> int:
    from polestar.models.checkpoint import locate

    name, revision, path = locate(args.name)
    cfg = families.read_config(path)
    if cfg.tied_head and weights.ships_head(cfg, path):
        from dataclasses import replace

        cfg = replace(cfg, tied_head=False)
    model = weights.build(cfg)
    weights.fill(model, path, lambda *_: None)
    of = machine.size_of(model)
    print(
        f"{name} {revision[:10]}: {cfg.family}, {(of.linear + of.other) / 1e6:.1f} M parameters, {cfg.n_layers} layers, "
        f"mask {cfg.mask_id}, eos {', '.join(map(str, cfg.eos_ids))}, shift {'yes' if cfg.shift else 'no'}; all tensors present and finite"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

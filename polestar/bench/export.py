"""`polestar export`: a trace file as one HTML page, or as tables.

Contract: reads a trace without its model; writes whole files or none.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from polestar.arguments import Parser
from polestar.bench import common


def parser() -> Parser:
    """The options of the command."""
    p = Parser(prog="polestar export", description="A saved trace as one self-contained HTML file, or as CSV or Parquet tables.")
    p.add_argument("trace", help="the trace file; with --with a second one for lane B")
    p.add_argument("--with", dest="other", metavar="TRACE", help="lane B of the HTML page")
    p.add_argument("--html", metavar="FILE", help="one page that opens offline and scrubs")
    p.add_argument("--tables", metavar="FOLDER", help="steps, commits, drift and clusters as tables")
    p.add_argument("--format", choices=("csv", "parquet"), default="csv", help="of the tables")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    return common.run("export", _export, parser(), argv)


def _export(args: argparse.Namespace) -> int:
    from polestar.trace.file import load
    from polestar.trace.frames import export_tables
    from polestar.trace.html import export_html

    if not args.html and not args.tables:
        raise common.CommandError("nothing to write; give --html FILE or --tables FOLDER")
    trace = load(args.trace)
    if args.html:
        lanes = [trace] + ([load(args.other)] if args.other else [])
        done = export_html(lanes, Path(args.html))
        print(args.html + (f" ({', '.join(done)})" if done else ""))
    if args.tables:
        for path in export_tables(trace, args.tables, args.format):
            print(path)
    return 0

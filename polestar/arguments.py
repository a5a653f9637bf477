"""Command lines: options as argparse has them, errors as one sentence.

Contract: a `Parser` whose command line is wrong says so in one line on stderr, names the way to its options, and ends with status 2. The long usage
is for --help alone. Knows no command and imports nothing heavy.
"""

from __future__ import annotations

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that does not print its usage before an error. Parsers of subcommands are of this class too."""

    def error(self, message: str) -> NoReturn:
        """One line, with where the options are told. Raises SystemExit(2)."""
        start = "python " if self.prog.endswith(".py") else "python -m " if self.prog.split()[0] == "polestar" else ""
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; {start}{self.prog} --help tells the options\n")

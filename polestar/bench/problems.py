"""The problems that benchmarks ask: the bundled model's held-out ones, or a file.

Contract: a `Question` has a prompt, a family and a check of an answer's text that returns an empty string, or in a few words what is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from polestar.bench.common import CommandError

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Question:
    """One problem of a benchmark."""

    family: str
    prompt: str
    check: Callable[[str], str]


def demo_questions(n: int, families: Sequence[str] | None = None) -> list[Question]:
    """`n` held-out problems of the bundled model, spread over `families` (default all) as evenly as can be. Raises CommandError."""
    from polestar.demo.problems import FAMILIES, held_out_set

    families = list(families or FAMILIES)
    for family in families:
        if family not in FAMILIES:
            raise CommandError(f"no family is called {family!r}; choose among {', '.join(FAMILIES)}")
    shares = [n // len(families) + (i < n % len(families)) for i in range(len(families))]
    return [Question(f, p.prompt, p.check) for f, share in zip(families, shares, strict=True) if share for p in held_out_set(f, share)]


def last_number(text: str) -> str | None:
    """The last number in a text, without thousands separators and a trailing .0; None when there is none."""
    found = NUMBER.findall(text)
    if not found:
        return None
    number = found[-1].replace(",", "")
    return number.rstrip("0").rstrip(".") if "." in number else number


def same_number(wanted: str) -> Callable[[str], str]:
    """A check that an answer's last number is `wanted`."""

    def check(text: str) -> str:
        got = last_number(text)
        return "" if got == wanted else f"{got or 'no number'} instead of {wanted}"

    return check


def read_questions(path: str, limit: int | None = None) -> list[Question]:
    """Questions of a file of JSON lines with "question" (or "prompt"), "answer" and perhaps "family". Raises CommandError naming the line."""
    found: list[Question] = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            prompt, wanted = record.get("question") or record["prompt"], last_number(str(record["answer"]))
        except (ValueError, KeyError, AttributeError, TypeError):
            raise CommandError(f'line {number} of {path} lacks "question" or "answer"; give both as JSON') from None
        if wanted is None:
            raise CommandError(f"the answer in line {number} of {path} holds no number; answers are compared by their last number")
        found.append(Question(str(record.get("family", Path(path).stem)), prompt, same_number(wanted)))
        if limit is not None and len(found) == limit:
            break
    if not found:
        raise CommandError(f"{path} holds no problem; write one JSON object a line")
    return found

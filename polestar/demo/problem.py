"""What a problem is: a prompt, one of its many good answers, and the check that tells whether a text answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Problem:
    """`check(text)` returns an empty string when the text is a right answer, else the reason in a few words."""

    family: str
    kind: str
    prompt: str
    answer: str
    check: Callable[[str], str] = field(repr=False, compare=False)

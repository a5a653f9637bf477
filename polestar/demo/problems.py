"""The families of problems, and which problems are held out of training.

Contract: `generate(family, rng)` is a pure function of the state of `rng`; `Problem.check(text)` accepts every good answer, not only
the generated one. A problem is held out of training when crc32 of its prompt is a multiple of 50 (`held_out`).
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator

from polestar.demo import code, facts, lists, math, story
from polestar.demo.problem import Problem

HELD_OUT_MODULUS = 50
FAMILIES: dict[str, Callable[[random.Random], Problem]] = {
    "math": math.word_problem,
    "list": lists.problem,
    "story": story.problem,
    "code": code.problem,
    "facts": facts.problem,
    "calc": math.calculations,
}


def held_out(prompt: str) -> bool:
    """True for the prompts that training never sees."""
    return zlib.crc32(prompt.encode()) % HELD_OUT_MODULUS == 0


def generate(family: str, rng: random.Random) -> Problem:
    """A problem of `family` (see `FAMILIES`). Raises KeyError for an unknown family."""
    return FAMILIES[family](rng)


def stream(family: str, seed: int, *, held: bool) -> Iterator[Problem]:
    """Problems of one family without end: only held-out ones, or only training ones. The order follows from `seed` alone."""
    rng = random.Random(f"{family}/{seed}/{held}")
    while True:
        problem = generate(family, rng)
        if held_out(problem.prompt) == held:
            yield problem


def held_out_set(family: str, n: int, seed: int = 2024) -> list[Problem]:
    """The first `n` held-out problems of a family, each prompt once."""
    found: dict[str, Problem] = {}
    for problem in stream(family, seed, held=True):
        found.setdefault(problem.prompt, problem)
        if len(found) == n:
            return list(found.values())
    raise AssertionError("stream is endless")

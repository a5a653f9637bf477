"""List operations after ParallelBench: copy, reverse, sort, insert, remove, replace, shuffle, alone or chained.

Contract: items are distinct single words or numbers. The answer shows each stage and ends with a line `Result: a, b, c`. A text is right when
that line is exactly right; where the last operation is a shuffle, any other order of exactly the right items is.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from polestar.demo.problem import Problem
from polestar.demo.words import ANIMALS, FRUIT, NAMES, capital, manner, number_word, pick

KINDS = ["copy", "reverse", "sort", "insert", "remove", "replace", "shuffle"]


@dataclass(frozen=True)
class Operation:
    """`ask`: imperative words; `done`: how the stage is introduced; `items`: the list after it."""

    kind: str
    ask: str
    done: str
    items: list[str]


def _items(rng: random.Random) -> tuple[list[str], list[str]]:
    """A list and words of the same sort that are not in it."""
    n = rng.choice([4, 5, 5, 6, 6, 7, 8])
    pool = rng.choice([NAMES, FRUIT, ANIMALS, None])
    words = [str(x) for x in rng.sample(range(1, 60), n + 2)] if pool is None else rng.sample(pool, min(n + 2, len(pool)))
    return words[:-2], words[-2:]


def apply(rng: random.Random, kind: str, items: list[str], spare: list[str]) -> Operation:
    """One operation on the items, with its arguments drawn from `rng`."""
    number = items[0].isdigit()
    if kind == "copy":
        return Operation(kind, "copy it", pick(manner(rng, kind), "The copy is", "Copied"), list(items))
    if kind == "reverse":
        ask = pick(rng, "reverse it", "put it in reverse order")
        return Operation(kind, ask, pick(manner(rng, ask), "Reversed", "In reverse order"), items[::-1])
    if kind == "sort":
        ordered = sorted(items, key=int) if number else sorted(items)
        how = "from small to large" if number else "by the alphabet"
        return Operation(kind, f"sort it {how}", pick(manner(rng, how), "Sorted", f"Sorted {how}"), ordered)
    if kind == "insert":
        new = spare[0]
        where = rng.choice(["start", "end", "after"])
        if where == "after":
            i = rng.randrange(len(items))
            out = [*items[: i + 1], new, *items[i + 1 :]]
            place = f"after {items[i]}"
        else:
            out, place = ([new, *items], "at the start") if where == "start" else ([*items, new], "at the end")
        ask = pick(rng, "insert", "put")
        return Operation(kind, f"{ask} {new} {place}", pick(manner(rng, ask), f"With {new} {place}", f"After adding {new}"), out)
    if kind == "remove":
        gone = rng.choice(items)
        ask = pick(rng, "remove", "take out")
        done = pick(manner(rng, ask), f"Without {gone}", f"After removing {gone}")
        return Operation(kind, f"{ask} {gone}", done, [x for x in items if x != gone])
    if kind == "replace":
        old, new = rng.choice(items), spare[1]
        done = pick(manner(rng, kind), f"With {new} for {old}", f"After replacing {old}")
        return Operation(kind, f"replace {old} with {new}", done, [new if x == old else x for x in items])
    if kind == "shuffle":
        out = list(items)
        while out == items:
            rng.shuffle(out)
        ask = pick(rng, "shuffle it", "put it in a random order")
        return Operation(kind, ask, pick(manner(rng, ask), "Shuffled", "In a random order"), out)
    raise KeyError(kind)


def result_line(text: str) -> list[str] | None:
    """Items of the last line `Result: ...`, or None when the text does not end with one."""
    found = re.search(r"Result: ([^\n]+)$", text.strip())
    return [x.strip() for x in found.group(1).rstrip(".").split(",")] if found else None


def problem(rng: random.Random) -> Problem:
    """A list and one to three operations (a shuffle comes last)."""
    items, spare = _items(rng)
    kinds = rng.sample(KINDS, rng.choice([1, 1, 2, 2, 3]))
    if len(kinds) > 1:
        kinds = [k for k in kinds if k not in ("shuffle", "copy")] + [k for k in kinds if k == "shuffle"]
    done: list[Operation] = []
    current = items
    for kind in kinds:
        done.append(apply(rng, kind, current, spare))
        current = done[-1].items
    listed = ", ".join(items)
    asks = ", then ".join(op.ask for op in done)
    form = rng.randrange(3)
    prompt = (f"Take the list {listed} and {asks}.", f"Here is a list: {listed}. {capital(asks)}.", f"Start with {listed}. {capital(asks)}.")[form]
    how = manner(rng, "list", form, len(done))
    parts = []
    if how.random() < 0.7:
        parts.append(pick(how, f"The list is {listed}.", f"We start with {listed}.", f"The list has {number_word(len(items))} items: {listed}."))
    elif how.random() < 0.4:
        parts.append(pick(how, f"The list has {number_word(len(items))} items.", f"The first item is {items[0]} and the last is {items[-1]}."))
    stages = [f"{op.done}: {', '.join(op.items)}." for op in done]
    if len(done) > 1 or not parts or how.random() < 0.9:
        parts += stages
    if how.random() < 0.4:
        n = len(current)
        parts.append(pick(how, f"Now there are {number_word(n)} items.", f"The first item is now {current[0]}.", f"The last item is now {current[-1]}."))
    sep = pick(how, "\n", " ")
    answer = sep.join(parts) + ("\n" if parts else "") + f"Result: {', '.join(current)}"

    def check(text: str) -> str:
        got = result_line(text)
        if got is None:
            return "no result line"
        if kinds[-1] == "shuffle":
            before = done[-2].items if len(done) > 1 else items
            return "" if sorted(got) == sorted(before) and got != before else "not another order of the same items"
        return "" if got == current else "the result is not right"

    return Problem("list", "+".join(kinds), prompt, answer, check)

"""Calendar and sequence facts, worked out in words.

Contract: every answer ends with a line `Answer: ...`; a text is right when that line is exactly right.
"""

from __future__ import annotations

import random
import re
from itertools import pairwise

from polestar.demo.problem import Problem
from polestar.demo.words import DAYS, LETTERS, MONTH_DAYS, MONTHS, join, manner, number_word, pick, skeleton


def answer_line(text: str) -> str | None:
    """What follows the last `Answer: `, or None."""
    found = re.search(r"Answer: ([^\n]+)$", text.strip())
    return found.group(1).strip() if found else None


def _make(kind: str, prompt: str, body: str, answer: str) -> Problem:
    def check(text: str) -> str:
        got = answer_line(text)
        return "" if got == answer else f"answer {got!r}, not {answer!r}"

    return Problem("facts", kind, prompt, f"{body}\nAnswer: {answer}", check)


def _ask(rng: random.Random, kind: str, *ways: str) -> tuple[str, random.Random]:
    """One way to put the question, and what decides the layout of its answer."""
    prompt = pick(rng, *ways)
    return prompt, manner(rng, kind, skeleton(prompt))


def _cycle(rng: random.Random, names: list[str], unit: str, question: str, kind: str) -> Problem:
    """Which day or month comes n after or before another."""
    n = rng.randint(3, 9)
    forward = rng.random() < 0.6
    start = rng.randrange(len(names))
    walk = [names[(start + (i if forward else -i)) % len(names)] for i in range(n + 1)]
    side = "after" if forward else "before"
    prompt, how = _ask(
        rng,
        "cycle",
        f"{question} is {n} {unit}s {side} {walk[0]}?",
        f"{question} comes {n} {unit}s {side} {walk[0]}?",
        f"Name the {unit} that is {n} {unit}s {side} {walk[0]}.",
    )
    style = how.randrange(4)
    if style == 0:
        body = f"{walk[0]} comes first. " + " ".join(f"{number_word(i).capitalize()} {side} is {walk[i]}." for i in range(1, n + 1))
    elif style == 1:
        body = pick(how, "Count step by step: ", "We count: ") + ", ".join(f"{i} {walk[i]}" for i in range(1, n + 1)) + "."
    elif style == 2:
        body = f"Start at {walk[0]} and go {number_word(n)} steps " + ("forward" if forward else "back") + f": {join(walk[1:])}."
    else:
        body = f"{side.capitalize()} {walk[0]} comes {walk[1]}" + "".join(f", then {w}" for w in walk[2:]) + "."
    if how.random() < 0.4:
        body += " " + pick(how, f"So it is {walk[-1]}.", f"That is {walk[-1]}.", f"After {number_word(n)} steps we are at {walk[-1]}.")
    return _make(kind, prompt, body, walk[-1])


def _range(rng: random.Random) -> Problem:
    """List the months or letters from one to another, and how many they are."""
    if rng.random() < 0.6:
        n, start = rng.randint(5, 11), rng.randrange(12)
        items, unit = [MONTHS[(start + i) % 12] for i in range(n)], "months"
    else:
        n = rng.randint(6, 12)
        start = rng.randrange(26 - n + 1)
        items, unit = LETTERS[start : start + n], "letters"
    prompt, how = _ask(
        rng,
        "range",
        f"List the {unit} from {items[0]} to {items[-1]} and count them.",
        f"Which {unit} run from {items[0]} to {items[-1]}, and how many are there?",
    )
    style = how.randrange(4)
    if style == 0:
        body = f"The {unit} are {join(items)}."
    elif style == 1:
        body = " ".join(f"{i + 1} {x}" + ("," if i < n - 1 else ".") for i, x in enumerate(items))
    elif style == 2:
        body = f"There are {number_word(n)} {unit} from {items[0]} to {items[-1]}: {join(items)}."
    else:
        body = f"We begin with {items[0]}" + "".join(f", then {x}" for x in items[1:-1]) + f" and end with {items[-1]}."
    if how.random() < 0.3:
        body += f" That makes {number_word(n)} {unit}."
    return _make("range", prompt, body, f"{n} {unit}")


def _sequence(rng: random.Random) -> Problem:
    """Continue an arithmetic sequence."""
    step, n = rng.choice([2, 3, 4, 5, 6, 7, 8, 9, 10]), rng.randint(4, 7)
    up = rng.random() < 0.65
    start = rng.randint(1, 99 - step * (n + 2)) if 99 - step * (n + 2) >= 1 else 1
    terms = [start + step * i for i in range(n + 3)]
    terms = [t for t in terms if t < 100]
    if not up:
        terms.reverse()
    shown, rest = terms[:3], terms[3:]
    given, more = ", ".join(map(str, shown)), ", ".join(map(str, rest))
    prompt, how = _ask(
        rng, "sequence", f"Continue the sequence {given} with {len(rest)} more numbers.", f"What are the next {len(rest)} numbers after {given}?"
    )
    op, word = ("+", "up") if up else ("-", "down")
    body = pick(
        how,
        f"The numbers go {word} by {step}.",
        f"Each step is {op} {step}.",
        f"From {shown[0]} to {shown[1]} the step is {step}, so we count {word} by {step}.",
    )
    lines = [f"{a} {op} {step} = {b}" for a, b in pairwise(shown[2:] + rest)]
    body += " " + (", ".join(lines) + "." if how.random() < 0.5 else "Then " + ", then ".join(lines) + ".")
    return _make("sequence", prompt, body, more)


def _month_days(rng: random.Random) -> Problem:
    """How many days two neighbouring months have together."""
    i = rng.randrange(12)
    j = (i + rng.choice([1, 1, 2, 3])) % 12
    a, b, x, y = MONTHS[i], MONTHS[j], MONTH_DAYS[i], MONTH_DAYS[j]
    prompt, how = _ask(
        rng,
        "month_days",
        f"How many days do {a} and {b} have together?",
        f"Add the days of {a} and the days of {b} in a common year.",
        f"What is the number of days in {a} plus {b}?",
    )
    body = pick(
        how,
        f"{a} has {x} days. {b} has {y} days. Together that is {x} + {y} = {x + y}.",
        f"{a} has {x} days and {b} has {y} days, so we add {x} + {y} = {x + y}.",
        f"In a common year {b} has {y} days and {a} has {x}. The sum is {y} + {x} = {y + x}.",
    )
    if how.random() < 0.4:
        body += f" {a} comes after {MONTHS[i - 1]} and before {MONTHS[(i + 1) % 12]}."
    return _make("days", prompt, body, f"{x + y} days")


def _legs(rng: random.Random) -> Problem:
    """Two walks, the second from where the first ended."""
    names, unit = rng.choice([(DAYS, "day"), (MONTHS, "month"), (MONTHS, "month")])
    here = rng.randrange(len(names))
    start, parts, asks = names[here], [], []
    for leg in range(2):
        n, side = rng.randint(2, 6), rng.choice(["after", "before"])
        walk = [names[(here + (i if side == "after" else -i)) % len(names)] for i in range(n + 1)]
        here = names.index(walk[-1])
        asks.append(f"{n} {unit}s {side} " + (walk[0] if not leg else "that"))
        parts.append((n, side, walk))
    prompt, how = _ask(
        rng,
        "legs",
        f"Find the {unit} {asks[0]}. Which {unit} is {asks[1]}?",
        f"Take the {unit} that is {asks[0]}, then the one {asks[1]}. What is it?",
        f"Which {unit} is {parts[1][0]} {unit}s {parts[1][1]} the {unit} that is {asks[0]}?",
    )
    style = how.randrange(3)
    lines = []
    for leg, (n, side, walk) in enumerate(parts):
        if style == 0:
            lines.append(
                f"{'First we' if not leg else 'Then we'} go {number_word(n)} {unit}s {'on' if side == 'after' else 'back'} from {walk[0]}: {join(walk[1:])}."
            )
        elif style == 1:
            lines.append(f"{side.capitalize()} {walk[0]} comes {walk[1]}" + "".join(f", then {w}" for w in walk[2:]) + ".")
        else:
            lines.append(f"From {walk[0]} we count " + ", ".join(f"{i} {w}" for i, w in enumerate(walk) if i) + ".")
    if how.random() < 0.4:
        lines.insert(0, pick(how, f"We start at {start}.", "This takes two walks.", f"We walk twice, from {start} and from {parts[1][2][0]}."))
    if how.random() < 0.4:
        lines.append(pick(how, f"So it is {names[here]}.", f"We end at {names[here]}."))
    return _make("legs", prompt, pick(how, " ", "\n").join(lines), names[here])


def _order(rng: random.Random) -> Problem:
    """Months, days or letters out of order, put in order."""
    names, unit, by = rng.choice(
        [
            (MONTHS, "months", "in the order of the year"),
            (MONTHS, "months", "in the order of the year"),
            (DAYS, "days", "in the order of the week"),
            (LETTERS, "letters", "in the order of the alphabet"),
        ]
    )
    given = rng.sample(names, rng.randint(4, 6))
    back = rng.random() < 0.25
    out = sorted(given, key=names.index, reverse=back)
    if back:
        by += ", last one first"
    prompt, how = _ask(
        rng,
        "order",
        f"Put the {unit} {join(given)} {by}.",
        f"Which order do {join(given)} have? Name the {unit} {by}.",
        f"Arrange these {unit} {by}: {', '.join(given)}.",
    )
    style = how.randrange(4)
    if style == 0:
        body = f"The {unit} are {join(given)}. {out[0]} comes first. " + " ".join(f"Then comes {x}." for x in out[1:])
    elif style == 1:
        body = f"{out[0]} is first" + "".join(f", then {x}" for x in out[1:-1]) + f", and {out[-1]} is last."
    elif style == 2:
        body = f"There are {number_word(len(out))} {unit}. " + " ".join(f"{a} comes before {b}." for a, b in pairwise(out))
    else:
        body = " ".join(f"{i + 1} {x}" + ("," if i < len(out) - 1 else ".") for i, x in enumerate(out)) + f" The first is {out[0]} and the last is {out[-1]}."
    return _make("order", prompt, body, ", ".join(out))


def _every(rng: random.Random) -> Problem:
    """Every second or third month, day or letter from one on."""
    names, unit = rng.choice([(MONTHS, "month"), (DAYS, "day"), (LETTERS, "letter"), (LETTERS, "letter")])
    step, n = rng.choice([2, 3]), rng.randint(4, 6)
    word = {2: "second", 3: "third"}[step]
    start = rng.randrange(len(names) - step * (n - 1)) if names is LETTERS else rng.randrange(len(names))
    out = [names[(start + step * i) % len(names)] for i in range(n)]
    prompt, how = _ask(
        rng,
        "every",
        f"Name every {word} {unit} from {out[0]} on, {number_word(n)} in all.",
        f"Start at {out[0]} and take every {word} {unit} until you have {number_word(n)}.",
    )
    skipped = [[names[(start + step * i + j) % len(names)] for j in range(1, step)] for i in range(n - 1)]
    style = how.randrange(3)
    if style == 0:
        body = f"We take {out[0]}. " + " ".join(f"We leave out {join(s)} and take {x}." for s, x in zip(skipped, out[1:], strict=True))
    elif style == 1:
        body = f"From {out[0]} go {number_word(step)} on each time" + "".join(f", then {x}" for x in out[1:]) + "."
    else:
        body = " ".join(f"After {a} skip {join(s)}." for a, s in zip(out, skipped, strict=False)) + f" The last one is {out[-1]}."
    return _make("every", prompt, body, ", ".join(out))


def problem(rng: random.Random) -> Problem:
    """One calendar or sequence question."""
    kind = rng.choice(["day", "month", "range", "sequence", "sequence", "days", "legs", "legs", "order", "order", "every"])
    if kind == "day":
        return _cycle(rng, DAYS, "day", "Which day", kind)
    if kind == "month":
        return _cycle(rng, MONTHS, "month", "Which month", kind)
    return {"range": _range, "sequence": _sequence, "days": _month_days, "legs": _legs, "order": _order, "every": _every}[kind](rng)

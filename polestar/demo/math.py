"""Word problems of two and three steps whose results are reused, and bare calculations (the sub-skill).

Contract: operands below 50, results from 0 to 99, whole numbers only. The answer works step by step, in varied wording, order and
length, and ends with `#### N`. A text is right when its last line is `####` and the right number.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from polestar.demo.problem import Problem
from polestar.demo.words import CONTAINERS, NAMES, PRICED, THINGS, capital, manner, number_word, pick, pronoun, skeleton

OPS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a // b}
EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


@dataclass(frozen=True)
class Step:
    """One calculation and what its result means: '{who} {verb} 12 {what}'."""

    a: int
    op: str
    b: int
    who: str
    verb: str
    what: str

    @property
    def result(self) -> int:
        return OPS[self.op](self.a, self.b)


def wrong_equations(text: str) -> list[str]:
    """Equations in the text that do not hold."""
    bad = []
    for a, op, b, c in EQUATION.findall(text):
        a, b, c = int(a), int(b), int(c)
        holds = (b != 0 and a == b * c) if op == "/" else OPS[op](a, b) == c
        if not holds:
            bad.append(f"{a} {op} {b} = {c}")
    return bad


def final_number(text: str) -> int | None:
    """The number after the last ####, or None."""
    found = re.findall(r"#### (\d+)\s*$", text.strip())
    return int(found[-1]) if found else None


def _times(rng: random.Random, cap: int = 99) -> tuple[int, int]:
    """Factors with a product up to `cap`: small tables mostly."""
    b = rng.choice([2, 2, 3, 3, 4, 5, 6, 7, 8, 9])
    return rng.randint(2, min(12 if b > 2 else 30, cap // b)), b


def calculations(rng: random.Random) -> Problem:
    """One to four bare calculations, short: the tables that word problems need."""
    lines = []
    for _ in range(rng.randint(1, 4)):
        op = rng.choice("++--*/")
        if op == "+":
            a, b = rng.randint(1, 60), rng.randint(1, 39)
        elif op == "-":
            a = rng.randint(2, 99)
            b = rng.randint(1, min(a, 49))
        elif op == "*":
            a, b = _times(rng)
            if rng.random() < 0.5:
                a, b = b, a
        else:
            q, b = _times(rng)
            a = q * b
        lines.append((a, op, b))
    prompt = pick(rng, "Compute ", "Work out ", "What is ") + ", ".join(f"{a} {o} {b}" for a, o, b in lines) + pick(rng, ".", "?")
    answer = "\n".join(f"{a} {o} {b} = {OPS[o](a, b)}" for a, o, b in lines)

    def check(text: str) -> str:
        return "" if text.strip() == answer else "a result is wrong"

    return Problem("calc", f"calc{len(lines)}", prompt, answer, check)


# -- situations: each gives (sentences, question, steps)

Situation = tuple[list[str], str, list[Step]]


def _change(rng: random.Random, who: str, n: int, what: str, more: bool) -> tuple[str, str]:
    """A sentence in which `who` gains or loses, and its operator."""
    friend = rng.choice([x for x in NAMES if x != who])
    if more:
        text = pick(rng, f"{who} buys {n} more {what}.", f"{who} finds {n} {what}.", f"{friend} gives {who} {n} {what}.", f"Then {pronoun(who)} gets {n} more.")
        return text, "+"
    text = pick(rng, f"{who} gives {n} {what} to {friend}.", f"{who} loses {n} {what}.", f"{who} sells {n} of them.", f"Then {pronoun(who)} gives away {n}.")
    return text, "-"


def _chain(rng: random.Random, n_steps: int) -> Situation:
    """Has a number of things; gains, loses, doubles."""
    who, what = rng.choice(NAMES), rng.choice(THINGS)
    value = rng.randint(4, 45)
    sentences = [pick(rng, f"{who} has {value} {what}.", f"{who} starts with {value} {what}.", f"At first {who} has {value} {what}.")]
    steps: list[Step] = []
    for _ in range(n_steps):
        roll = rng.random()
        if roll < 0.12 and value <= 45:
            sentences.append(pick(rng, f"Then {pronoun(who)} doubles the number.", f"The number of {what} doubles."))
            step = Step(value, "*", 2, who, "has", what)
        else:
            more = value < 12 or (value < 75 and roll < 0.56)
            n = rng.randint(2, min(49, 99 - value)) if more else rng.randint(2, min(49, value - 2))
            text, op = _change(rng, who, n, what, more)
            sentences.append(text)
            step = Step(value, op, n, who, "has", what)
        steps.append(step)
        value = step.result
    question = pick(
        rng, f"How many {what} does {who} have now?", f"How many {what} does {pronoun(who)} have in the end?", f"How many {what} are left with {who}?"
    )
    return sentences, question, steps


def _compare(rng: random.Random, n_steps: int) -> Situation:
    """Second person has more, fewer or times as many; the question is about both together."""
    a, b = rng.sample(NAMES, 2)
    what = rng.choice(THINGS)
    x = rng.randint(3, 40)
    forms = [f for f, ok in (("more", True), ("fewer", x > 5), ("times", x <= 24)) if ok]
    form = rng.choice(forms)
    if form == "more":
        n = rng.randint(2, min(30, 95 - 2 * x)) if x < 40 else 2
        first, text = Step(x, "+", n, b, "has", what), f"{b} has {n} more {what} than {a}."
    elif form == "fewer":
        n = rng.randint(2, x - 2)
        first, text = Step(x, "-", n, b, "has", what), f"{b} has {n} fewer {what} than {a}."
    else:
        n = 2 if x > 12 else rng.randint(2, min(5, 80 // x - 1)) if x > 2 else 3
        first, text = Step(x, "*", n, b, "has", what), f"{b} has {number_word(n)} times as many {what} as {a}."
    given = pick(rng, f"{a} has {x} {what}.", f"{a} owns {x} {what}.")
    sentences = [given, text] if rng.random() < 0.7 else [text, given]
    both = Step(x, "+", first.result, "they", "have", what) if rng.random() < 0.5 else Step(first.result, "+", x, "they", "have", what)
    steps = [first, both]
    question = pick(rng, f"How many {what} do they have together?", f"How many {what} do {a} and {b} have in all?")
    if n_steps == 3 and both.result > 6:
        lost = rng.randint(2, min(40, both.result - 2))
        sentences.append(pick(rng, f"Together they sell {lost} {what}.", f"They give away {lost} of all their {what}."))
        steps.append(Step(both.result, "-", lost, "they", "have", what))
        question = f"How many {what} do they have left?"
    return sentences, question, steps


def _boxes(rng: random.Random, n_steps: int) -> Situation:
    """Some containers with as many things in each, then changes."""
    who, what = rng.choice(NAMES), rng.choice(THINGS)
    one, many = rng.choice(CONTAINERS)
    per, n = _times(rng, 90)
    sentences = [
        pick(rng, f"{who} has {n} {many} with {per} {what} in each {one}.", f"There are {n} {many} of {what} and each {one} holds {per}. They belong to {who}.")
    ]
    steps = [Step(n, "*", per, who, "has", what)]
    value = steps[0].result
    for _ in range(n_steps - 1):
        more = value < 10 or (value < 70 and rng.random() < 0.45)
        m = rng.randint(2, min(49, 99 - value)) if more else rng.randint(2, min(49, value - 2))
        text, op = _change(rng, who, m, what, more)
        sentences.append(text)
        steps.append(Step(value, op, m, who, "has", what))
        value = steps[-1].result
    return sentences, pick(rng, f"How many {what} does {who} have now?", f"How many {what} does {who} have in the end?"), steps


def _share(rng: random.Random, n_steps: int) -> Situation:
    """Things are shared equally; then each friend gets more or loses some."""
    who, what = rng.choice(NAMES), rng.choice(THINGS)
    q, n = _times(rng, 96)
    n, q = (n, q) if n <= 9 else (q, n)
    total = q * n
    sentences, steps = [], []
    if n_steps == 3 and total > 8:
        had = rng.randint(max(2, total - 45), total - 2)
        sentences += [f"{who} has {had} {what}.", f"{who} buys {total - had} more."]
        steps.append(Step(had, "+", total - had, who, "has", what))
    else:
        sentences.append(f"{who} has {total} {what}.")
    sentences.append(
        pick(rng, f"{who} shares them equally among {n} friends.", f"{capital(pronoun(who))} splits them into {n} equal parts, one for each of {n} friends.")
    )
    steps.append(Step(total, "/", n, "each friend", "gets", what))
    if q > 4 and rng.random() < 0.4:
        m = rng.randint(2, q - 2)
        sentences.append(f"Then each friend loses {m}.")
        steps.append(Step(q, "-", m, "each friend", "has", what))
    else:
        m = rng.randint(2, 40)
        sentences.append(f"Then each friend gets {m} more.")
        steps.append(Step(q, "+", m, "each friend", "has", what))
    return sentences, f"How many {what} does each friend have now?", steps


def _shop(rng: random.Random, n_steps: int) -> Situation:
    """A few of one thing and one of another; in three steps, the change."""
    who = rng.choice(NAMES)
    x, y = rng.sample(PRICED, 2)
    price, n = _times(rng, 60)
    n, price = min(n, price), max(n, price)
    other = rng.randint(2, 49 if n * price < 50 else 30)
    sentences = [pick(rng, f"A {x} costs {price} dollars and a {y} costs {other} dollars.", f"Each {x} costs {price} dollars. A {y} costs {other} dollars.")]
    sentences.append(pick(rng, f"{who} buys {n} {x}s and one {y}.", f"{who} buys one {y} and {n} {x}s."))
    steps = [Step(n, "*", price, f"the {x}s", "cost", "dollars")]
    total = Step(steps[0].result, "+", other, who, "pays", "dollars")
    steps.append(total)
    question = pick(rng, f"How many dollars does {who} pay?", f"How much does {pronoun(who)} pay in dollars?")
    if n_steps == 3 and total.result < 97:
        paid = rng.randint(total.result + 2, min(99, total.result + 45))
        sentences.append(f"{who} has {paid} dollars.")
        steps.append(Step(paid, "-", total.result, who, "has", "dollars"))
        question = f"How many dollars does {who} have left?"
    return sentences, question, steps


SITUATIONS = {"chain": _chain, "compare": _compare, "boxes": _boxes, "share": _share, "shop": _shop}
LEADS = [["First,", "To start,", "At first,"], ["Then", "Next,", "After that,"], ["Finally,", "Then", "Last,"]]


def _explain(rng: random.Random, step: Step, index: int, last: bool, style: int) -> str:
    """One step in words. Styles differ in order and length; style 3 states the result before the calculation."""
    lead = "Finally," if last and index and rng.random() < 0.5 else rng.choice(LEADS[min(index, 2)][:2])
    equation, who = f"{step.a} {step.op} {step.b} = {step.result}", step.who
    state = f"{who} {step.verb} {step.result} {step.what}"
    if style == 0:
        return f"{lead} {equation}, so {state}."
    if style == 1:
        return f"{lead} {who} {step.verb} {equation} {step.what}."
    if style == 2:
        return f"{equation}. " + capital(pick(rng, f"{state}.", f"now {state}.", f"that means {state}."))
    if style == 3:
        return f"{lead} {state}, because {equation}."
    return f"{equation}"


def explain(rng: random.Random, sentences: list[str], steps: list[Step]) -> str:
    """A worked answer: perhaps the given facts, the steps, a closing sentence, `#### N`."""
    parts = []
    if rng.random() < 0.3:
        parts.append(pick(rng, "We know this: ", "The facts are: ") + (sentences[0] if rng.random() < 0.5 else " ".join(sentences)))
    elif rng.random() < 0.4:
        parts.append(pick(rng, f"This takes {number_word(len(steps))} steps.", "Let us work step by step.", f"We need {number_word(len(steps))} calculations."))
    style = rng.choice([0, 0, 1, 1, 2, 2, 3, 4])
    fixed = rng.random() < 0.6
    lines = []
    for i, step in enumerate(steps):
        lines.append(_explain(rng, step, i, i == len(steps) - 1, style if fixed or style == 4 else rng.randrange(4)))
    parts.append("\n".join(lines) if style == 4 else (" " if rng.random() < 0.6 else "\n").join(lines))
    end = steps[-1]
    if rng.random() < 0.7:
        parts.append(pick(rng, f"So {end.who} {end.verb} {end.result} {end.what}.", f"The answer is {end.result} {end.what}.", f"The result is {end.result}."))
    return ("\n" if rng.random() < 0.5 or style == 4 else " ").join(parts) + f"\n#### {end.result}"


def word_problem(rng: random.Random) -> Problem:
    """A word problem of two or three steps."""
    n_steps = rng.choice([2, 2, 3])
    kind = rng.choice(["chain", "chain", "compare", "boxes", "share", "shop"])
    sentences, question, steps = SITUATIONS[kind](rng, n_steps)
    result = steps[-1].result

    def check(text: str) -> str:
        got = final_number(text)
        return "" if got == result else f"final answer {got}, not {result}"

    answer = explain(manner(rng, kind, n_steps, skeleton(question)), sentences, steps)
    return Problem("math", f"{kind}{len(steps)}", " ".join([*sentences, question]), answer, check)

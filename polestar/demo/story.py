"""Short stories and schedules whose names, months, objects and order must agree across the text.

Contract: sentences come from templates with slots; one binding of the slots holds for the whole text. The same templates read a text back:
it is right when every sentence is one of them, the sentences come in a legal order, no slot has two values, derived slots (the next month, the
pronoun) follow from the others, and what the prompt fixed is there. What the prompt leaves open is the writer's choice.
"""

from __future__ import annotations

import random
import re
from functools import cache

from polestar.demo.problem import Problem
from polestar.demo.words import ANIMALS, DAYS, MONTHS, NAMES, capital, join, manner, number_word, pick, possessive, pronoun, skeleton

COLORS = ["red", "blue", "green", "yellow", "white", "black"]
OBJECTS = ["kite", "lamp", "map", "ring", "drum", "coat", "boat", "clock"]
PLACES = ["garden", "forest", "market", "river", "school", "station", "harbor", "tower"]
FOODS = ["soup", "bread", "cake", "rice", "cheese"]
MOODS = ["happy", "proud", "tired", "calm", "glad"]
SLOTS = {
    "a": NAMES,
    "b": NAMES,
    "color": COLORS,
    "obj": OBJECTS,
    "place": PLACES,
    "place2": PLACES,
    "animal": ANIMALS,
    "food": FOODS,
    "mood": MOODS,
    "m": MONTHS,
    "next": MONTHS,
    "day": DAYS,
    "he": ["he", "she"],
    "his": ["his", "her"],
}

# Stages in order; (how many sentences, templates). {He} is {he} at the start of a sentence.
STAGES: list[tuple[tuple[int, int], list[str]]] = [
    (
        (1, 1),
        [
            "In {m}, {a} lost a {color} {obj}.",
            "{a} had a {color} {obj} and lost it in {m}.",
            "One day in {m}, {a} could not find {his} {color} {obj}.",
            "It was {m} when {a} lost {his} {obj}, a {color} one.",
        ],
    ),
    (
        (1, 3),
        [
            "{He} looked in the {place}, but the {obj} was not there.",
            "{a} asked {b} about the {color} {obj}.",
            "{b} had seen a {animal} near the {place}.",
            "{b} came to help {a}.",
            "The {obj} was not in the {place}.",
            "{He} was sad without the {color} {obj}.",
        ],
    ),
    (
        (1, 2),
        [
            "Then a {animal} came with the {obj}.",
            "On {day}, a {animal} ran out of the {place2} with the {obj}.",
            "At the {place2}, {a} and {b} saw a {animal}.",
            "{b} found the {obj} at the {place2}.",
        ],
    ),
    ((0, 1), ["{a} gave {food} to the {animal}.", "The {animal} wanted {food}, and {a} gave it some."]),
    (
        (1, 2),
        [
            "{a} thanked {b} and they went home.",
            "So {a} had {his} {color} {obj} back.",
            "In the end {a} was {mood}, and so was {b}.",
            "In {next}, {a} and {b} still talked about the {animal}.",
            "By {next} the {color} {obj} had a new place at home.",
        ],
    ),
]
ACTIVITIES = ["read", "swim", "paint", "cook", "sing", "run", "write", "dance", "fish", "travel"]


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """The template as a regular expression with one named group for each mention of a slot."""
    count = 0

    def group(match: re.Match[str]) -> str:
        nonlocal count
        slot = match.group(1)
        count += 1
        if slot == "He":
            return f"(?P<he__{count}>He|She)"
        return f"(?P<{slot}__{count}>{'|'.join(SLOTS[slot])})"

    escaped = re.sub(r"\\([{}])", r"\1", re.escape(template))
    return re.compile(re.sub(r"\{(\w+)\}", group, escaped))


def read(sentence: str, template: str) -> list[tuple[str, str]] | None:
    """(slot, value) pairs of a sentence made from the template, or None."""
    found = _pattern(template).fullmatch(sentence)
    if found is None:
        return None
    return [(name.split("__")[0], value.lower() if name.startswith("he__") else value) for name, value in found.groupdict().items()]


def check_story(text: str, fixed: dict[str, str]) -> str:
    """Empty when the text is a consistent story with the fixed slots, else the reason."""
    sentences = re.findall(r"[^.]+\.", text.strip())
    if "".join(sentences).strip() != text.strip() or not sentences:
        return "not whole sentences"
    bound = dict(fixed)
    stage, used = 0, [0] * len(STAGES)
    seen: set[str] = set()
    for sentence in (s.strip() for s in sentences):
        for at in range(stage, len(STAGES)):
            matches = [(t, r) for t in STAGES[at][1] if (r := read(sentence, t)) is not None]
            if matches:
                break
        else:
            return f"no such sentence here: {sentence}"
        template, pairs = matches[0]
        if template in seen:
            return "a sentence twice"
        seen.add(template)
        stage = at
        used[at] += 1
        for slot, value in pairs:
            if bound.setdefault(slot, value) != value:
                return f"{slot} is {bound[slot]} and {value}"
    for (low, high), n in zip((s[0] for s in STAGES), used, strict=True):
        if not low <= n <= high:
            return "a part of the story is missing or too long"
    if "a" in bound and "b" in bound and bound["a"] == bound["b"]:
        return "a person meets themself"
    if "next" in bound and bound["next"] != MONTHS[(MONTHS.index(bound["m"]) + 1) % 12]:
        return f"{bound['next']} does not follow {bound['m']}"
    if bound.get("he", pronoun(bound["a"])) != pronoun(bound["a"]) or bound.get("his", possessive(bound["a"])) != possessive(bound["a"]):
        return "wrong pronoun"
    if bound.get("place") and bound.get("place") == bound.get("place2"):
        return "found where it was not"
    missing = [v for k, v in fixed.items() if v not in text]
    return f"{missing[0]} is not in the story" if missing else ""


def _story(rng: random.Random) -> Problem:
    a, b = rng.sample(NAMES, 2)
    place, place2 = rng.sample(PLACES, 2)
    month = rng.randrange(12)
    slots = {
        "a": a,
        "b": b,
        "color": rng.choice(COLORS),
        "obj": rng.choice(OBJECTS),
        "place": place,
        "place2": place2,
        "animal": rng.choice(ANIMALS),
        "food": rng.choice(FOODS),
        "mood": rng.choice(MOODS),
        "m": MONTHS[month],
        "next": MONTHS[(month + 1) % 12],
        "day": rng.choice(DAYS),
        "he": pronoun(a),
        "his": possessive(a),
        "He": capital(pronoun(a)),
    }
    prompt, keys = rng.choice(
        [
            ("Tell a story about {a} and {b}.", "ab"),
            ("Tell a story about {a} and {b}, who find a {obj}.", ["a", "b", "obj"]),
            ("Write a short story about {a} and {b} in {m}.", "abm"),
            ("Tell how {a} lost a {obj} in {m} and how {b} helped.", ["a", "obj", "m", "b"]),
            ("Write a story about {a}, {b} and a {animal}.", ["a", "b", "animal"]),
        ]
    )
    how = manner(rng, prompt, pronoun(a))
    while True:
        sentences = []
        for (low, high), templates in STAGES:
            sentences += how.sample(templates, how.randint(low, high))
        text = " ".join(sentences)
        if "{b}" in text and "{animal}" in text:
            break
    fixed = {k: slots[k] for k in keys}
    return Problem("story", "story", prompt.format(**slots), text.format(**slots), lambda t: check_story(t, fixed))


# -- schedules

_LINE = [
    re.compile(r"In (?P<m>\w+), (?P<who>\w+) will (?P<act>\w+)\."),
    re.compile(r"After (?P<pm>\w+) comes (?P<m>\w+), and (?P<who>\w+) will (?P<act>\w+)\."),
    re.compile(r"Then (?P<who>\w+) will (?P<act>\w+) in (?P<m>\w+)\."),
    re.compile(r"In (?P<m>\w+), when (?P<who>\w+) is done with the plan to (?P<pact>\w+), (?P<who2>\w+) will (?P<act>\w+)\."),
]
_SUMMARY = re.compile(r"So the plan of (?P<who>\w+) has (?P<n>\w+) parts: (?P<acts>[\w, ]+)\.")
_SPAN = re.compile(r"It runs from (?P<m>\w+) to (?P<m2>\w+)\.")


def check_schedule(text: str, who: str, units: list[str], wanted: str | None) -> str:
    """Empty when the plan names each month (or day) in order, its own activities once each, and its summary agrees."""
    sentences = [s.strip() for s in re.findall(r"[^.]+\.", text.strip())]
    acts: list[str] = []
    names = {who, pronoun(who)}
    at = 0
    if sentences and sentences[0] == f"This is the plan of {who}.":
        at = 1
    for i, unit in enumerate(units):
        if at >= len(sentences):
            return "the plan ends early"
        found = next((f for p in _LINE if (f := p.fullmatch(sentences[at]))), None)
        if found is None:
            return f"no such sentence here: {sentences[at]}"
        g = found.groupdict()
        if g["m"] != unit or g["who"] not in names or g.get("who2", who) not in names:
            return f"wrong month, day or person: {sentences[at]}"
        if (g.get("pm") and (i == 0 or g["pm"] != units[i - 1])) or (g.get("pact") and (i == 0 or g["pact"] != acts[-1])):
            return f"does not agree with what came before: {sentences[at]}"
        if g["act"] not in ACTIVITIES or g["act"] in acts:
            return f"activity {g['act']} is unknown or comes twice"
        acts.append(g["act"])
        at += 1
    rest = sentences[at:]
    if not rest or not (found := _SUMMARY.fullmatch(rest[0])):
        return "no summary"
    if found["who"] != who or found["n"] != number_word(len(units)) or found["acts"] != join(acts):
        return "the summary does not agree with the plan"
    if len(rest) > 2 or (len(rest) == 2 and (not (span := _SPAN.fullmatch(rest[1])) or [span["m"], span["m2"]] != [units[0], units[-1]])):
        return "the end does not agree with the plan"
    return f"nothing about the wish to {wanted}" if wanted and wanted not in acts else ""


def _schedule(rng: random.Random) -> Problem:
    who = rng.choice(NAMES)
    cycle = MONTHS if rng.random() < 0.65 else DAYS
    n = rng.choice([3, 4, 4, 5])
    start = rng.randrange(len(cycle))
    units = [cycle[(start + i) % len(cycle)] for i in range(n)]
    acts = rng.sample(ACTIVITIES, n)
    wanted = rng.choice(acts) if rng.random() < 0.4 else None
    wish = f" {capital(pronoun(who))} wants to {wanted}." if wanted else ""
    prompt = pick(rng, f"Make a plan for {who} from {units[0]} to {units[-1]}.", f"Write a schedule for {who}, {units[0]} to {units[-1]}.") + wish
    how = manner(rng, skeleton(prompt), pronoun(who))
    sentences = [f"This is the plan of {who}."] if how.random() < 0.4 else []
    for i, (unit, act) in enumerate(zip(units, acts, strict=True)):
        person = who if i == 0 or how.random() < 0.4 else pronoun(who)
        forms = [f"In {unit}, {person} will {act}.", f"Then {person} will {act} in {unit}."] if i else [f"In {unit}, {who} will {act}."]
        if i:
            forms += [
                f"After {units[i - 1]} comes {unit}, and {person} will {act}.",
                f"In {unit}, when {person} is done with the plan to {acts[i - 1]}, {person} will {act}.",
            ]
        sentences.append(how.choice(forms))
    sentences.append(f"So the plan of {who} has {number_word(n)} parts: {join(acts)}.")
    if how.random() < 0.4:
        sentences.append(f"It runs from {units[0]} to {units[-1]}.")
    return Problem("story", "schedule", prompt, " ".join(sentences), lambda t: check_schedule(t, who, units, wanted))


def problem(rng: random.Random) -> Problem:
    """A story or a schedule."""
    return (_story if rng.random() < 0.5 else _schedule)(rng)

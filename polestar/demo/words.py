"""The closed vocabulary: names, things and calendar words that the generators draw from."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

SHE = ["Ava", "Cora", "Ella", "Gina", "Ivy", "Kate", "Mia", "Nora", "Rosa", "Tina", "Wendy"]
HE = ["Ben", "Dan", "Fred", "Hugo", "Jack", "Leo", "Max", "Owen", "Paul", "Sam", "Victor"]
NAMES = sorted(SHE + HE)
THINGS = ["apples", "balls", "books", "cards", "coins", "cups", "eggs", "pens", "shells", "stamps", "stones", "toys"]
PRICED = ["pen", "book", "ball", "cup", "kite", "hat", "lamp", "cake"]
CONTAINERS = [("box", "boxes"), ("bag", "bags"), ("jar", "jars"), ("shelf", "shelves")]
FRUIT = ["apple", "banana", "cherry", "fig", "grape", "lemon", "mango", "olive", "peach", "plum"]
ANIMALS = ["bear", "cat", "dog", "fox", "goat", "horse", "lion", "owl", "rabbit", "wolf"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
LETTERS = [chr(65 + i) for i in range(26)]
ORDINALS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def pronoun(name: str) -> str:
    """'she' or 'he', fixed for each name."""
    return "she" if name in SHE else "he"


def possessive(name: str) -> str:
    """'her' or 'his'."""
    return "her" if name in SHE else "his"


def number_word(n: int) -> str:
    """1 -> 'one' ... 12 -> 'twelve'."""
    return ORDINALS[n - 1]


def join(items: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def pick(rng: random.Random, *options: str) -> str:
    """One of the options."""
    return options[rng.randrange(len(options))]


FREE = 0.12  # share of answers whose layout is anybody's guess
_CONTENT = frozenset(
    w.lower()
    for w in ["she", "he", *NAMES, *THINGS, *PRICED, *(f"{x}s" for x in PRICED), *FRUIT, *ANIMALS, *MONTHS, *DAYS, *ORDINALS, *sum(CONTAINERS, ())]
)


def is_content(word: str) -> bool:
    """Is it a name, thing, calendar word, letter or number, not part of how something is put?"""
    return word.isdigit() or word.lower() in _CONTENT or (len(word) == 1 and word.isupper())


def skeleton(text: str) -> str:
    """How something is put, without what it is about: names, things, numbers, months, days and letters left out."""
    words = re.findall(r"[A-Za-z]+", text)
    return " ".join(w for w in words if not is_content(w))


def manner(rng: random.Random, *key: object) -> random.Random:
    """What decides the layout of an answer (order, wording, what is said besides): mostly how the question is put, so that it can be told from there.

    With layouts drawn freely every masked position is a mixture of many texts, and a decode from a blank canvas commits pieces of several.
    """
    return random.Random(rng.getrandbits(32)) if rng.random() < FREE else random.Random("/".join(map(str, key)))


def capital(text: str) -> str:
    """First letter in upper case, the rest as it is."""
    return text[:1].upper() + text[1:]

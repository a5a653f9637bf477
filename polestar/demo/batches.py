"""What the trainer feeds: chunks of problems sorted by length and cut into batches, masked in two ways.

Contract: `chunk(...)` is a pure function of (seed, number, progress); a run that stops and resumes sees the same batches. Half the samples are masked
uniformly over the answer; half as in decoding: earlier blocks clean, the current block partly masked, later blocks masked with a small loss weight. [EOS] fills
what is left of the canvas.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import numpy as np
from tokenizers import Tokenizer

from polestar.demo.problems import generate, held_out
from polestar.demo.tokenizer import EOS_ID, MASK_ID, chat
from polestar.demo.words import is_content

BLOCK = 32
EARLY = {"math": 0.26, "calc": 0.24, "list": 0.2, "story": 0.1, "code": 0.1, "facts": 0.1}
LATE = {"math": 0.3, "calc": 0.1, "list": 0.19, "story": 0.17, "code": 0.12, "facts": 0.12}
LATER_BLOCKS_WEIGHT = 0.08
EOS_WEIGHT = 0.05
CONTENT_WEIGHT = 2.5  # numbers, names, items, months: what an answer is right or wrong by; how it is put is learnt soon


@dataclass(frozen=True)
class Batch:
    """`inputs`, `targets` [n, L] int64; `weights` [n, L] float32, 0 where nothing is learnt."""

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    @property
    def tokens(self) -> int:
        return self.inputs.size


def encode(tokenizer: Tokenizer, prompt: str, answer: str) -> tuple[list[int], list[int]]:
    """Ids of the chat prompt and of the answer."""
    return tokenizer.encode(chat(prompt)).ids, tokenizer.encode(answer).ids


@cache
def worth(tokenizer: Tokenizer) -> np.ndarray:
    """Loss weight of each token id [vocabulary], float32."""
    words = (tokenizer.decode([i]).strip() for i in range(tokenizer.get_vocab_size()))
    return np.array([CONTENT_WEIGHT if is_content(w) else 1.0 for w in words], np.float32)


def mix(progress: float) -> tuple[list[str], list[float]]:
    """Families and their shares: sub-skills first."""
    t = min(1.0, progress / 0.35)
    return list(EARLY), [EARLY[f] + t * (LATE[f] - EARLY[f]) for f in EARLY]


def mask(
    rng: np.random.Generator, prompt: list[int], answer: list[int], length: int, progress: float, *, semi: bool | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One sample on a canvas of `length`: inputs, targets, weights."""
    n_prompt, end = len(prompt), len(prompt) + len(answer)
    targets = np.full(length, EOS_ID, np.int64)
    targets[:n_prompt], targets[n_prompt:end] = prompt, answer
    weights = np.zeros(length, np.float32)
    hidden = np.zeros(length, bool)
    # From light to full masks over the first 35 % of the training; later every rate, with some extra weight on the extremes.
    top = 0.4 + 0.6 * min(1.0, progress / 0.35)
    rate = float(rng.uniform(0.05, top))
    if semi is None:
        semi = bool(rng.random() < 0.5)
    if semi:
        blocks = max(1, -(-(min(end + 8, length) - n_prompt) // BLOCK))
        block = int(rng.integers(blocks))
        start, stop = n_prompt + block * BLOCK, min(n_prompt + (block + 1) * BLOCK, length)
        hidden[start:stop] = rng.random(stop - start) < rate
        hidden[int(rng.integers(start, stop))] = True
        hidden[stop:] = True
        weights[start:stop], weights[stop:] = 1.0, LATER_BLOCKS_WEIGHT
    else:
        hidden[n_prompt:] = rng.random(length - n_prompt) < rate
        hidden[int(rng.integers(n_prompt, min(end + 1, length)))] = True
        weights[n_prompt:] = 1.0
    weights[end + 1 :] *= EOS_WEIGHT
    weights[~hidden] = 0
    inputs = np.where(hidden, MASK_ID, targets)
    return inputs, targets, weights


def chunk(tokenizer: Tokenizer, *, seed: int, number: int, progress: float, batch_tokens: int, problems: int) -> list[Batch]:
    """A few batches of about `batch_tokens` each, in random order."""
    rng = random.Random(f"train/{seed}/{number}")
    noise = np.random.default_rng([seed, number])
    families, shares = mix(progress)
    samples = []
    while len(samples) < problems:
        problem = generate(rng.choices(families, shares)[0], rng)
        if not held_out(problem.prompt):
            samples.append(encode(tokenizer, problem.prompt, problem.answer))
    samples.sort(key=lambda s: len(s[0]) + len(s[1]))
    batches, group = [], []

    def close() -> None:
        longest = max(len(p) + len(a) for p, a in group)
        # The end of the canvas must not tell the end of the answer: it varies, more so later in the training.
        roll = rng.random()
        extra = rng.randint(33, 160) if roll < 0.06 * progress else rng.randint(9, 48) if roll < 0.15 + 0.3 * progress else rng.randint(1, 8)
        rows = [mask(noise, p, a, longest + extra, progress) for p, a in group]
        inputs, targets, weights = (np.stack(x) for x in zip(*rows, strict=True))
        batches.append(Batch(inputs, targets, weights * worth(tokenizer)[targets]))

    for sample in samples:
        if group and (len(group) + 1) * (len(sample[0]) + len(sample[1]) + 8) > batch_tokens:
            close()
            group = []
        group.append(sample)
    close()
    rng.shuffle(batches)
    return batches

"""Judging decodes of held-out problems: which problems, how long a canvas, what one decode gave, and where results are kept.

Contract: `problem_set(family, n)` is the start of `problem_set(family, n + 1)`. A `Store` is a file of JSON lines, one finished decode each, appended as it
ends; a run that was stopped goes on where it was, and a half-written last line counts for nothing. A decode is named by `Job.key`, the checkpoint's
`fingerprint`, family, prompt and canvas length, so results of other weights or settings are never mixed in.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from polestar.config import DecodeConfig
from polestar.demo.problem import Problem
from polestar.demo.problems import generate, stream

SEED = 2024  # training draws from "train/...", checkpoint selection from seed 7
PATIENCE = 500  # held-out problems in a row that bring no new prompt, after which a family has no more to give
BLOCK = 32
LENGTH_SAMPLE = 2000


def problem_set(family: str, n: int, seed: int = SEED) -> list[Problem]:
    """Up to `n` held-out problems with different prompts; fewer where the family has fewer (a few thousand prompts give few held-out ones)."""
    found: dict[str, Problem] = {}
    idle = 0
    for problem in stream(family, seed, held=True):
        if len(found) >= n or idle >= PATIENCE:
            break
        idle = idle + 1 if problem.prompt in found else 0
        found.setdefault(problem.prompt, problem)
    return list(found.values())


def canvas_length(family: str, encode: Callable[[str], list[int]]) -> int:
    """Generation length for a family: the longest of 2,000 generated answers in this tokenizer and one [EOS], up to a multiple of 32."""
    rng = random.Random(f"length/{family}")
    longest = max(len(encode(generate(family, rng).answer)) for _ in range(LENGTH_SAMPLE))
    return BLOCK * math.ceil((longest + 1) / BLOCK)


def whole_words(problems: Iterable[Problem], encode: Callable[[str], list[int]]) -> float:
    """Share of the prompts' words and numbers that are one token each: low where a tokenizer was trained on another wording."""
    pieces = [p for problem in problems for p in re.findall(r" ?[^\W\d_]+| ?\d+", problem.prompt)]
    return sum(len(encode(p)) == 1 for p in pieces) / len(pieces)


def fingerprint(loaded: Any) -> str:
    """Names weights, tokenizer, arithmetic and engine version: twelve hex digits, dtype, device kind, version."""
    from polestar import __version__

    digest = hashlib.sha256()
    for file in sorted([*loaded.path.glob("*.safetensors"), *loaded.path.glob("tokenizer.json")]):
        with file.open("rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return f"{digest.hexdigest()[:12]}-{str(loaded.dtype).removeprefix('torch.')}-{loaded.device.type}-{__version__}"


@dataclass(frozen=True)
class Job:
    """A method with its settings away from the paper's, as (name, value) pairs in order of name."""

    method: str
    settings: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, method: str, **settings: Any) -> Job:
        """A job; settings that equal the defaults vanish, so that a thing is decoded once whatever table wants it. Raises ValueError on bad ones."""
        if method == "parallel" and settings.get("tau_s", 0) > 1:
            return cls("vanilla")  # one token a pass, the most confident of the block: the same decode
        config, plain = DecodeConfig.make(method=method, **settings), DecodeConfig.make(method=method)
        return cls(method, tuple(sorted((n, config[n]) for n in settings if config[n] != plain[n])))

    @property
    def key(self) -> str:
        return " ".join([self.method, *(f"{n}={'inf' if v == math.inf else v}" for n, v in self.settings)])

    def config(self, gen_length: int) -> DecodeConfig:
        return DecodeConfig.make(method=self.method, gen_length=gen_length, **dict(self.settings))


@dataclass(slots=True, kw_only=True)
class Result:
    """One judged decode. `answer` counts tokens before the first [EOS], `answer_nfe` the passes until they (and that [EOS]) stood.

    `packet_rows` is in positions through the whole model; `text` is kept for wrong answers only.
    """

    model: str
    family: str
    prompt: str  # crc32 of the prompt, hex
    kind: str
    job: str
    gen_length: int
    right: bool
    why: str
    nfe: int
    tokens: int
    non_eos: int
    answer: int
    answer_nfe: int
    rows: int
    packet_rows: float
    seconds: float
    reasons: dict[str, int] = field(default_factory=dict)
    refreshes: int = 0
    text: str = ""

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        return self.model, self.job, self.family, self.prompt, self.gen_length


def crc(prompt: str) -> str:
    """How a problem is named in results."""
    return f"{zlib.crc32(prompt.encode()):08x}"


def judge(trace: Any, problem: Problem, codec: Any, *, model: str, job: Job) -> Result:
    """What a finished decode gave, checked by the problem's own rule on the text before the first [EOS]."""
    m, header = trace.metrics(codec), trace.header
    why = problem.check(m["text"])
    ends = np.flatnonzero(np.isin(trace.tokens, header.eos_ids))
    stop = int(ends[0]) if len(ends) else header.gen_length
    needed = range(header.prompt_length, header.prompt_length + min(stop + 1, header.gen_length))
    last = max(s.index for s in trace if any(c.position in needed for c in s.commits))
    return Result(
        model=model, family=problem.family, prompt=crc(problem.prompt), kind=problem.kind, job=job.key, gen_length=header.gen_length, right=not why, why=why,
        nfe=m["nfe"], tokens=m["tokens"], non_eos=m["non_eos"], answer=stop, answer_nfe=last + 1, rows=m["rows"], packet_rows=m["packet_rows"],
        seconds=m["seconds"], reasons=m["reasons"], refreshes=m["refreshes"], text=m["text"] if why else "",
    )


class Store:
    """Finished decodes on disk; those of one `model` (a fingerprint) in memory too, without their texts."""

    def __init__(self, path: Path, model: str):
        self.path, self.model = path, model
        self.done: dict[tuple, Result] = {}
        self.whole = True  # does the file end with a line end?
        if path.exists():
            with path.open(encoding="utf-8") as file:
                for line in file:
                    self.whole = line.endswith("\n")
                    for result in _results(line):
                        if result.model == model:
                            result.text = ""
                            self.done[result.key] = result

    def add(self, result: Result) -> None:
        """Append a finished decode; it is on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = ("" if self.whole else "\n") + json.dumps(asdict(result), ensure_ascii=False) + "\n"
        with self.path.open("a", encoding="utf-8") as file:  # one write a line: two runs with different shares may fill one file
            file.write(line)
        self.whole = True
        result.text = ""
        self.done[result.key] = result

    def find(self, job: Job, problem: Problem, gen_length: int) -> Result | None:
        """The result of a decode, if it was done."""
        return self.done.get((self.model, job.key, problem.family, crc(problem.prompt), gen_length))


def _results(line: str) -> Iterator[Result]:
    try:
        yield Result(**json.loads(line))
    except (ValueError, TypeError):
        return


def turns(problems: dict[str, list[Problem]], share: tuple[int, int] = (1, 1)) -> Iterator[Problem]:
    """Problems in the order in which they are decoded: the first of each family, the second of each ..., so that a stopped run is balanced.

    `share` (i, m) gives every m-th of them, from the i-th on.
    """
    longest = max(map(len, problems.values()), default=0)
    every = (own[i] for i in range(longest) for own in problems.values() if i < len(own))
    return islice(every, share[0] - 1, None, share[1])

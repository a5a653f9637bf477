"""A scripted engine for tests of the page: every pass commits what the script says, after a set time. No torch.

Run as a program it serves the real page with this engine: `PYTHONPATH=. python tests/browser/fake.py --port 8151 --pass-seconds 0.05`. The prompt's
words become tokens; the answer is the prompt's words over again, so that what is typed comes back as model text.
"""

from __future__ import annotations

import argparse
import threading
import time

import numpy as np

from polestar.breakpoints import EVENTS
from polestar.config import DecodeConfig
from polestar.trace import Clusters, Commit, Header, Step, Trace

LAYERS, CLUSTERS = 3, 8


class WordCodec:
    """Words as tokens; 0 is [EOS], 1 is [MASK]."""

    def __init__(self) -> None:
        self.words = ["<eos>", "<mask>"]

    def encode_chat(self, prompt: str) -> list[int]:
        return [self._id(w) for w in prompt.split(" ")]

    def _id(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)

    def decode(self, ids) -> str:
        return " ".join(self.words[i] for i in ids)

    def token_text(self, i: int) -> str:
        return " " + self.words[i]

    def token_bytes(self, i: int) -> bytes:
        return self.token_text(i).encode()

    def is_special(self, i: int) -> bool:
        return i < 2


class ScriptSession:
    """One token a pass, left to right, with invented numbers of the right shapes."""

    def __init__(self, codec: WordCodec, prompt_ids: list[int], config: DecodeConfig, level: str, seconds: float):
        lp, lg, b = len(prompt_ids), config["gen_length"], config["block_length"]
        self.seconds, self.config, self.codec = seconds, config, codec
        self.trace = Trace(
            Header(
                method=config.method, title=config.method, prompt_ids=prompt_ids, gen_length=lg, block_length=b, mask_id=1, eos_ids=(0,),
                config=config.as_dict(), model="scripted", n_layers=LAYERS, level=level,
                blocks=[(s, min(s + b, lp + lg)) for s in range(lp, lp + lg, b)],
            )
        )  # fmt: skip
        self._stop = threading.Event()
        self._go = threading.Event()
        self._go.set()
        self._once = 0
        self.changes: list = []
        self.breaks: list = []
        self.fired: str | None = None
        self._to: str | None = None
        self.rng = np.random.default_rng(0)

    def pause(self):
        self._go.clear()

    def resume(self):
        self.fired = None
        self._go.set()

    def step_once(self):
        self.fired = None
        self._once += 1

    def run_to(self, event):
        self._to = event
        self.resume()

    def stop(self):
        self._stop.set()
        self._go.set()

    def set(self, name, value):
        self.changes.append((name, value))

    def steps(self):
        h = self.trace.header
        for i in range(h.gen_length):
            while not self._go.is_set():
                if self._once:
                    self._once -= 1
                    break
                self._go.wait(0.01)
            if self._stop.is_set():
                return
            time.sleep(self.seconds)
            step = self._step(i)
            self.trace.append(step)
            said = [s for ask in self.breaks if (s := ask(step, self.trace))]
            if self._to and EVENTS[self._to](step, self.trace[i - 1] if i else None):
                said.append(f"{self._to} at pass {i}")
            if said:
                self.fired, self._to = "; ".join(said), None
                self._go.clear()
            yield step
        self.trace.status = "done"

    def _step(self, i: int) -> Step:
        h, rng = self.trace.header, self.rng
        block, pos = i // h.block_length, h.prompt_length + i
        s, e = h.blocks[block]
        entry = pos == s
        size = e - s
        conf = np.where(np.arange(s, e) >= pos, rng.random(size), np.nan).astype(np.float32)
        window = np.array([p for p in range(max(0, s - 2 * h.block_length), min(h.length, e + h.block_length)) if not s <= p < e], np.int32)
        refresh = not entry and i % 3 == 0
        clusters = None
        if h.method == "polestar" and (entry or refresh):
            clusters = Clusters(
                window=window if entry else None,
                labels=rng.integers(0, CLUSTERS, (LAYERS, len(window))).astype(np.uint8) if entry else None,
                scores=rng.random((LAYERS, CLUSTERS)).astype(np.float32) if refresh else None,
                selected=rng.random((LAYERS, CLUSTERS)) < 0.5 if refresh else None,
                points=rng.normal(size=(LAYERS, len(window) + CLUSTERS, 2)).astype(np.float32),
            )  # fmt: skip
        token = h.prompt_ids[i % h.prompt_length]
        return Step(
            index=i, block=block, block_start=s, block_end=e, kind="entry-full" if entry else "within", refresh=refresh,
            refresh_reason="4 > τ_upd" if refresh else "", count_last=1 if i else None, count_since=i % 3, rows=h.length if entry else size,
            commits=[Commit(pos, token, 0.95, ("confidence", "forced", "drift")[i % 3])], conf=conf,
            argmax=np.where(np.isnan(conf), -1, token).astype(np.int32), drift=None if entry else rng.random(size).astype(np.float32),
            clusters=clusters, seconds=self.seconds, elapsed=(i + 1) * self.seconds,
        )  # fmt: skip


class FakeEngine:
    """`ui.engine.Engine` without an engine."""

    def __init__(self, seconds: float = 0.0):
        self.seconds = seconds
        self.sessions: list[ScriptSession] = []

    def load(self, name, progress=None):
        if name != "demo":
            raise FileNotFoundError(f"there is no model named {name!r} and no such directory")
        return WordCodec()

    def codec(self, loaded):
        return loaded

    def config(self, method, preset, values):
        return DecodeConfig.make(method=method, preset=preset, **values)

    def session(self, loaded, prompt, config, level):
        self.sessions.append(ScriptSession(loaded, loaded.encode_chat(prompt), config, level, self.seconds))
        return self.sessions[-1]


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--pass-seconds", type=float, default=0.0)
    args, rest = p.parse_known_args()
    from ui.launch import parse, serve

    serve(FakeEngine(args.pass_seconds), parse(rest)).block_thread()


if __name__ == "__main__":
    main()

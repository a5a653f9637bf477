"""`python -m polestar bench page`: what an open page costs a decode.

Contract: the same decode (256 passes, one token each, everything logged) runs alternately in a process with no page and in `app.py` with its
page open in headless Chromium. Reported is the wall time of the whole decode, warm, log included, as a ratio of medians. Both are launched
several times, because a process keeps its pace: of two alike, one may be five percent slower for as long as it lives. Needs playwright and
Chromium (requirements-dev.txt); knows the page only by its address, its buttons and its stream.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from polestar.arguments import Parser
from polestar.bench import common

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 1.05
SETTLE = 1.0  # seconds before each decode: what the page and the server do after one is neither's time
SETTINGS = {"gen_length": 256, "tau_s": 1.05}  # numbers of the page
OFF = ("drift_commit", "suffix_commit")  # its switches: without them, and with this τ_s, a pass commits one token
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


class Alone:
    """A process that decodes with no page."""

    def __init__(self, model: str):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_alone, args=(theirs, model), daemon=True)
        self.process.start()
        theirs.close()

    def decode(self, prompt: str) -> float:
        """Seconds of one decode. Raises RuntimeError, one sentence, when the process cannot."""
        self.pipe.send(prompt)
        try:
            answer = self.pipe.recv()
        except EOFError:
            raise RuntimeError("the process that decodes without a page ended; run the same decode with generate to see why") from None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.join(10)


def _alone(pipe: Any, model: str) -> None:
    """Answers each prompt with the seconds of its decode, or with a sentence; the first one warms up."""
    try:
        import torch

        from polestar.config import DecodeConfig
        from polestar.models.checkpoint import load_model
        from polestar.models.machine import cpu_threads
        from polestar.session import Session

        loaded = load_model(model)
        torch.set_num_threads(cpu_threads(loaded.model))  # as the app does
        config, warm = DecodeConfig.make(method="polestar", **SETTINGS, **dict.fromkeys(OFF, False)), False
        while True:
            session = Session(loaded, loaded.codec.encode_chat(pipe.recv()), config, level="full", warm_up=not warm)
            warm, began = True, time.monotonic()
            for _ in session.steps():
                pass
            pipe.send(time.monotonic() - began)
    except (ValueError, OSError, ImportError) as error:
        pipe.send(str(error))


class Watched:
    """app.py with its page open."""

    def __init__(self, play: Any, model: str):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "app.py"), "--model", model, "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        line = self.process.stdout.readline()
        if "http" not in line:
            raise RuntimeError(f"app.py did not start: {line.strip() or 'it said nothing'}")
        path = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
        self.browser = play.chromium.launch(executable_path=path, args=FLAGS)
        self.page = self.browser.new_page(viewport={"width": 1440, "height": 900})
        self.page.goto(f"http://127.0.0.1:{port}/")
        self._wait("() => document.documentElement.dataset.polestar === 'ready'")
        self.page.uncheck("#ps-compare input")
        for name, value in SETTINGS.items():
            box = self.page.locator(f"#ps-{name} input[type=number]").first
            box.fill(str(value))
            box.press("Enter")
            box.blur()
        for name in OFF:
            self.page.uncheck(f"#ps-{name} input")
        self.page.evaluate(
            """() => { window.ended = null; window.updates = 0; const app = window.polestar.app, receive = app.receive;
            app.receive = (m) => { window.updates += 1; receive(m); // only the last message is read twice
                if (m.includes('"end"')) window.ended = JSON.parse(m).events.find((e) => e.type === 'end') ?? window.ended; }; }"""
        )

    def _wait(self, condition: str) -> None:
        self.page.wait_for_function(condition, polling=1000, timeout=600_000)

    def decode(self, prompt: str) -> tuple[float, int, int]:
        """Seconds, passes and screen updates of one decode with the page open."""
        self.page.fill("#ps-prompt textarea", prompt)
        self.page.evaluate("() => { window.ended = null; window.updates = 0; }")
        self.page.click("#ps-run")  # as a person does, which takes the caret out of the prompt
        self._wait("() => window.ended !== null || document.documentElement.dataset.run === 'error'")
        ended = self.page.evaluate("() => window.ended")
        if ended is None:
            raise RuntimeError("the run on the page ended in an error; run it by hand to see the sentence")
        self._wait("() => !document.getElementById('ps-run').disabled")
        return ended["wall"], ended["metrics"]["nfe"], self.page.evaluate("() => window.updates")

    def close(self) -> None:
        """End browser and server."""
        self.browser.close()
        self.process.terminate()
        self.process.wait(10)


def measure(model: str, prompt: str, launches: int, repeats: int, say: Any) -> dict[str, Any]:
    """Times of both, alternating, and the ratio of their medians. Raises ImportError without playwright, RuntimeError where one cannot decode."""
    from playwright.sync_api import sync_playwright

    without, watched, passes, rates = [], [], 0, []
    with sync_playwright() as play:
        for launch in range(launches):
            alone = Alone(model)
            try:
                alone.decode(prompt)
                page = Watched(play, model)
                try:
                    page.decode(prompt)
                    for i in range(repeats):
                        for with_page in (i % 2 == 0, i % 2 == 1):
                            time.sleep(SETTLE)
                            if with_page:
                                seconds, passes, updates = page.decode(prompt)
                                watched.append(seconds)
                                rates.append(updates / seconds)
                            else:
                                without.append(alone.decode(prompt))
                        say(f"launch {launch + 1} of {launches}, {i + 1} of {repeats}: without {without[-1]:.3f} s, with the page {watched[-1]:.3f} s")
                finally:
                    page.close()
            finally:
                alone.close()
    ratio = statistics.median(watched) / statistics.median(without)
    of_launches = [statistics.median(watched[i : i + repeats]) / statistics.median(without[i : i + repeats]) for i in range(0, len(watched), repeats)]
    return {
        "ratio": ratio, "limit": LIMIT, "launches": of_launches, "without": without, "with": watched, "passes": passes,
        "updates_per_second": statistics.median(rates),
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """The command."""
    p = Parser(prog="python -m polestar bench page", description=__doc__.split("\n")[0])
    p.add_argument("--model", default="demo")
    p.add_argument("--prompt", default="Ivy starts with 12 balls. Ivy finds 25 balls. The number of balls doubles. How many balls does she have in the end?")
    p.add_argument("--launches", type=common.at_least(1), default=5, metavar="N", help="fresh pairs of processes (default 5)")
    p.add_argument("--repeats", type=common.at_least(1), default=4, metavar="N", help="decodes of each in a launch (default 4)")
    p.add_argument("--json", metavar="FILE", help="write the figures; - is stdout")
    p.add_argument("--quiet", action="store_true")
    args = p.parse_args(argv)
    try:
        result = measure(args.model, args.prompt, args.launches, args.repeats, lambda line: None if args.quiet else print(line, file=sys.stderr))
    except ImportError:
        print("bench page drives a browser and needs playwright; install requirements-dev.txt and Chromium", file=sys.stderr)
        return 1
    except (OSError, RuntimeError, ValueError) as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return 1
    if args.json:
        common.write_text(args.json, json.dumps(result, indent=1))
    if args.json != "-":
        busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        if busy > 1.5 * (os.cpu_count() or 1):
            print(f"the machine is busy (load {busy:.1f} on {os.cpu_count()} cores), so these times say little; repeat when it is quiet", file=sys.stderr)
        print(
            f"{result['passes']} passes: {statistics.median(result['without']):.3f} s without the page, {statistics.median(result['with']):.3f} s with it; "
            f"ratio {result['ratio']:.3f} (limit {LIMIT}; launch by launch {', '.join(f'{r:.2f}' for r in result['launches'])}); "
            f"{result['updates_per_second']:.1f} updates a second"
        )
    return 0 if result["ratio"] <= LIMIT else 1

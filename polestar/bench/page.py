"""`python -m polestar bench page`: what an open page costs a decode.

Contract: the same decode (256 passes, one token each, everything logged) runs in the app's process with the page open in headless Chromium and with
no browser at all, in pairs, one right after the other. One process does both, because a process keeps its pace: of two alike, one may be five
percent slower for as long as it lives. Reported is the wall time of the whole decode, warm, log included: the median with the page over the median
without in each launch of the app, and the geometric mean of the launches. Needs playwright and Chromium (requirements-dev.txt); knows the page only
by its address, its buttons and its stream, and the process by what it says (ui/beside.py).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
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
    "--disable-component-update", "--disable-sync", "--window-size=1440,1043",
]  # fmt: skip


class App:
    """The app's process, which also decodes with no page looking."""

    def __init__(self, model: str):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ui.beside", "--model", model, "--port", "0"], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))},
        )  # fmt: skip
        line = self.process.stdout.readline()
        if "http" not in line:
            self.close()
            raise RuntimeError(f"app.py did not start: {line.strip() or 'it said nothing'}")
        self.address = next(word for word in line.split() if word.startswith("http"))

    def decode(self, prompt: str) -> float:
        """Seconds of one decode. Raises RuntimeError, one sentence, when the process cannot."""
        values = SETTINGS | dict.fromkeys(OFF, False)
        self.process.stdin.write(json.dumps({"prompt": prompt, "method": "polestar", "values": values}) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):  # not a warning of a library
                said = json.loads(line)
                if "error" in said:
                    raise RuntimeError(said["error"])
                return said["seconds"]
        raise RuntimeError("the app's process ended while it decoded; run the same decode with generate to see why")

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(10)
        self.process.stdin.close()
        self.process.stdout.close()


class Page:
    """The app's page, open in a browser of its own, with the controls set.

    While it decodes nobody is connected to the browser: to one who is, it tells every message of the stream, which takes it longer than to draw them.
    """

    def __init__(self, play: Any, address: str):
        """Raises RuntimeError when there is no Chromium."""
        path = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
        if path is None:
            raise RuntimeError("bench page needs Chromium, and no chromium, chromium-browser or google-chrome is on the path; install one")
        self._chromium, self._folder = play.chromium, tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command = [path, *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={self._folder.name}", address]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = (re.search(r"DevTools listening on ws://([^/]+)/", line) for line in self.process.stderr)
        where = next(filter(None, said), None)
        if where is None:
            self.close()
            raise RuntimeError("Chromium ended before its page was there; start it by hand to see why")
        self.control = f"http://{where[1]}"
        threading.Thread(target=self.process.stderr.read, daemon=True).start()  # what else it says must go somewhere
        with self._connected() as page:
            page.wait_for_function("() => document.documentElement.dataset.polestar === 'ready'")
            page.uncheck("#ps-compare input")
            for name, value in SETTINGS.items():
                box = page.locator(f"#ps-{name} input[type=number]").first
                box.fill(str(value))
                box.press("Enter")
                box.blur()
            for name in OFF:
                page.uncheck(f"#ps-{name} input")
            page.evaluate(
                """() => { const app = window.polestar.app, receive = app.receive;
                app.receive = (m) => { window.updates += 1; receive(m); // only the last message is read twice
                    if (m.includes('"end"')) window.ended = JSON.parse(m).events.find((e) => e.type === 'end') ?? window.ended; }; }"""
            )

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        browser = self._chromium.connect_over_cdp(self.control)
        try:
            yield browser.contexts[0].pages[0]
        finally:
            browser.close()  # only lets go of it

    def decode(self, prompt: str, about: float) -> tuple[float, int, float]:
        """Seconds, passes and screen updates a second of one decode that takes `about` so many seconds. Raises RuntimeError when it ends in an error."""
        with self._connected() as page:
            page.fill("#ps-prompt textarea", prompt)
            page.locator("#ps-prompt textarea").blur()
            page.evaluate("ms => { window.ended = null; window.updates = 0; setTimeout(() => document.getElementById('ps-run').click(), ms); }", 1000 * SETTLE)
        time.sleep(SETTLE + 1.5 * about + 0.5)
        with self._connected() as page:
            page.wait_for_function("() => window.ended || document.documentElement.dataset.run === 'error'", polling=1000, timeout=600_000)
            ended = page.evaluate("() => window.ended")
            if ended is None:
                raise RuntimeError("the run on the page ended in an error; run it by hand to see the sentence")
            page.wait_for_function("() => !document.getElementById('ps-run').disabled")
            return ended["wall"], ended["metrics"]["nfe"], page.evaluate("() => window.updates") / ended["wall"]

    def close(self) -> None:
        """End the browser."""
        self.process.terminate()
        self.process.wait(10)
        self._folder.cleanup()


def measure(model: str, prompt: str, launches: int, pairs: int, say: Any) -> dict[str, Any]:
    """Times of both, launch by launch, and their ratio. Raises ImportError without playwright, RuntimeError where one cannot decode."""
    from playwright.sync_api import sync_playwright

    without: list[list[float]] = []
    watched: list[list[float]] = []
    passes, rates = 0, []
    with sync_playwright() as play:
        for launch in range(launches):
            app, page = App(model), None
            without.append([])
            watched.append([])
            try:
                seconds = app.decode(prompt)
                for i in range(pairs):
                    for with_page in (i % 2 == 1, i % 2 == 0):  # the page stays open for two, closed for two
                        if with_page and page is None:
                            page = Page(play, app.address)
                            page.decode(prompt, seconds)  # the browser warms up
                        elif not with_page and page is not None:
                            page = page.close()
                        if with_page:
                            seconds, passes, rate = page.decode(prompt, seconds)
                            watched[-1].append(seconds)
                            rates.append(rate)
                        else:
                            time.sleep(SETTLE)
                            without[-1].append(seconds := app.decode(prompt))
                    say(f"launch {launch + 1} of {launches}, pair {i + 1} of {pairs}: without {without[-1][-1]:.3f} s, with the page {watched[-1][-1]:.3f} s")
            finally:
                if page is not None:
                    page.close()
                app.close()
    of_launches = [statistics.median(w) / statistics.median(o) for w, o in zip(watched, without, strict=True)]
    return {
        **ratio(of_launches), "limit": LIMIT, "launches": of_launches, "without": without, "with": watched, "passes": passes,
        "updates_per_second": statistics.median(rates),
    }  # fmt: skip


def ratio(of_launches: list[float]) -> dict[str, float | None]:
    """The geometric mean of the launches' ratios, and its standard error by their spread (None of one launch)."""
    mean = statistics.geometric_mean(of_launches)
    error = mean * statistics.stdev(map(math.log, of_launches)) / math.sqrt(len(of_launches)) if len(of_launches) > 1 else None
    return {"ratio": mean, "standard_error": error}


def main(argv: list[str] | None = None) -> int:
    """The command."""
    p = Parser(prog="python -m polestar bench page", description=__doc__.split("\n")[0])
    p.add_argument("--model", default="demo")
    p.add_argument("--prompt", default="Ivy starts with 12 balls. Ivy finds 25 balls. The number of balls doubles. How many balls does she have in the end?")
    p.add_argument("--launches", type=common.at_least(1), default=5, metavar="N", help="times the app is launched afresh (default 5)")
    p.add_argument("--pairs", type=common.at_least(1), default=8, metavar="N", help="pairs of decodes in a launch (default 8)")
    p.add_argument("--json", metavar="FILE", help="write the figures; - is stdout")
    p.add_argument("--quiet", action="store_true")
    args = p.parse_args(argv)
    try:
        result = measure(args.model, args.prompt, args.launches, args.pairs, lambda line: None if args.quiet else print(line, file=sys.stderr))
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
        without, watched = (statistics.median(itertools.chain.from_iterable(result[side])) for side in ("without", "with"))
        error = "" if result["standard_error"] is None else f" ± {result['standard_error']:.3f}"
        print(
            f"{result['passes']} passes: {without:.3f} s without the page, {watched:.3f} s with it; "
            f"ratio {result['ratio']:.3f}{error} (limit {LIMIT}; launch by launch {', '.join(f'{r:.3f}' for r in result['launches'])}); "
            f"{result['updates_per_second']:.1f} updates a second"
        )
    return 0 if result["ratio"] <= LIMIT else 1

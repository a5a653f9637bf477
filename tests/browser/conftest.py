"""A real server, and a real Chromium that may talk to nobody else.

`serve(*args)` starts the page with the scripted engine (tests/browser/fake.py), `serve_app(*args)` with the real one (app.py), each as its
own process on a free port. `tab(url)` opens a page and, at the end of the test, asserts that it asked nothing of another machine and that
its console holds no errors.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
COUNT = "lane => window.polestar.app.store.lanes[lane]?.n ?? 0"
SIZE = {"width": 1440, "height": 900}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server process; `url` once it answers, `seconds` until then, `log` what it has printed."""

    def __init__(self, script: str, *args: str):
        self.port = free_port()
        self.out = ROOT / ".pytest_cache" / f"server-{self.port}.log"
        self.out.parent.mkdir(exist_ok=True)
        began = time.monotonic()
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / script), "--port", str(self.port), *args], stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        self.url = f"http://127.0.0.1:{self.port}/"
        while self.url not in self.log:
            if self.process.poll() is not None or time.monotonic() - began > 60:
                self.process.kill()
                raise RuntimeError(f"the server did not start:\n{self.log}")
            time.sleep(0.02)
        self.seconds = time.monotonic() - began

    @property
    def log(self) -> str:
        return self.out.read_text(errors="replace")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.out.unlink(missing_ok=True)


def _starter(script: str):
    servers: dict[tuple[str, ...], Server] = {}

    def start(*args: str) -> Server:
        if args not in servers:
            servers[args] = Server(script, *args)
        return servers[args]

    return start, servers


@pytest.fixture(scope="package")
def serve():
    start, servers = _starter("tests/browser/fake.py")
    yield start
    for server in servers.values():
        server.close()


@pytest.fixture(scope="package")
def serve_app():
    start, servers = _starter("app.py")
    yield start
    for server in servers.values():
        server.close()


@pytest.fixture(scope="package")
def chromium():
    from playwright.sync_api import sync_playwright

    path = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class Tab:
    """A page of the app with what a test wants to ask of it."""

    def __init__(self, browser, url: str, **context):
        self.context = browser.new_context(viewport=context.pop("viewport", SIZE), **context)
        self.page = self.context.new_page()
        self.outside: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda r: self.outside.append(r.url) if not r.url.startswith((url, "data:", "blob:")) else None)
        # A page that is left while gradio's event stream is open says that it was aborted; that is no fault of the page.
        left = ("AbortError: signal is aborted without reason", "Unexpected error Connection errored out.")
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") and not m.text.startswith(left) else None)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.goto(url)
        try:
            self.wait("() => document.documentElement.dataset.polestar === 'ready'")
        except Exception as error:
            raise AssertionError(f"the page did not come up; its console says {self.errors}") from error

    def js(self, expression: str, *args):
        return self.page.evaluate(expression, *args)

    @property
    def state(self) -> str:
        return self.js("document.documentElement.dataset.run")

    def passes(self, lane: str = "A") -> int:
        """Steps of a lane that have arrived."""
        return self.js(COUNT, lane)

    def wait(self, expression: str, arg=None, timeout: float = 60) -> None:
        """Wait until a javascript function of `arg` is true; asked ten times a second, whatever the page draws."""
        self.page.wait_for_function(expression, arg=arg, timeout=timeout * 1000, polling=100)

    def click(self, name: str) -> None:
        """Press a button; the page may be too busy drawing for a pointer that waits for it to stand still."""
        pressed = self.js("id => { const b = document.getElementById(id); const may = !b.disabled; b.click(); return may; }", f"ps-{name}")
        assert pressed, f"the button {name} is disabled in state {self.state}"

    def run(self, prompt: str | None = None) -> None:
        if prompt is not None:
            self.page.fill("#ps-prompt textarea", prompt)
        self.click("run")

    def number(self, name: str, value: float) -> None:
        """Type into a parameter's number box."""
        box = self.page.locator(f"#ps-{name} input[type=number]").first
        box.fill(str(value))
        box.press("Enter")
        box.blur()

    def wait_state(self, *states: str, timeout: float = 60) -> str:
        self.wait("s => s.includes(document.documentElement.dataset.run)", list(states), timeout)
        return self.state

    def wait_passes(self, count: int, lane: str = "A", timeout: float = 60) -> None:
        self.wait(f"([lane, n]) => ({COUNT})(lane) >= n", [lane, count], timeout)

    def text(self) -> str:
        """What is written in the panels, the shadow tree included."""
        return self.js("document.querySelector('#polestar-bus').shadowRoot.querySelector('.app').innerText")

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def tab(chromium):
    tabs: list[Tab] = []

    def make(url: str, **context) -> Tab:
        tabs.append(Tab(chromium, url, **context))
        return tabs[-1]

    yield make
    for t in tabs:
        outside, errors = t.outside, t.errors
        t.close()
        assert outside == [], "the page asked something of another machine"
        assert errors == [], "the page's console holds errors"

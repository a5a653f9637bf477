"""A run as one HTML file: small, complete, deaf and dumb, and usable in a real browser without a network."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
import time

import numpy as np
import pytest

from polestar.trace import TraceError
from polestar.trace.html import ASSETS, export_html, render
from tests.trace_samples import answer, full_trace

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def log_of(text):
    packed = re.search(r'id="log">([^<]*)<', text)[1]
    return [json.loads(line) for line in gzip.decompress(base64.b64decode(packed)).decode().split("\n")]


def passes_of(text, lane="A"):
    return [s for m in log_of(text) for e in m["events"] if e["type"] == "steps" and e["lane"] == lane for s in e["steps"]]


def test_the_file_holds_every_pass_and_every_module():
    text, done = render([full_trace(30), full_trace(20, seed=1)])
    assert done == [] and [s["i"] for s in passes_of(text)] == list(range(30)) and len(passes_of(text, "B")) == 20
    modules = json.loads(re.search(r'<script type="importmap">(.*?)</script>', text)[1])["imports"]
    sources = {name: base64.b64decode(url.split(",")[1]).decode() for name, url in modules.items()}
    assert "polestar/main.js" in sources
    wanted = {f"polestar/{name}" for s in sources.values() for name in re.findall(r"""from ['"]polestar/([\w.-]+)""", s)}
    assert wanted <= set(sources) and not any(re.search(r"""from ['"]\./""", s) for s in sources.values())
    for name, source in sources.items():
        assert source.replace("'polestar/", "'./") == (ASSETS / "js" / name.split("/")[1]).read_text(encoding="utf-8").replace("'polestar/", "'./")


def test_model_text_is_never_markup():
    trace = full_trace(12)
    hostile = "</script><script>alert(1)</script>"
    trace.vocab[2] = {"t": hostile}
    text, _ = render(trace)
    assert "alert(1)" not in text and hostile in json.dumps(log_of(text))
    named = answer(title="<b>&", method="polestar")
    assert "<title>Polestar: &lt;b&gt;&amp; (paper)</title>" in render(named)[0]


def test_equal_traces_give_equal_files():
    assert render(full_trace(12))[0] == render(full_trace(12))[0]


def test_a_heavy_run_is_lightened_step_by_step_and_says_so():
    trace = full_trace(90, n=24)
    whole, done = render(trace)
    assert done == []
    limit, steps = len(whole) - 1, []
    for _ in range(4):
        text, done = render(trace, limit=limit)
        assert len(text) <= limit and len(passes_of(text)) == 90
        status = next(e for m in log_of(text) for e in m["events"] if e["type"] == "status")
        assert status["text"] == ", ".join(done)
        steps.append(done[-1])
        limit = len(text) - 1
    assert steps == ["figures rounded", "staleness left out", "staleness and points left out", "staleness, points and candidates left out"]
    with pytest.raises(TraceError, match=f"limit is {limit}"):
        render(trace, limit=limit)
    first = render(trace, limit=len(whole) - 1)[0]
    step = next(s for s in passes_of(first) if s["stale"])
    near, exact = np.frombuffer(base64.b64decode(step["stale"]), "<f4"), trace[step["i"]].staleness.reshape(-1)
    assert np.abs(near / exact - 1).max() < 2**-8 and trace[0].staleness.dtype == np.float32


def test_nothing_is_left_behind_when_it_cannot_be_written(tmp_path):
    with pytest.raises(TraceError, match="limit"):
        export_html(full_trace(6), tmp_path / "a.html", limit=10)
    with pytest.raises(TraceError, match="cannot write"):
        export_html(full_trace(6), tmp_path / "none" / "a.html")
    with pytest.raises(TraceError, match="files are missing"):
        export_html(full_trace(6), tmp_path / "a.html", assets=tmp_path)
    with pytest.raises(TraceError, match="one or two"):
        export_html({}, tmp_path / "a.html")
    with pytest.raises(TraceError, match="lanes A and B"):
        export_html({"C": answer()}, tmp_path / "a.html")
    assert os.listdir(tmp_path) == []


def test_it_opens_offline_scrubs_and_asks_nothing_of_the_network(tmp_path):
    from playwright.sync_api import sync_playwright

    path = tmp_path / "run.html"
    a, b = full_trace(70), full_trace(50, seed=1)
    export_html([a, b], path)
    chromium = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
    asked, errors = [], []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_context(offline=True, viewport={"width": 1440, "height": 900}).new_page()
        page.on("request", lambda r: asked.append(r.url))
        page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.on("dialog", lambda d: errors.append("dialog"))
        page.goto(path.as_uri())
        # Asked again and again from here: a wait inside the page would need eval, which the file's own policy forbids.
        until = time.monotonic() + 60
        while not page.evaluate("Boolean(window.polestarPage)"):
            assert time.monotonic() < until, "the page did not mount"
            time.sleep(0.1)
        assert page.evaluate("[polestarPage.store.lanes.A.n, polestarPage.store.lanes.B.n, polestarPage.store.problem]") == [70, 50, ""]
        assert page.evaluate("polestarPage.store.status.state") == "replay"
        page.locator("#polestar").press("Home")
        assert page.evaluate("polestarPage.store.passOf('A')") == 0
        page.locator("#polestar").press("ArrowRight")
        page.locator("#polestar").press("ArrowRight")
        assert page.evaluate("polestarPage.store.passOf('A')") == 2
        for i in (0, 31, 32, 33, 69):
            page.evaluate("i => polestarPage.store.seekPass('A', i)", i)
            shown = page.evaluate("i => Array.from(polestarPage.store.lanes.A.stateAt(i).tok)", i)
            assert shown == [-1 if t == 1 else t for t in a.canvas_at(i)[5:].tolist()]
        assert "replay" in page.evaluate("document.querySelector('#polestar').shadowRoot.querySelector('.app').innerText")
        browser.close()
    assert asked == [path.as_uri()] and errors == []

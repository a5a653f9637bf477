"""Chromium on the harness: one browser per test module, one tab per test; a console error or a request off this machine fails the test."""

from __future__ import annotations

import contextlib
import os
import shutil

from playwright.sync_api import sync_playwright
from serve import served

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--js-flags=--expose-gc",
]


def chromium() -> str:
    """Path of the browser: CHROMIUM, or Debian's, or whatever is on the path."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"


@contextlib.contextmanager
def open_harness(port: int = 0):
    with served(port) as base, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        try:
            yield browser, base
        finally:
            browser.close()


@contextlib.contextmanager
def open_tab(harness, *, width: int = 1440, height: int = 900, **kw):
    browser, base = harness
    context = browser.new_context(viewport={"width": width, "height": height}, **kw)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") and "readback" not in m.text else None)
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("request", lambda r: None if r.url.startswith((base, "data:", "blob:")) else problems.append(f"request to {r.url}"))
    page.goto(f"{base}/tests/js/harness.html")
    try:
        page.wait_for_function("window.ready", timeout=15000)
    except Exception as error:
        raise AssertionError(f"the page did not start: {problems}") from error
    try:
        yield page
        assert not problems, problems
    finally:
        context.close()

"""Observe mode: staleness, full drift, and the paper's figures of a real decode."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
import synth
from pages import feed, last, open_panel, push, select, settle, steps_of


def test_observe_mode_shows_staleness_and_full_drift_and_says_that_speed_means_nothing(tab):
    feed(tab, synth.messages(compare=False))
    assert tab.get_by_role("tab", name="Observe").is_hidden()
    messages = synth.messages(run="r2", compare=False, observe=True)
    feed(tab, messages)
    panel = open_panel(tab, "Observe")
    assert "speed means nothing" in panel.inner_text()
    assert tab.locator('section[aria-label="Lane A"]').get_by_text("observed").is_visible()
    tab.evaluate("() => { page.store.seek(15); page.store.flush(); }")
    assert "at pass 15" in panel.locator(".stale").get_attribute("aria-label")
    box = panel.locator(".stale")
    size = box.bounding_box()
    box.hover(position={"x": size["width"] - 3, "y": size["height"] - 20})

    stale = np.frombuffer(base64.b64decode(steps_of(messages)[15]["stale"]), "<f4").reshape(6, -1)
    tip = tab.get_by_role("tooltip").inner_text()
    assert "staleness, layer 5" in tip and any(f"{v:.3f}" in tip for v in stale[5, -4:] if v >= 0.001)
    tab.get_by_label("Value shown").select_option("stale")
    tab.get_by_role("button", name="all positions").click()
    heat = tab.locator(".drift .cv").first
    ink = """() => { const c = document.getElementById('root').shadowRoot.querySelector('.drift canvas');
        return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.reduce((a, b) => a + b, 0); }"""
    one = tab.evaluate(ink)
    tab.get_by_label("Value shown").select_option("full")
    tab.evaluate("() => page.store.flush()")
    assert heat.is_visible() and tab.evaluate(ink) != one


@pytest.fixture(scope="module")
def watched():
    """A short decode of the bundled model in observe mode."""
    from polestar.config import DecodeConfig
    from polestar.driver import decode
    from polestar.models.checkpoint import load_model

    loaded = load_model("demo")
    prompt = loaded.codec.encode_chat("Tell a story about Paul and Dan.")
    return decode(loaded, prompt, DecodeConfig.make(gen_length=64, block_length=16), level="full", observe=True), loaded.codec


class Desk:
    """As much of the server's tab as the command `figure` uses."""

    def __init__(self, trace):
        self.lanes, self.sent, self.channel = {"A": trace}, [], self

    def trace(self, lane):
        return self.lanes.get(lane)

    def put(self, event):
        self.sent.append(json.loads(json.dumps(event, allow_nan=False)))


def test_an_observed_run_shows_the_papers_figures(tab, watched):
    from polestar.analysis import figures
    from polestar.trace.wire import messages
    from ui.debug import figure

    trace, codec = watched
    desk = Desk(trace)
    feed(tab, messages(trace, codec, run="watched"))
    panel = open_panel(tab, "Observe")
    assert last(tab) == {"cmd": "figure", "lane": "A", "position": None} and "being computed" in panel.inner_text()
    figure(desk, last(tab))
    push(tab, desk.sent[-1])
    settle(tab)
    found = figures.selection(trace)
    assert f"{found['accuracy'].mean():.2f} on average" in panel.inner_text()
    assert f"the clusters chosen hold {found['recall'].mean():.2f} of it, chance would hold {found['chosen'].mean():.2f}" in panel.inner_text()
    groups = figures.cumulative_staleness(trace)["groups"]
    assert all(
        f"{name} ({form}) {values[-1]:.2f}" in panel.inner_text()
        for (name, values), form in zip(groups.items(), ("solid", "dashed", "dotted", "dash-dot"), strict=True)
    )
    asked = tab.evaluate("() => sent.length")
    tab.evaluate("() => { page.store.seek(1); page.store.flush(); }")
    assert tab.evaluate("() => sent.length") == asked, "asked once"
    pos = next(c.position for s in trace[3:] for c in s.commits if c.reason != "suffix")
    tab.evaluate("() => page.store.end()")
    select(tab, pos)
    assert last(tab) == {"cmd": "figure", "lane": "A", "position": pos}
    figure(desk, last(tab))
    push(tab, desk.sent[-1])
    settle(tab)
    text = panel.inner_text()
    progress, path = figures.progress(trace, pos), figures.value_path(trace, pos)
    assert f"committed at pass {progress['committed']}: {progress['reason']}" in text
    assert f"two principal directions hold {(path['share'].sum()) * 100:.0f} % of its path" in text
    with pytest.raises(ValueError, match="shows no run"):
        figure(desk, {"lane": "B", "position": None})

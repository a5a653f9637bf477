"""What a page costs: no frames while it shows something and waits, few while a decode goes at full speed, one for each pass of a paced run."""

from __future__ import annotations

import json
import time


def frames(chromium, page, during) -> int:
    """Callbacks of requestAnimationFrame, the page's own and gradio's, while `during()` goes on."""
    chromium.start_tracing(page=page, categories=["devtools.timeline"])
    try:
        during()
    finally:
        found = json.loads(chromium.stop_tracing())["traceEvents"]
    return sum(event["name"] == "FireAnimationFrame" for event in found)


def test_a_page_that_waits_asks_for_no_frames(serve, tab, chromium):
    t = tab(serve("--pass-seconds", "0.05").url)
    t.page.uncheck("#ps-compare input")
    t.number("gen_length", 256)
    t.run("one two three")
    t.wait_state("done")
    time.sleep(2.0)  # by now the clock of gradio's loading sign has been found
    assert frames(chromium, t.page, lambda: time.sleep(2.0)) <= 10


def test_a_run_at_full_speed_is_drawn_now_and_then_and_a_paced_one_at_every_pass(serve, tab, chromium):
    t = tab(serve("--pass-seconds", "0.01").url)
    t.page.uncheck("#ps-compare input")
    t.number("gen_length", 256)
    t.js("() => { window.draws = 0; window.polestar.app.store.watch(['cursor'], () => { window.draws += 1; }); }")
    t.run("one two three")
    t.wait_state("done")
    full = t.js("window.draws")
    assert 2 <= full < t.passes() / 4
    t.page.click("#ps-pace input")
    t.page.click("[role=option]:has-text('5 passes/s')")
    t.run("one two three")
    t.wait_passes(1)
    t.js("() => { window.draws = 0; window.from = window.polestar.app.store.lanes.A.n; }")
    t.wait_passes(12)
    t.click("stop")
    passes = t.js("window.polestar.app.store.lanes.A.n - window.from")
    assert t.js("window.draws") >= passes * 0.8

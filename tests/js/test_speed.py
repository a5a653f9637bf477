"""How fast the page redraws and how much memory it keeps: a 512-token, 300-pass comparison in a real browser."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import synth
from browser import open_tab


@pytest.fixture(scope="module")
def large():
    return synth.messages(gen_length=512, passes=300, per_message=4, n_layers=8)


def private_mb(harness, page) -> float:
    """Memory of the tab's process that belongs to it alone, in MB; of the biggest renderer, since the browser may keep a spare one."""
    session = harness[0].new_browser_cdp_session()
    pids = [p["id"] for p in session.send("SystemInfo.getProcessInfo")["processInfo"] if p["type"] == "renderer"]
    sizes = []
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Private_Dirty", "Private_Clean")):
                sizes.append((pid, int(line.split()[1]) / 1024))
    return max(sum(mb for p, mb in sizes if p == pid) for pid in pids)


def heap_mb(page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"] / 2**20
    session.detach()
    return used


REDRAWS = """async (order) => {
  const s = page.store, ticks = s.ticks(), root = document.getElementById('root').shadowRoot;
  const canvases = [...root.querySelectorAll('canvas')];
  const go = (x) => {
    s.seek(x);
    s.flush();
    for (const c of canvases) c.getContext('2d').getImageData(0, 0, 1, 1);
    return root.querySelector('.app').offsetHeight;
  };
  s.select('A', 100);
  for (const [from, to] of order) {
    go(ticks[from % ticks.length]);
    await new Promise(requestAnimationFrame);
    await new Promise((done) => setTimeout(() => { performance.mark('redraw'); go(ticks[to % ticks.length]); performance.mark('redrawn'); done(); }));
  }
}"""
STEPS, LEAPS = [[i, i + 1] for i in range(0, 300, 6)], [[i, (i * 37 + 11) % 300] for i in range(0, 300, 6)]


def redraw_times(harness, tab, order) -> list[float]:
    """Milliseconds of processor time of the page's thread for each redraw, by the browser's own trace."""
    browser = harness[0]
    browser.start_tracing(page=tab, categories=["blink.user_timing"])
    tab.evaluate(REDRAWS, order)
    events = json.loads(browser.stop_tracing())["traceEvents"]
    began, ended = ([e["tts"] for e in sorted(events, key=lambda e: e.get("ts", 0)) if e["name"] == name] for name in ("redraw", "redrawn"))
    assert len(began) == len(ended) == len(order), "each redraw is in the trace once"
    return [(b - a) / 1000 for a, b in zip(began, ended, strict=True)]


def test_scrubbing_redraws_in_time_and_in_memory(harness, large):
    """95 of 100 redraws take less than 16 ms, a frame's time: every redraw of a series counts, none is tried again.

    A redraw is what one move of the cursor costs the page at once: all panels that are in sight drawn, their canvases' pixels made (reading one back
    forces that) and the page laid out anew (reading a height forces that); steps to the next pass and leaps across the run alike. Measured is the
    processor time of the page's own thread, which does all of this with software drawing: the time on the wall would measure what
    else the machine runs (twenty times as much on one that decodes and trains beside the test). What shares the core slows even processor time,
    so a whole series that fails is measured again, twice at most.
    """
    with open_tab(harness) as page:
        page.evaluate("(m) => { for (const x of m) page.receive(x); page.store.flush(); }", large)
        redraw_times(harness, page, STEPS[:3] + LEAPS[:3])  # what is drawn once for the whole log, and the script's compilation
        for _ in range(3):
            times = sorted(redraw_times(harness, page, STEPS + LEAPS))
            p95 = times[int(len(times) * 0.95)]
            if p95 < 16:
                break
        print(f"redraw: median {times[len(times) // 2]:.1f} ms, p95 {p95:.1f} ms, longest {times[-1]:.1f} ms")
        assert p95 < 16, f"p95 {p95:.1f} ms, median {times[len(times) // 2]:.1f} ms"
        if sys.platform == "linux":
            used = private_mb(harness, page)
            print(f"tab memory {used:.0f} MB")
            assert used < 200


def test_five_runs_leave_the_heap_where_it_was(harness):
    with open_tab(harness) as page:
        heaps = []
        for k in range(5):
            messages = synth.messages(run=f"run{k}", gen_length=256, passes=256, seed=k)
            page.evaluate(
                """(m) => { for (const x of m) page.receive(x); page.store.flush();
                for (let i = 0; i < 40; i++) { page.store.seek(i * 6); page.store.flush(); } }""",
                messages,
            )
            page.wait_for_timeout(250)
            heaps.append(heap_mb(page))
        assert heaps[-1] < 1.5 * heaps[0], heaps


def test_mounting_again_leaves_nothing_behind(harness):
    with open_tab(harness) as page:
        messages = synth.messages()

        def round_trip():
            page.evaluate("(m) => { window.remount(); for (const x of m) page.receive(x); page.store.flush(); }", messages)
            page.wait_for_timeout(200)

        round_trip()
        before = heap_mb(page)
        for _ in range(5):
            round_trip()
        after = heap_mb(page)
        assert after < 1.3 * before + 1, (before, after)
        page.evaluate("() => page.destroy()")
        assert page.evaluate("() => document.getElementById('root').shadowRoot.childElementCount") == 0

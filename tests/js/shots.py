"""Pictures of the harness for looking at: python tests/js/shots.py OUT_DIR [tab ...]; each at 1440 x 900 and 1024 x 768, dark and light."""

from __future__ import annotations

import sys
from pathlib import Path

import synth
from browser import open_harness, open_tab

if __name__ == "__main__":
    out, tabs = Path(sys.argv[1]), sys.argv[2:] or ["why"]
    sizes = [(1440, 900, "dark"), (1024, 768, "light")] if len(tabs) > 1 else [(w, h, t) for w, h in ((1440, 900), (1024, 768)) for t in ("dark", "light")]
    with open_harness(8101) as harness:
        for w, h, theme in sizes:
            with open_tab(harness, width=w, height=h) as page:
                page.evaluate("(m) => { for (const x of m) page.receive(x); }", synth.messages(observe="observe" in tabs, memory=True))
                page.evaluate("(t) => { document.body.className = t; page.store.seek(20); page.store.select('A', 47); }", theme)
                for event in synth.debug_events():
                    page.evaluate("(e) => { page.store.apply(e); }", event)
                for tab in tabs:
                    page.evaluate("(t) => page.store.set({tab: t})", tab)
                    page.wait_for_timeout(250)
                    page.screenshot(path=str(out / f"{tab}-{w}-{theme}.png"))

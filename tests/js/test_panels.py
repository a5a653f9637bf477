"""What the panels say of a log: what if, timing, brushing, notes, the comparison's verdict."""

from __future__ import annotations

import base64
import itertools
import json

import numpy as np
import pytest
import synth
from browser import open_tab
from pages import events_of, feed, last, open_panel, push, select, settle, steps_of


def reference(header, steps, *, tau=0.9, alpha=10.0, h=5):
    """Independent first-order judgement: position -> first recorded pass in which the rule of section 4.2 takes it."""

    def floats(text):
        return None if text is None else np.frombuffer(base64.b64decode(text), "<f4").astype(np.float64)

    first, past, block = {}, [], None
    for s in steps:
        if s["b"] != block:
            block, past = s["b"], []
        c, d = floats(s["conf"]), floats(s["drift"])
        masked = [j for j in range(len(c)) if not np.isnan(c[j])]
        taken = {j for j in masked if c[j] >= np.float32(tau)} or {max(masked, key=lambda j: (c[j], -j))}
        if d is not None and s["gate"] is not None:
            window = past[-h:] if h else []
            delta = d - np.mean(window, 0) if window else d
            taken |= {j for j in masked if c[j] < np.float32(tau) and delta[j] >= alpha * (tau - c[j]) ** 2}
        if d is not None:
            past.append(d)
        for j in taken:
            first.setdefault(s["s"] + j, s["i"])
    return first


def drag(panel, name, value):
    panel.get_by_label(f"What if {name}").fill(str(value))


def test_what_if_judges_every_recorded_pass_again(tab):
    messages = synth.messages(gen_length=160)
    feed(tab, messages)
    header, steps = events_of(messages, "header")[0]["header"], steps_of(messages)
    panel = open_panel(tab, "What if")
    text = panel.inner_text()
    assert "First order" in text and "the trajectory itself would change" in text
    assert tab.evaluate("() => page.store.whatif.marks.size") == 0, "nothing moved, nothing marked"
    was = {c[0]: s["i"] for s in steps for c in s["c"] if c[3] != "suffix"}
    for values in ({"tau": 0.7}, {"alpha": 2.5}, {"alpha": 2.5, "h": 0}, {"tau": 0.95, "alpha": 30.0, "h": 2}):
        for name, key in (("τ_s", "tau"), ("α", "alpha"), ("h", "h")):
            if key in values:
                drag(panel, name, values[key])
            else:
                button = panel.get_by_role("button", name=f"{name} as recorded")
                if button.is_enabled():
                    button.click()
        expected = reference(header, steps, **values)
        marks = {pos: -1 if expected.get(pos, 10**9) < at else 1 for pos, at in was.items() if expected.get(pos) != at}
        got = tab.evaluate("() => Object.fromEntries(page.store.whatif.marks)")
        assert {int(k): v for k, v in got.items()} == marks, values
        earlier, later = sum(v < 0 for v in marks.values()), sum(v > 0 for v in marks.values())
        assert f"{earlier} earlier, {later} later" in panel.inner_text()
    row = panel.get_by_role("table").locator("tbody tr").first
    row.get_by_role("button").click()
    assert str(tab.evaluate("() => page.store.sel.pos")) == row.locator("td").first.inner_text()
    panel.get_by_role("button", name="fork with these values").click()
    tab.get_by_role("tabpanel", name="Forks").get_by_role("button", name="Fork", exact=True).click()
    assert last(tab)["changes"] == {"tau_s": 0.95, "alpha": 30, "h": 2}
    assert tab.evaluate("() => page.store.whatif") is None, "marks go with the panel"


def test_parameters_have_the_names_of_their_controls(tab):
    from polestar.config import parameter_names

    messages = [json.loads(m) for m in synth.messages()]
    headers = {e["lane"]: e["header"] for m in messages for e in m["events"] if e["type"] == "header"}
    config = headers["A"]["config"] | {"drift_commit": True, "window_prefix": 2}
    own = {"tau_s": 0.8, "gen_length": 64, "drift_commit": False, "window_prefix": 3}
    for lane, changed in (("A", {}), ("B", own)):
        headers[lane] |= {"method": "polestar", "preset": "paper", "names": parameter_names("polestar"), "config": config | changed, "changed": changed}
    step = next(s for m in messages for e in m["events"] if e["type"] == "steps" and e["lane"] == "A" for s in e["steps"] if s["i"] == 3)
    step["par"] = [["suffix_commit", True, False]]
    feed(tab, [json.dumps(m) for m in messages])
    rows = open_panel(tab, "Compare").locator(".sets tbody tr")
    texts = [row.split("\t") for row in rows.all_inner_texts()]
    assert texts == [["τ_s", "0.9", "0.8"], ["length", "128", "64"], ["drift", "on", "off"], ["Ω prefix", "2", "3"]]
    assert tab.locator('section[aria-label="Lane B"] .lane-set').inner_text() == "τ_s 0.8, length 64, drift off, Ω prefix 3"
    timeline = tab.locator(".tl .cv")
    width = timeline.bounding_box()["width"]
    x = tab.evaluate("async (w) => { const a = (await import('/assets/js/passaxis.js')).passAxis(page.store, w); return a.x(3) + a.cw / 2; }", width)
    timeline.hover(position={"x": x, "y": 20})
    assert "suffix changed" in tab.get_by_role("tooltip").inner_text()


def test_what_if_says_when_the_rule_cannot_be_judged(tab):
    messages = synth.messages(compare=False)
    feed(tab, messages[:1])
    header = {**events_of(messages, "header")[0]["header"], "method": "klass", "title": "KLASS"}
    header["config"] = {k: v for k, v in header["config"].items() if k != "tau_s"}
    push(tab, {"type": "header", "lane": "A", "header": header}, {"type": "steps", "lane": "A", "steps": steps_of(messages)})
    assert "KLASS does not commit by one threshold" in open_panel(tab, "What if").inner_text()


def test_timing_shows_where_each_pass_went_and_memory(tab):
    messages = synth.messages(compare=False, memory=True)
    feed(tab, messages)
    steps = steps_of(messages)
    panel = open_panel(tab, "Timing")
    refreshes = [s for s in steps if s["rf"]]
    rows = {r.locator("th").inner_text(): r.locator("td").all_inner_texts() for r in panel.get_by_role("table").locator("tbody tr").all()}
    mean = sum(s["ph"]["attention"] for s in refreshes) / len(refreshes) * 1000
    assert abs(float(rows["attention"][1]) - mean) < 0.06
    whole = sum(s["dt"] for s in refreshes) / len(refreshes) * 1000
    assert abs(float(rows["sum"][1]) - whole) < 0.06, "phases and what none of them claims add up to the pass"
    assert rows["proxy"][0] == "0.00" and float(rows["proxy"][1]) > 0
    assert rows["passes"] == [
        str(sum(s["k"] != "within" for s in steps)),
        str(len(refreshes)),
        str(sum(s["k"] == "within" and not s["rf"] for s in steps)),
        str(len(steps)),
    ]
    assert "is not part of the decode's seconds" in panel.inner_text()
    tab.evaluate("() => { page.store.seek(4); page.store.flush(); }")
    assert "since pass 0: device 180 MB (solid), of which kv 150 MB; pinned host 24 MB (dashed)" in panel.inner_text()
    box = panel.locator(".times")
    box.click(position={"x": box.bounding_box()["width"] - 8, "y": 40})
    assert tab.evaluate("() => page.store.passOf('A')") == len(steps) - 1
    feed(tab, synth.messages(run="r2", compare=False))
    assert "holds no memory figures" in panel.inner_text()


def drag_mouse(tab, box, start, to):
    b = box.bounding_box()
    tab.mouse.move(b["x"] + start[0], b["y"] + start[1])
    tab.mouse.down()
    tab.mouse.move(b["x"] + (start[0] + to[0]) / 2, b["y"] + (start[1] + to[1]) / 2)
    tab.mouse.move(b["x"] + to[0], b["y"] + to[1])
    tab.mouse.up()
    tab.evaluate("() => page.store.flush()")


def test_a_selection_is_shared_by_all_panels(tab):
    messages = synth.messages(compare=False)
    feed(tab, messages)
    steps = steps_of(messages)
    brush = "() => [[...page.store.brush.positions].sort((a, b) => a - b), page.store.brush.passes]"
    why = tab.get_by_role("tabpanel", name="Why", exact=True)
    grid = tab.locator('section[aria-label="Lane A"] .grid-cv')
    a, b = (tab.evaluate("(p) => page.grids.A.place(p)", p) for p in (30, 36))
    drag_mouse(tab, grid, (a["x"] + 5, a["y"] + 5), (b["x"] + 5, b["y"] + 5))
    assert tab.evaluate(brush) == [[30, 31, 32, 33, 34, 35, 36], None]
    assert "7 positions, 30–36: 7 committed" in why.inner_text()
    tab.keyboard.down("Control")
    c = tab.evaluate("(p) => page.grids.A.place(p)", 40)
    grid.click(position={"x": c["x"] + 5, "y": c["y"] + 5})
    tab.keyboard.up("Control")
    assert tab.evaluate(brush)[0] == [30, 31, 32, 33, 34, 35, 36, 40]
    timeline = tab.locator(".tl .cv")
    w = timeline.bounding_box()["width"]
    at = [42 + (i + 0.5) * (w - 96) / len(steps) for i in (3, 9)]
    drag_mouse(tab, timeline, (at[0], 20), (at[1], 22))
    assert tab.evaluate(brush) == [[30, 31, 32, 33, 34, 35, 36, 40], [3, 9]]
    inside = [s for s in steps[3:10]]
    assert (
        f"passes 3–9: {sum(len(s['c']) for s in inside)} tokens, {sum(s['rf'] for s in inside)} refreshes, {sum(s['rows'] for s in inside)} rows"
        in why.inner_text()
    )
    heat = tab.locator(".drift .fill .cv").first
    drag_mouse(tab, heat, (at[0], 40), (at[1], 80))
    positions, passes = tab.evaluate(brush)
    assert passes == [3, 9] and len(positions) > 1 and all(26 <= p < 58 for p in positions)
    clusters = tab.locator(".window .fill .cv").first
    size = clusters.bounding_box()
    drag_mouse(tab, clusters, (2, 2), (size["width"] - 2, size["height"] - 2))
    window = tab.evaluate("() => { const l = page.store.lanes.A; return [...l.windowAt(page.store.passOf('A')).win]; }")
    assert tab.evaluate(brush)[0] == sorted(window), "every point of the local window"
    tab.keyboard.press("Escape")
    assert tab.evaluate(brush) == [[], None] and tab.evaluate("() => page.store.sel") is None
    tab.locator('[role=grid][aria-label="Tokens of lane A"] [tabindex="0"]').focus()
    for _ in range(3):
        tab.keyboard.press("Shift+ArrowRight")
    assert len(tab.evaluate(brush)[0]) == 4, "and from the keyboard"


def test_notes_are_pinned_to_a_moment_changed_and_removed(tab):
    feed(tab, synth.messages())
    panel = open_panel(tab, "Notes")
    tab.evaluate("() => { page.store.seek(7); page.store.flush(); }")
    select(tab, 50)
    panel.get_by_label("New note").fill("  <b>here</b> the lanes part ")
    panel.get_by_role("button", name="Pin note").click()
    assert last(tab) == {"cmd": "note", "op": "add", "lane": "A", "pass": 7, "position": 50, "text": "<b>here</b> the lanes part"}
    panel.get_by_role("checkbox").uncheck()
    panel.get_by_label("New note").fill("a pass")
    panel.get_by_role("button", name="Pin note").click()
    assert last(tab)["position"] is None
    push(tab, {"type": "notes", "lane": "A", "notes": [{"pass": 12, "position": 47, "text": "<b>one</b>"}, {"pass": 20, "position": None, "text": "two"}]})
    assert "<b>one</b>" in panel.inner_text() and panel.locator("b").count() == 0
    panel.get_by_role("button", name="pass 12, position 47 · A").click()
    assert tab.evaluate("() => [page.store.passOf('A'), page.store.sel.pos]") == [12, 47]
    panel.get_by_role("button", name="Change the note of pass 20").click()
    panel.get_by_label("Note", exact=True).fill("second")
    panel.get_by_role("button", name="save").click()
    assert last(tab) == {"cmd": "note", "op": "edit", "lane": "A", "index": 1, "text": "second"}
    panel.get_by_role("button", name="Remove the note of pass 12").click()
    assert last(tab) == {"cmd": "note", "op": "remove", "lane": "A", "index": 0}


@pytest.mark.parametrize(
    ("passes", "end", "said"),
    [
        (0, None, "Lane B did not run: no verdict."),
        (0, "stopped", "Lane B did not run: no verdict."),
        (3, "stopped", "Lane B stopped before its end: no verdict."),
        (3, None, "Lane B stopped before its end: no verdict."),
        (3, "error", "Lane B failed before its end: no verdict."),
    ],
)
def test_a_stopped_comparison_gives_no_verdict(tab, passes, end, said):
    messages = synth.messages(compare=False, end=False)
    header, steps = events_of(messages, "header")[0]["header"], steps_of(messages)
    feed(tab, messages)
    push(tab, {"type": "end", "lane": "A", "status": "done", "metrics": None}, {"type": "header", "lane": "B", "header": header})
    panel = open_panel(tab, "Compare")
    verdict = tab.locator(".compare .verdict")
    assert verdict.inner_text() == "", "lane B may still run"
    if passes:
        push(tab, {"type": "steps", "lane": "B", "steps": steps[:passes]})
    if end:
        push(tab, {"type": "end", "lane": "B", "status": end, "metrics": None})
    push(tab, {"type": "status", "state": "stopped", "text": "", "place": None})
    text = panel.inner_text()
    assert verdict.inner_text() == said
    assert "so far" in text and "same tokens" not in text and "loses" not in text and "behind on nothing" not in text
    assert panel.locator(".win, .lose").count() == 0
    assert tab.get_by_role("button", name="no divergence so far", exact=True).count() == 1
    push(tab, {"type": "steps", "lane": "B", "steps": steps[passes:]}, {"type": "end", "lane": "B", "status": "done", "metrics": None})
    assert tab.get_by_role("button", name="no divergence", exact=True).count() == 1
    assert "Both lanes gave the same tokens." in panel.inner_text() and "no verdict" not in verdict.inner_text()


def test_polestar_without_drift_or_refresh_says_not_yet(tab):
    messages = synth.messages(compare=False, end=False)
    header, steps = events_of(messages, "header")[0]["header"], steps_of(messages)
    said = "async () => { const m = await import('/assets/js/describe.js'), a = page.store.lanes.A; return [m.noDrift(a, a.steps), m.noRefresh(a)]; }"

    def shown(count, **switches):
        push(tab, {"type": "header", "lane": "A", "header": {**header, "config": {**header["config"], **switches}}})
        push(tab, {"type": "steps", "lane": "A", "steps": steps[:count]})
        return tab.evaluate(said)

    feed(tab, messages)
    position = header["prompt_length"] + 5
    select(tab, position)
    assert shown(1) == ["n/a", "no refresh rule in this method"]
    assert "no history yet" not in tab.locator(".why").inner_text()
    assert shown(1, cache_refresh=False, drift_commit=True) == ["no history yet", "refresh is switched off in this run"]
    assert shown(1, cache_refresh=True, drift_commit=True) == ["no history yet", "no refresh in this run so far"]
    assert "no history yet" in tab.locator(".why").inner_text()
    assert shown(2, cache_refresh=True, drift_commit=True)[0] == "n/a", "a pass after the entry has drift, or none was kept"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_colour_bars_top_label_stands_clear_of_its_unit(harness, theme):
    with open_tab(harness, width=1024, height=768) as tab:
        feed(tab, synth.messages())
        tab.evaluate("(t) => { document.body.className = t; page.store.flush(); }", theme)
        settle(tab)
        rows = tab.locator(".card.drift canvas").first.evaluate(
            """(c) => { const k = devicePixelRatio, left = (c.clientWidth - 34) * k;
            const {data, width} = c.getContext('2d').getImageData(left, 0, c.width - left, 45 * k), rows = [];
            for (let y = 0; y < 45; y++) rows.push(data.subarray(y * width * 4, (y + 1) * width * 4).some((v, i) => i % 4 === 3 && v > 60)); return rows; }"""
        )
        runs = [[y for y, _ in run] for inked, run in itertools.groupby(enumerate(rows), lambda r: r[1]) if inked]
        assert len(runs) == 2, "the unit, and below it the label of the top"
        assert min(map(len, runs)) >= 6, "both whole"
        assert runs[1][0] - runs[0][-1] - 1 >= 7


def test_a_heatmap_that_grew_equals_one_drawn_at_once(tab):
    messages = synth.messages(compare=False, passes=70, per_message=1)

    def picture():
        tab.evaluate("() => page.store.flush()")
        return tab.locator(".card.drift canvas").first.evaluate("(canvas) => canvas.toDataURL()")

    steps = [i for i, m in enumerate(messages) if '"steps"' in m]
    before = 0
    for upto in (steps[0] + 1, steps[3] + 1, steps[len(steps) // 2], len(messages)):
        feed(tab, messages[before:upto])
        before = upto
        grown = picture()
        tab.evaluate("() => { page.store.set({metric: 'conf'}); page.store.flush(); page.store.set({metric: 'drift'}); }")  # begins it anew
        assert picture() == grown

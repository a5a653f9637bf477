"""The debugger's part of the page in a real browser, used as a person would: stop, ask why, try something else, keep and share."""

from __future__ import annotations

import base64
import csv
import io
import json
import sys
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "js"))
import synth
from browser import open_harness, open_tab
from pages import events_of, feed, last, open_panel, push, select, settle, steps_of


@pytest.fixture(scope="module")
def harness():
    with open_harness() as opened:
        yield opened


@pytest.fixture
def tab(harness):
    with open_tab(harness) as page:
        yield page


# ---- the log: edits ---------------------------------------------------------------------------------------------------------


def test_edits_come_before_the_commits_of_their_pass(tab):
    messages = synth.messages(compare=False, end=False)
    header, steps = events_of(messages, "header")[0]["header"], steps_of(messages)
    at = 12
    committed = steps[3]["c"][0][0]
    free = max(c[0] for s in steps[at + 1 :] for c in s["c"])  # committed after pass `at`
    steps[at]["ed"] = [[committed, header["mask_id"]], [free, 7], [steps[at]["c"][0][0], 9]]
    vocab = events_of(messages, "vocab", None)
    feed(tab, messages[:1])
    push(tab, {"type": "header", "lane": "A", "header": header}, *vocab)
    for step in steps[: at + 1]:
        push(tab, {"type": "steps", "lane": "A", "steps": [step]})
    P = header["prompt_length"]
    state = "(p) => { const s = page.store.lanes.A.stateAt(p); return [[...s.tok], [...s.why]]; }"
    tokens, why = tab.evaluate(state, at)
    before, _ = tab.evaluate(state, at - 1)
    assert before[committed - P] >= 0 and tokens[committed - P] == -1, "masked again"
    assert tokens[free - P] == 7 and tab.evaluate("(w) => ['masked','confidence','forced','drift','suffix','edit','other'][w]", why[free - P]) == "edit"
    assert tokens[steps[at]["c"][0][0] - P] == steps[at]["c"][0][1], "the commit of the pass is written over the edit"
    assert tab.evaluate("() => page.store.lanes.A.tokens.at(-1)") == sum(t >= 0 for t in tokens)
    select(tab, free)
    assert "put by hand" in tab.locator(".why").inner_text()


# ---- breakpoints and stepping -----------------------------------------------------------------------------------------------


def test_breakpoints_are_made_from_the_form_listed_switched_and_removed(tab):
    feed(tab, synth.messages(end=False))
    panel = open_panel(tab, "Breakpoints")
    panel.get_by_label("Condition", exact=True).select_option("delta_above")
    panel.get_by_label("Value").fill("0,5x")
    panel.get_by_role("button", name="Add breakpoint").click()
    assert "write a number" in panel.get_by_role("alert").inner_text()
    assert tab.evaluate("() => sent.length") == 0
    panel.get_by_label("Value").fill("0.5")
    panel.get_by_role("button", name="+ and").click()
    panel.get_by_label("Condition", exact=True).nth(1).select_option("commit")
    panel.get_by_role("button", name="+ and").click()
    panel.get_by_label("Condition", exact=True).nth(2).select_option("position")
    panel.get_by_label("Value").nth(2).fill("77")
    panel.get_by_role("button", name="Add breakpoint").click()
    assert last(tab) == {"cmd": "breakpoint", "op": "add", "breakpoint": {"delta": {"above": 0.5}, "commit": "drift", "position": 77}}
    panel.get_by_role("button", name="refresh", exact=True).click()
    assert last(tab) == {"cmd": "breakpoint", "op": "add", "breakpoint": {"refresh": True}}
    push(tab, synth.debug_events()[0])
    assert "pass 12: position 47 committed" in panel.inner_text(), "which one fired"
    panel.get_by_role("checkbox", name="drift commit").uncheck()
    assert last(tab) == {"cmd": "breakpoint", "op": "disable", "id": 1}
    panel.get_by_role("checkbox", name="refresh").check()
    assert last(tab) == {"cmd": "breakpoint", "op": "enable", "id": 2}
    panel.get_by_role("button", name="Remove breakpoint refresh").click()
    assert last(tab) == {"cmd": "breakpoint", "op": "remove", "id": 2}
    panel.get_by_role("button", name="remove all").click()
    assert last(tab) == {"cmd": "breakpoint", "op": "clear"}


def test_every_condition_is_one_the_engine_accepts(tab):
    from polestar.breakpoints import Breakpoint

    feed(tab, synth.messages(end=False))
    panel = open_panel(tab, "Breakpoints")
    values = {
        "delta_above": "1",
        "delta_below": "2",
        "conf_above": "0.5",
        "conf_below": "0.6",
        "position": "40",
        "token": "9",
        "text": "Paris",
        "pass": "3",
        "block": "1",
    }
    kinds = panel.get_by_label("Condition", exact=True).locator("option").evaluate_all("(o) => o.map((x) => x.value)")
    assert set(values) < set(kinds)
    for kind in kinds:
        if kind == "masked":
            continue
        panel.get_by_label("Condition", exact=True).first.select_option(kind)
        if kind in values:
            panel.get_by_label("Value").first.fill(values[kind])
        panel.get_by_role("button", name="Add breakpoint").click()
        Breakpoint.from_json(last(tab)["breakpoint"])
    panel.get_by_label("Condition", exact=True).first.select_option("conf_below")
    panel.get_by_role("button", name="+ and").click()
    panel.get_by_label("Condition", exact=True).nth(1).select_option("masked")
    panel.get_by_role("button", name="Add breakpoint").click()
    assert Breakpoint.from_json(last(tab)["breakpoint"]).of == "masked"


def test_stepping_moves_on_the_log_at_once_and_runs_on_where_it_ends(tab):
    messages = synth.messages(compare=False, end=False)
    feed(tab, messages)
    push(tab, {"type": "status", "state": "paused", "text": "", "place": None})
    steps = steps_of(messages)
    panel = open_panel(tab, "Breakpoints")
    tab.keyboard.press("Home")
    drifts = [i for i, s in enumerate(steps) if any(c[3] == "drift" for c in s["c"])]
    now = "() => page.store.passOf('A')"
    for i in drifts[:2]:
        panel.get_by_role("button", name="Forward to drift event").click()
        assert tab.evaluate(now) == i
    panel.get_by_role("button", name="Back to drift event").click()
    assert tab.evaluate(now) == drifts[0]
    panel.get_by_role("button", name="Back to pass").click()
    assert tab.evaluate(now) == drifts[0] - 1
    panel.get_by_role("button", name="Back to drift event").click()
    assert "no drift event" in panel.inner_text()
    assert tab.evaluate("() => sent.length") == 0, "nothing of this needs the server"
    tab.keyboard.press("End")
    for name, what in (("drift event", "drift"), ("pass", "pass"), ("block entry", "block")):
        panel.get_by_role("button", name=f"Forward to {name}").click()
        assert last(tab) == {"cmd": "step", "what": what, "lane": "A"}
    tab.locator('[role=grid][aria-label="Tokens of lane A"] [tabindex="0"]').focus()
    tab.keyboard.press("b")
    assert last(tab) == {"cmd": "breakpoint", "op": "add", "breakpoint": {"position": 26}}


def test_tabs_work_from_the_keyboard(tab):
    feed(tab, synth.messages())
    first = tab.get_by_role("tab", name="Why")
    first.focus()
    names = tab.get_by_role("tab").all_inner_texts()
    for name in names[1:]:
        tab.keyboard.press("ArrowRight")
        assert tab.evaluate("() => document.getElementById('root').shadowRoot.activeElement.textContent") == name
        assert tab.get_by_role("tab", name=name, exact=True).get_attribute("aria-selected") == "true"
        assert tab.get_by_role("tabpanel", name=name, exact=True).is_visible()
    tab.keyboard.press("Home")
    assert tab.get_by_role("tabpanel", name="Why", exact=True).is_visible()
    assert tab.locator(".compare").is_visible(), "the comparison stands below while nothing is selected"
    assert tab.evaluate("() => page.store.follow"), "arrows in the tab strip do not move the pass"


# ---- why, forks -------------------------------------------------------------------------------------------------------------


def test_why_tells_the_life_of_a_token_and_breaks_or_forks_from_it(tab):
    messages = synth.messages(compare=False)
    feed(tab, messages)
    steps = steps_of(messages)
    at, commit = next((s["i"], c) for s in steps[8:] for c in s["c"] if c[3] == "drift")
    pos, _, conf, _, delta, _gate = commit
    tab.evaluate("(i) => { page.store.seekPass('A', i); page.store.flush(); }", at)
    select(tab, pos)
    why = tab.get_by_role("tabpanel", name="Why", exact=True)
    text = why.inner_text()
    assert f"committed at pass {at}: drift event" in text
    assert f"{delta:.3f} ≥ 10 · (0.90 − {conf:.2f})²" in text, "the rule with its numbers"
    assert "static 0.9 alone" in text and "Candidates at pass" in text.replace("CANDIDATES AT PASS", "Candidates at pass")
    assert "best guess:" in text and "argmax" in text
    why.get_by_role("button", name="break here").click()
    assert last(tab) == {"cmd": "breakpoint", "op": "add", "breakpoint": {"position": pos}}
    why.get_by_label("Token to put here").fill(" Paris")
    why.get_by_role("button", name="put").click()
    forks = tab.get_by_role("tabpanel", name="Forks", exact=True)
    forks.wait_for()
    assert f"from pass {at} of lane A" in forks.inner_text()
    select(tab, 100)
    forks.get_by_role("button", name="re-mask").click()
    forks.get_by_label("Parameter to change").select_option("alpha")
    forks.get_by_label("New value of alpha").fill("4")
    forks.get_by_label("Show the fork in lane").select_option("B")
    forks.get_by_role("button", name="Fork", exact=True).click()
    assert last(tab) == {
        "cmd": "fork", "lane": "A", "pass": at, "changes": {"alpha": 4}, "method": None, "edits": {str(pos): " Paris", "100": None}, "to": "B",
    }  # fmt: skip


def test_a_fork_can_change_the_method_and_branches_open_in_either_lane(tab):
    feed(tab, synth.messages())
    push(tab, *synth.debug_events())
    tab.evaluate("() => { page.store.seek(12); page.store.flush(); }")
    forks = open_panel(tab, "Forks")
    forks.get_by_label("Method of the fork").select_option("klass")
    forks.get_by_role("button", name="Fork", exact=True).click()
    assert last(tab)["method"] == "klass" and last(tab)["pass"] == 12 and last(tab)["edits"] == {}
    forks.get_by_label("Parameter to change").select_option("tau_s")
    forks.get_by_label("New value of tau_s").fill("")
    before = tab.evaluate("() => sent.length")
    forks.get_by_role("button", name="Fork", exact=True).click()
    assert tab.evaluate("() => sent.length") == before and "τ_s is empty" in forks.get_by_role("alert").inner_text()
    branches = forks.get_by_role("list", name="Branches").get_by_role("listitem")
    assert branches.all_inner_texts()[0].startswith("Polestar") and "from pass 12" in branches.nth(1).inner_text()
    forks.get_by_role("button", name="Open position 47 = clips in lane A").click()
    assert last(tab) == {"cmd": "branch", "id": "b3", "lane": "A"}


# ---- what if ----------------------------------------------------------------------------------------------------------------


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


def test_what_if_says_when_the_rule_cannot_be_judged(tab):
    messages = synth.messages(compare=False)
    feed(tab, messages[:1])
    header = {**events_of(messages, "header")[0]["header"], "method": "klass", "title": "KLASS"}
    header["config"] = {k: v for k, v in header["config"].items() if k != "tau_s"}
    push(tab, {"type": "header", "lane": "A", "header": header}, {"type": "steps", "lane": "A", "steps": steps_of(messages)})
    assert "KLASS does not commit by one threshold" in open_panel(tab, "What if").inner_text()


# ---- timing, memory, observe ------------------------------------------------------------------------------------------------


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


# ---- linked brushing --------------------------------------------------------------------------------------------------------


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


# ---- notes ------------------------------------------------------------------------------------------------------------------


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


# ---- export, links, opening -------------------------------------------------------------------------------------------------


def download(tab, button) -> tuple[str, bytes]:
    with tab.expect_download() as got:
        button.click()
    return got.value.suggested_filename, Path(got.value.path()).read_bytes()


def test_the_view_is_saved_as_png_and_svg(tab):
    feed(tab, synth.messages(hostile=True))
    tab.evaluate("() => { page.store.seek(20); page.store.flush(); }")
    panel = open_panel(tab, "Export")
    name, data = download(tab, panel.get_by_role("button", name="SVG"))
    assert name == "polestar-polestar-vs-fast-dllm-dual.svg"
    root = xml.etree.ElementTree.fromstring(data)
    texts = " ".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "Polestar" in texts and "LOCAL WINDOW" in texts and "pass 20" in texts
    assert "<img src=x onerror=alert(1)>" in texts, "the answer, as text"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}image"))) >= 6 and not list(root.iter("{http://www.w3.org/2000/svg}script"))
    name, data = download(tab, panel.get_by_role("button", name="PNG"))
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    box = tab.locator(".app").bounding_box()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and (width, height) == (round(box["width"]) * 2, round(box["height"]) * 2) and len(data) > 100_000


def test_tables_are_saved_as_csv(tab):
    messages = synth.messages(hostile=True)
    feed(tab, messages)
    panel = open_panel(tab, "Export")

    def table(title):
        _, data = download(tab, panel.get_by_role("button", name=f"{title} (CSV)"))
        return list(csv.DictReader(io.StringIO(data.decode())))

    rows = table("Passes")
    both = [(lane, s) for lane in "AB" for s in steps_of(messages, lane)]
    assert len(rows) == len(both)
    for row, (lane, s) in zip(rows, both, strict=True):
        assert (row["lane"], int(row["pass"]), row["kind"], int(row["rows"]), float(row["seconds"])) == (lane, s["i"], s["k"], s["rows"], s["dt"])
        assert row["N"] == ("" if s["N"] is None else str(s["N"])) and row["reason"] == s["why"]
    rows = table("Commits")
    wanted = [(lane, s["i"], c[0], c[1]) for lane, s in both for c in s["c"]]
    assert [(r["lane"], int(r["pass"]), int(r["position"]), int(r["token"])) for r in rows] == wanted
    vocab = events_of(messages, "vocab", None)[0]["map"]
    assert all(json.loads(r["text"]) == vocab[r["token"]]["t"] for r in rows)
    rows = table("Confidence and drift")
    first = steps_of(messages)[3]
    mine = [r for r in rows if r["lane"] == "A" and r["pass"] == "3"]
    conf = np.frombuffer(base64.b64decode(first["conf"]), "<f4")
    assert [r["confidence"] for r in mine].count("") == int(np.isnan(conf).sum())
    assert np.allclose([float(r["confidence"]) for r in mine if r["confidence"]], conf[~np.isnan(conf)])
    assert next(r["measure"] for r in table("Comparison")) == "forward passes (NFE)"


def test_files_are_asked_of_the_server_and_linked(tab):
    feed(tab, synth.messages())
    panel = open_panel(tab, "Export")
    for label, what in (("HTML", "html"), ("Trace", "trace"), ("Parquet", "parquet")):
        panel.get_by_role("button", name=label, exact=True).click()
        assert last(tab) == {"cmd": "export", "what": what, "lane": "A"}
    push(tab, {"type": "file", "name": "run.html", "url": "polestar/file/abc/run.html"})
    link = panel.get_by_role("link", name="run.html")
    assert link.get_attribute("href") == "polestar/file/abc/run.html" and link.get_attribute("download") == "run.html"


def test_a_short_link_restores_settings_and_position(tab, harness):
    messages = synth.messages()
    feed(tab, messages)
    tab.get_by_role("button", name="tokens", exact=True).click()
    tab.evaluate("() => { page.store.seekPass('A', 9); page.store.flush(); }")
    select(tab, 61)
    panel = open_panel(tab, "Export")
    panel.get_by_role("button", name="copy link").click()
    url = panel.get_by_label("Short link").input_value()
    here = "() => [page.store.passOf('A'), page.store.passOf('B'), page.store.sel, page.store.view.align, page.store.view.tab, page.store.follow]"
    before = tab.evaluate(here)
    with open_tab(harness) as other:
        other.goto("about:blank")
        other.goto(url)
        other.wait_for_function("window.ready && sent.length")
        sent = other.evaluate("() => sent")
        assert sent[0]["cmd"] == "settings"
        values = sent[0]["values"]
        assert values["method_a"] == "polestar" and values["method_b"] == "fast-dllm-dual" and values["compare"] is True
        assert values["tau_s"] == 0.9 and values["alpha"] == 10 and values["preset"] == "paper"
        feed(other, messages)
        assert other.evaluate(here) == before
    with open_tab(harness) as other:
        other.goto("about:blank")
        other.goto(url.split("#")[0] + "#ps=broken!")
        other.wait_for_function("window.ready")
        assert "link in the address is damaged" in other.locator(".empty").inner_text()
        assert other.evaluate("() => sent.length") == 0


DROP = """([selector, name, bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], name));
  const target = document.getElementById('root').shadowRoot.querySelector(selector);
  for (const type of ['dragover', 'drop']) target.dispatchEvent(new DragEvent(type, {dataTransfer: data, bubbles: true, composed: true, cancelable: true}));
}"""


def test_traces_open_by_drop_and_from_the_panel_and_a_bad_one_changes_nothing(tab, tmp_path):
    feed(tab, synth.messages())
    posted = []

    def answer(route):
        posted.append(route.request.post_data_buffer)
        bad = not posted[-1].startswith(b"good")
        reply = {"error": "notes.txt is no trace (it does not begin like a safetensors file); open a trace."} if bad else {"name": "upload-1"}
        route.fulfill(json=reply)

    tab.route("**/polestar/open", answer)
    tab.evaluate(DROP, [".panels", "run.safetensors", list(b"good trace")])
    tab.wait_for_function("() => sent.at(-1)?.cmd === 'open'")
    assert posted == [b"good trace"] and last(tab) == {"cmd": "open", "name": "upload-1", "lane": None}
    tab.evaluate(DROP, ['section[aria-label="Lane B"] .lane-grid', "run.safetensors", list(b"good too")])
    tab.wait_for_function("() => sent.at(-1)?.lane === 'B'")
    sent = tab.evaluate("() => sent.length")
    state = "() => [page.store.run, page.store.lanes.A.n, page.store.lanes.B.n]"
    before = tab.evaluate(state)
    tab.evaluate(DROP, [".panels", "notes.txt", list(b"hello")])
    alert = tab.locator(".banner")
    alert.wait_for()
    assert "notes.txt is no trace" in alert.inner_text()
    assert tab.evaluate("() => sent.length") == sent and tab.evaluate(state) == before
    panel = open_panel(tab, "Export")
    file = tmp_path / "mine.safetensors"
    file.write_bytes(b"good file")
    panel.get_by_label("Open into").select_option("B")
    panel.get_by_label("Trace file").set_input_files(str(file))
    tab.wait_for_function("(n) => sent.length > n", arg=sent)
    assert last(tab) == {"cmd": "open", "name": "upload-1", "lane": "B"} and posted[-1] == b"good file"


# ---- lessons ----------------------------------------------------------------------------------------------------------------

LESSONS = Path(__file__).resolve().parent.parent / "assets" / "lessons"


def lesson_files():
    return [p for p in sorted(LESSONS.glob("*.md")) if p.stem != "README"]


def lessons_event():
    return {"type": "lessons", "list": [{"name": p.stem, "title": None, "order": None, "markdown": p.read_text()} for p in lesson_files()]}


def recording(name, *lanes):
    """The bundled recordings as the server would send them."""
    from polestar.trace.file import load
    from polestar.trace.wire import messages

    traces = {lane: load(LESSONS.parent / "traces" / f"{file}.safetensors") for lane, file in zip("AB", lanes, strict=False)}
    return messages(traces, run=name)


def test_six_lessons_drive_the_page_with_the_bundled_recordings(tab):
    feed(tab, synth.messages(compare=False))
    push(tab, lessons_event())
    panel = open_panel(tab, "Lessons")
    cards = panel.locator(".lesson-card")
    assert [c.split("\n")[0] for c in cards.all_inner_texts()] == [
        "1. What a diffusion LLM does",
        "2. Why caches go stale",
        "3. What drift is",
        "4. Polestar-Cache",
        "5. Polestar-Commit",
        "6. Reading a comparison honestly",
    ]
    runs = 0
    for k in range(6):
        tab.get_by_role("tab", name="Lessons").click()
        cards.nth(k).click()
        text = lesson_files()[k].read_text()
        first = text.split("trace: ")[1].split("\n")[0]
        shown = [first]
        sent = [c for c in tab.evaluate("() => sent.splice(0)") if c["cmd"] in ("open", "lesson")]
        assert sent[0]["cmd"] == "lesson" and sent[1:] in ([{"cmd": "open", "name": first, "lane": None}], [])
        runs += 1
        feed(tab, recording(f"l{runs}", *shown))
        number = 0
        while True:
            if tab.get_by_role("tab", name="Lessons").get_attribute("aria-selected") != "true":
                tab.get_by_role("tab", name="Lessons").click()
            lesson = panel.locator(".lesson")
            assert "`" not in lesson.inner_text() and "highlight" not in lesson.inner_text()
            assert panel.locator(".problem").is_hidden(), f"lesson {k + 1}, step {number}: {panel.locator('.problem').inner_text()}"
            if "Try it" in lesson.inner_text():
                break
            lesson.locator(".btn.primary").click()
            number += 1
            for c in tab.evaluate("() => sent.splice(0)"):
                if c["cmd"] == "open" and c["lane"] == "B":
                    runs += 1
                    shown = [first, c["name"]]
                    feed(tab, recording(f"l{runs}", *shown))
            tab.evaluate("() => page.store.flush()")
        assert number >= 5
        assert lesson.inner_text().count("?") >= 1, "each ends with something to try"
        lesson.get_by_role("button", name="done").click()


def test_a_teacher_can_add_a_lesson_and_its_text_is_only_text(tab):
    feed(tab, synth.messages(compare=False, status="replay"))
    source = (
        "---\ntitle: Mine\norder: 0\n---\nHello <b>you</b> and **bold** and `code`.\n\n1. First `goto pass=5` `select committed` `highlight heatmap`\n"
        '2. Run `run method=polestar prompt="Reverse: a b" compare=vanilla alpha=4`\n3. Odd `goto nowhere` step\n\n## Try it\nDo.\n'
    )
    push(tab, {"type": "lessons", "list": [{"name": "mine", "title": None, "markdown": source}]})
    panel = open_panel(tab, "Lessons")
    panel.get_by_role("button", name="Mine").click()
    assert "Hello <b>you</b> and bold and code." in panel.inner_text() and panel.locator("p b").all_inner_texts() == ["bold"]
    panel.get_by_role("button", name="start").click()
    assert tab.evaluate("() => [page.store.passOf('A'), page.store.sel.pos]")[0] == 5
    assert tab.locator(".lit-part").count() == 1 and "1 of 3" in panel.inner_text()
    panel.get_by_role("button", name="next").click()
    assert last(tab) == {"cmd": "run", "method": "polestar", "method_b": "vanilla", "prompt": "Reverse: a b", "changes": {"alpha": 4}}
    panel.get_by_role("button", name="next").click()
    assert 'step "goto nowhere" cannot be done' in panel.get_by_role("alert").inner_text()
    panel.get_by_role("button", name="all lessons").click()
    assert tab.locator(".lit-part").count() == 0


# ---- methods ----------------------------------------------------------------------------------------------------------------


def method_panel(tab, name):
    """Show a bundled recording of a method and its panel; answers (panel, trace)."""
    from polestar.trace.file import load

    feed(tab, recording(f"m-{name}", name))
    return open_panel(tab, "Method"), load(LESSONS.parent / "traces" / f"{name}.safetensors")


def overlay(tab, p):
    return tab.evaluate("async (p) => (await import('/assets/js/overlay.js')).overlayOf(page.store.lanes.A, p)", p)


def at_pass(tab, p):
    tab.evaluate("(p) => { page.store.seek(p); page.store.flush(); }", p)


def grid_pixels(tab):
    return tab.evaluate(
        """() => { page.store.flush(); const c = document.getElementById('root').shadowRoot.querySelector('.grid-cv canvas');
        return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.reduce((a, b) => (a * 31 + b) | 0, 0); }"""
    )


def test_dawn_draws_its_dependency_edges_over_the_grid(tab):
    panel, trace = method_panel(tab, "dawn")
    p = max(range(len(trace)), key=lambda i: len(trace[i].extra["dawn"]["edges"]))
    at_pass(tab, p)
    edges = trace[p].extra["dawn"]["edges"]
    assert [e[:2] for e in overlay(tab, p)["edges"]] == [list(map(int, e)) for e in edges]
    assert f"{len(edges)}: {edges[0][0]}→{edges[0][1]}" in panel.inner_text() and "depends on" in panel.inner_text()
    drawn = grid_pixels(tab)
    tab.get_by_role("tab", name="Why").click()
    plain = grid_pixels(tab)
    assert plain != drawn, "the edges are in the grid while the panel is open"
    tab.get_by_role("tab", name="Method").click()
    panel.get_by_role("checkbox").check()
    tab.get_by_role("tab", name="Why").click()
    assert grid_pixels(tab) == drawn, "and stay when asked"


def test_klass_shows_kl_in_its_panel_in_the_grid_and_in_why(tab):
    panel, trace = method_panel(tab, "klass")
    p = 4
    at_pass(tab, p)
    x, step = trace[p].extra["klass"], trace[p]
    kl = np.asarray(x["kl"], float)
    marks = overlay(tab, p)
    assert len(marks["bars"]) == int((~np.isnan(kl)).sum())
    assert [pos for pos, kind in marks["rings"] if kind == "stable"] == [int(v) for v in x["stable"]]
    assert "KL by position" in panel.inner_text() and "threshold 0.010" not in panel.inner_text(), "figures on the canvas are not text"
    j = int(np.flatnonzero(~np.isnan(kl))[0])
    tab.get_by_role("tab", name="Why").click()
    select(tab, step.block_start + j)
    assert "KL, nats" in tab.get_by_role("tabpanel", name="Why", exact=True).inner_text()


def test_each_method_says_what_it_kept_and_why_it_acted(tab):
    panel, trace = method_panel(tab, "elastic-cache")
    p = next(s.index for s in trace if s.refresh and s.extra["reset_layer"])
    at_pass(tab, p)
    text = panel.inner_text()
    assert trace[p].refresh_reason in text
    assert f"recomputed\n{trace[p].extra['reset_layer']}" in text and "tracked positions" in text
    assert [pos for pos, kind in overlay(tab, p)["rings"] if kind == "tracked"] == [int(v) for v in trace[p].extra["tracked"]]
    panel.get_by_role("button", name=str(int(trace[p].extra["tracked"][0])), exact=True).click()
    assert tab.evaluate("() => page.store.sel.pos") == int(trace[p].extra["tracked"][0])

    panel, trace = method_panel(tab, "d2cache")
    at_pass(tab, 3)
    rings = overlay(tab, 3)["rings"]
    for part, rows in trace[3].extra["chosen"].items():
        assert [pos for pos, kind in rings if kind == part] == [int(v) for v in rows]
    assert "recomputed: masks" in panel.inner_text()

    panel, trace = method_panel(tab, "dynamic-dllm")
    at_pass(tab, 3)
    assert panel.get_by_text("By layer, at this pass").is_visible() and overlay(tab, 3)["spans"] == [list(trace[3].extra["window"])]

    panel, trace = method_panel(tab, "entropycache")
    at_pass(tab, 3)
    assert "Reconstructed" in panel.inner_text()
    assert f"{trace[3].extra['entropy']:.2f} nats" in panel.inner_text()

    panel, trace = method_panel(tab, "adablock")
    at_pass(tab, len(trace) - 1)
    blocks = []
    for s in trace:
        if [s.block_start, s.block_end] not in blocks:
            blocks.append([s.block_start, s.block_end])
    assert overlay(tab, len(trace) - 1)["spans"] == blocks and "blocks as the method has set them" in panel.inner_text()

    panel, _ = method_panel(tab, "polestar")
    assert "logs nothing beyond what the other panels show" in panel.inner_text()


def test_the_empty_page_offers_a_recording_and_a_lesson(tab):
    tab.evaluate("""() => { window.page.destroy(); }""")
    tab.evaluate(
        """async () => { const {mount} = await import('/assets/js/main.js');
        window.page = mount(document.getElementById('root'), {send: (x) => window.sent.push(x),
          samples: ['dawn', 'polestar', 'vanilla'].map((name) => ({name, title: name}))}); }"""
    )
    tab.wait_for_function("() => page.store.theme")
    status = {"type": "status", "state": "empty", "text": "", "place": None}
    feed(tab, [json.dumps({"v": 1, "run": "r0", "seq": 0, "events": [status, lessons_event(), synth.debug_events()[3]]})])
    empty = tab.locator(".empty")
    empty.get_by_role("button", name="Open a recorded run: Polestar").click()
    assert last(tab) == {"cmd": "open", "name": "polestar"}
    empty.get_by_label("Another recorded run").select_option("dawn")
    assert last(tab) == {"cmd": "open", "name": "dawn"}
    empty.get_by_role("button", name="Start the first lesson").click()
    assert last(tab) == {"cmd": "open", "name": "vanilla", "lane": None}
    feed(tab, recording("l1", "vanilla"))
    assert empty.is_hidden() and "What a diffusion LLM does" in tab.get_by_role("tabpanel", name="Lessons").inner_text()


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
    push(tab, {"type": "steps", "lane": "B", "steps": steps[passes:]}, {"type": "end", "lane": "B", "status": "done", "metrics": None})
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


def test_a_failed_fork_leaves_the_other_lane_in_sight(tab):
    feed(tab, synth.messages())
    before = tab.evaluate("() => [page.store.lanes.A.n, page.store.lanes.B.n]")
    push(tab, {"type": "status", "state": "error", "text": "The fork could not be restored.", "place": None})
    assert tab.evaluate("() => [page.store.lanes.A.n, page.store.lanes.B.n]") == before
    for lane in "AB":
        assert tab.locator(f'section[aria-label="Lane {lane}"] .grid-cv').is_visible()
    assert tab.locator(".empty").is_hidden() and "could not be restored" in tab.locator(".banner").inner_text()

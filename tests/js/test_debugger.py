"""Stop, step, ask why, fork: the debugger's part of the page in a real browser."""

from __future__ import annotations

import synth
from pages import LESSONS, events_of, feed, last, open_panel, push, select, settle, steps_of


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


def test_a_breakpoint_that_cannot_fire_in_what_is_shown_says_so(tab):
    listed = {"type": "breakpoints", "list": [{"id": 1, "text": "a commit at position 900", "enabled": True, "fired": None, "position": 900}]}
    feed(tab, synth.messages(end=False, compare=False))
    panel = open_panel(tab, "Breakpoints")
    note = panel.get_by_role("note")
    push(tab, listed)
    length, prompt = tab.evaluate("() => [page.store.lanes.A.header.length, page.store.lanes.A.P]")
    assert note.inner_text() == f"position 900 is outside the canvas of {length} positions shown now; it cannot fire in this run"
    for position, said in ((length, True), (length - 1, False), (prompt, False), (prompt - 1, True), (None, False)):
        listed["list"][0]["position"] = position
        push(tab, listed)
        assert note.count() == said, position
    listed["list"][0]["position"] = 0
    push(tab, listed)
    assert note.inner_text() == f"position 0 belongs to the prompt of {prompt} positions shown now; it cannot fire in this run"
    listed["list"][0]["position"] = length
    push(tab, listed)
    header = tab.evaluate("() => page.store.lanes.A.header")
    push(tab, {"type": "header", "lane": "B", "header": {**header, "gen_length": header["gen_length"] + 8, "length": length + 8}})
    assert note.count() == 1 and note.inner_text() == f"position {length} is outside the canvas of {length} positions of lane A; it cannot fire there"
    push(tab, {"type": "header", "lane": "A", "header": {**header, "gen_length": header["gen_length"] + 8, "length": length + 8}})
    assert note.count() == 0, "a longer run has the position, and the note goes without a new list"
    listed["list"][0]["position"] = 900
    push(tab, listed)
    assert note.count() == 1 and "in these runs" in note.inner_text()
    push(tab, {"type": "reset"})
    assert "position 900" in panel.locator(".rows").text_content() and note.count() == 0, "with no run shown there is nothing to say"


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


def test_the_fork_form_shows_the_parameters_of_the_picked_method(tab):
    from ui.debug import methods_event
    from ui.tables import Tables

    tables = Tables.read()
    feed(tab, synth.messages())
    push(tab, methods_event(tables))
    forks = open_panel(tab, "Forks")
    offered = forks.get_by_label("Parameter to change").locator("option")

    def names():
        return [v for v in offered.evaluate_all("(o) => o.map((x) => x.value)") if v]

    assert "alpha" in names() and "kl_threshold" not in names()
    forks.get_by_label("Parameter to change").select_option("alpha")
    forks.get_by_label("Parameter to change").select_option("temperature")
    forks.get_by_label("New value of temperature").fill("0.5")
    forks.get_by_label("Method of the fork").select_option("klass")
    settle(tab)
    klass = tables.methods["klass"].specs
    assert set(names()) == set(klass) - {"gen_length", "block_length", "temperature"}
    assert "KLASS has no α: taken out" in forks.inner_text()
    own = next(p for p in klass.values() if p.group != "run" and p.kind is float and p.name != "temperature")
    assert offered.locator(f"xpath=self::*[@value='{own.name}']").inner_text() == f"{own.symbol} = {own.default:g}"
    forks.get_by_label("Parameter to change").select_option(own.name)
    settle(tab)
    text = forks.inner_text()
    assert own.help in text and f"Default: {own.default:g}." in text and f"{own.default:g} →" in text
    forks.get_by_label(f"New value of {own.name}").fill("0.25")
    forks.get_by_label("Parameter to change").select_option("exclude_mask")
    forks.get_by_label("New value of exclude_mask").select_option("false")
    forks.get_by_role("button", name="Fork", exact=True).click()
    assert (last(tab)["method"], last(tab)["changes"]) == ("klass", {"temperature": 0.5, own.name: 0.25, "exclude_mask": False})
    forks.get_by_label("Method of the fork").select_option("")
    settle(tab)
    assert "alpha" in names() and own.name not in names()


def test_the_form_says_the_values_that_the_engine_would_begin_with(tab):
    """Of every method, forked from a recording in which a person had moved a parameter."""
    from polestar.fork import _switched_config
    from polestar.trace import ParamChange, load
    from polestar.trace.wire import messages, plain
    from ui.debug import methods_event
    from ui.tables import Tables

    trace = load(LESSONS.parent / "traces" / "polestar.safetensors")
    trace[2].changes = [ParamChange("tau_s", trace.header.config["tau_s"], 0.75)]
    feed(tab, messages({"A": trace}, run="moved"))
    tables = Tables.read()
    push(tab, methods_event(tables))
    shown = "async ([p, m]) => (await import('/assets/js/params.js')).forkParams(page.store.methods, page.store.lanes.A, p, m)"
    for method in tables.methods:
        for p in (1, 3):
            if method != "polestar":
                assert tab.evaluate(shown, [p, method]) == plain(dict(_switched_config(trace, p, method, None, {}))), (method, p)
    assert tab.evaluate(shown, [3, "parallel"])["tau_s"] == 0.75 and tab.evaluate(shown, [1, "parallel"])["tau_s"] == 0.9


def test_a_failed_fork_leaves_the_other_lane_in_sight(tab):
    feed(tab, synth.messages())
    before = tab.evaluate("() => [page.store.lanes.A.n, page.store.lanes.B.n]")
    push(tab, {"type": "status", "state": "error", "text": "The fork could not be restored.", "place": None})
    assert tab.evaluate("() => [page.store.lanes.A.n, page.store.lanes.B.n]") == before
    for lane in "AB":
        assert tab.locator(f'section[aria-label="Lane {lane}"] .grid-cv').is_visible()
    assert tab.locator(".empty").is_hidden() and "could not be restored" in tab.locator(".banner").inner_text()


def test_while_a_fork_runs_in_lane_b_the_chip_says_what_each_lane_is(tab):
    """Lane A is what the fork came from, shown again from its log; only lane B is decoded now."""
    messages = synth.messages(end=False)
    chip, line = tab.locator(".state"), tab.locator(".state-line")
    a, b = (events_of(messages, "header", lane)[0]["header"] for lane in "AB")

    def status(state):
        push(tab, {"type": "status", "state": state, "text": "", "place": None})
        return chip.inner_text()

    feed(tab, messages[:1])
    push(tab, {"type": "header", "lane": "A", "header": {**a, "live": False}}, {"type": "steps", "lane": "A", "steps": steps_of(messages)})
    push(tab, {"type": "end", "lane": "A", "status": "done", "metrics": None})
    push(tab, {"type": "header", "lane": "B", "header": {**b, "live": True}}, {"type": "steps", "lane": "B", "steps": steps_of(messages, "B")[:4]})
    assert tab.evaluate("() => page.store.focus") == "A"
    assert status("running") == "A recorded · B live" and chip.get_attribute("data-state") == "live"
    assert line.inner_text().startswith("lane A: pass ")
    assert status("paused") == "A recorded · B paused"
    assert status("done") == "A recorded · B done"
    status("running")
    tab.keyboard.press("l")
    assert tab.evaluate("() => page.store.flush() || page.store.focus") == "B" and chip.inner_text() == "live"
    # A comparison one lane after the other: lane A has ended, lane B goes on.
    feed(tab, [m.replace('"run": "r1"', '"run": "r9"') for m in messages])
    tab.keyboard.press("l")
    push(tab, {"type": "end", "lane": "A", "status": "done", "metrics": None})
    assert tab.evaluate("() => page.store.flush() || page.store.focus") == "A" and status("running") == "A finished · B live"
    push(tab, {"type": "end", "lane": "B", "status": "done", "metrics": None})
    assert status("done") == "done"
    # Recordings alone stay what they were.
    feed(tab, synth.messages(run="r10", live=False, status="replay"))
    assert chip.inner_text() == "replay"

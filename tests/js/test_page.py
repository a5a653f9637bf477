"""The page's javascript in a real browser, fed with invented messages in the documented format."""

from __future__ import annotations

import json
import random

import synth
from pages import events_of, feed, steps_of


def canvas_after(header, steps, p):
    """Independent reference: tokens of the generation after pass p, -1 where masked."""
    out = [-1] * (header["length"] - header["prompt_length"])
    for step in steps[: p + 1]:
        for pos, tok, *_ in step["c"]:
            out[pos - header["prompt_length"]] = tok
    return out


def test_flood_of_256_passes_arrives_complete_and_in_order(tab):
    messages = synth.messages(gen_length=512, passes=260, per_message=1, compare=False, level="steps")
    steps = steps_of(messages)
    assert len(steps) >= 256
    shuffled = messages[:1] + random.Random(3).sample(messages[1:], len(messages) - 1)
    feed(tab, shuffled + messages[5:9])  # out of order, and some twice
    got = tab.evaluate("() => page.store.lanes.A.steps.map((s) => [s.i, s.commits.length, s.t])")
    assert got == [[s["i"], len(s["c"]), s["t"]] for s in steps]
    assert tab.evaluate("() => page.store.pending.size") == 0


def test_late_message_is_waited_for_and_asked_again(tab):
    messages = synth.messages(compare=False)
    feed(tab, messages[:4] + messages[5:])
    assert tab.evaluate("() => page.store.nextSeq") == 4
    tab.wait_for_function("() => sent.some((x) => x.cmd === 'resend' && x.from === 4)", timeout=6000)
    assert "Message 4" in tab.locator(".banner").inner_text()
    feed(tab, [messages[4]])
    assert tab.evaluate("() => page.store.nextSeq") == len(messages)
    assert tab.locator(".banner").is_hidden()


def test_state_at_any_pass_equals_a_replay_of_the_commits(tab):
    messages = synth.messages(gen_length=160, passes=110)
    feed(tab, messages)
    for lane in "AB":
        header = events_of(messages, "header", lane)[0]["header"]
        steps = steps_of(messages, lane)
        order = [*random.Random(5).choices(range(-1, len(steps)), k=60), 31, 32, 33, 63, 64, 0, -1, len(steps) - 1]
        got = tab.evaluate("([lane, order]) => order.map((p) => [...page.store.lanes[lane].stateAt(p).tok])", [lane, order])
        for p, tokens in zip(order, got, strict=True):
            assert tokens == canvas_after(header, steps, p), f"lane {lane}, pass {p}"


def test_counters_follow_the_cursor_and_end_at_the_servers_metrics(tab):
    messages = synth.messages()
    feed(tab, messages)
    for lane in "AB":
        header, steps = events_of(messages, "header", lane)[0]["header"], steps_of(messages, lane)
        tab.evaluate("() => { page.store.seek(5); page.store.flush(); }")
        tokens = sum(len(s["c"]) for s in steps[:6])
        own = sum(c[1] != synth.EOS for s in steps[:6] for c in s["c"])
        card = tab.locator(f'section[aria-label="Lane {lane}"]')
        assert card.locator(".stat-tokens dd").inner_text() == f"{tokens}/{header['gen_length']}"
        assert card.locator(".stat-tpf dd").inner_text() == f"{own / 6:.2f}"
        assert card.locator(".stat-rows dd").inner_text() == f"{sum(s['rows'] for s in steps[:6]) / tokens:.1f}"
        tab.evaluate("() => { page.store.end(); page.store.flush(); }")
        m = events_of(messages, "end", lane)[0]["metrics"]
        assert card.locator(".stat-tpf dd").inner_text() == f"{m['tpf']:.2f}"
        assert card.locator(".stat-tps dd").inner_text() == f"{m['tps']:.1f}"


def test_lanes_align_by_pass_time_and_tokens(tab):
    messages = synth.messages()
    feed(tab, messages)
    a, b = steps_of(messages, "A"), steps_of(messages, "B")

    def at(x):
        return tab.evaluate("(x) => { page.store.seek(x); return [page.store.passOf('A'), page.store.passOf('B')]; }", x)

    assert at(12) == [12, 12]
    tab.get_by_role("button", name="wall time").click()
    t = a[12]["t"]
    assert at(t) == [12, max(i for i, s in enumerate(b) if s["t"] <= t)]
    tab.get_by_role("button", name="tokens", exact=True).click()
    n = sum(len(s["c"]) for s in a[:13])
    cum = [sum(len(s["c"]) for s in b[: i + 1]) for i in range(len(b))]
    assert at(n) == [12, max((i for i, c in enumerate(cum) if c <= n), default=-1)]


def test_keyboard_moves_cursor_events_selection_and_help(tab):
    messages = synth.messages()
    feed(tab, messages)
    steps = steps_of(messages)
    now = "() => page.store.passOf('A')"
    last = len(steps) - 1
    tab.keyboard.press("Home")
    assert tab.evaluate(now) == 0
    for _ in range(3):
        tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowLeft")
    assert tab.evaluate(now) == 2
    tab.keyboard.press("]")
    entry = next(i for i, s in enumerate(steps) if s["b"] == 1)
    assert tab.evaluate(now) == entry
    tab.keyboard.press("[")
    assert tab.evaluate(now) == 0
    tab.locator("select[aria-label^='Kind of event']").select_option("refresh")
    tab.locator(".scrub [role=slider]").focus()
    tab.keyboard.press("]")
    assert tab.evaluate(now) == next(i for i, s in enumerate(steps) if s["rf"])
    tab.keyboard.press("End")
    assert tab.evaluate(now) == last
    assert tab.evaluate("() => page.store.follow") is True
    tab.locator('[role=grid][aria-label="Tokens of lane A"] [tabindex="0"]').focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("() => page.store.sel.pos") == 28
    assert tab.evaluate(now) == last, "arrows in the grid move the cell, not the pass"
    tab.evaluate("() => page.store.flush()")  # panels draw on the next frame, which a busy machine makes late
    assert "position 28" in tab.locator(".why").inner_text().lower()
    tab.keyboard.press("b")
    assert tab.evaluate("() => sent.at(-1).cmd") == "breakpoint"
    tab.keyboard.press("?")
    assert tab.locator("dialog.help").is_visible()
    tab.keyboard.press("Escape")
    assert not tab.locator("dialog.help").is_visible()
    tab.keyboard.press("Escape")
    assert tab.evaluate("() => page.store.sel") is None


def test_space_pauses_a_run_and_plays_a_recording(tab):
    feed(tab, synth.messages(end=False))
    tab.keyboard.press(" ")
    assert tab.evaluate("() => sent.at(-1)") == {"cmd": "pause"}
    feed(tab, synth.messages(run="r2", live=False, status="replay"))
    tab.keyboard.press("Home")
    tab.keyboard.press(" ")
    tab.wait_for_function("() => page.store.passOf('A') >= 3", timeout=5000)
    tab.keyboard.press(" ")
    assert tab.evaluate("() => page.store.playing") is False
    assert tab.locator(".state").inner_text() == "replay"


def test_keys_typed_into_a_field_are_left_alone(tab):
    feed(tab, synth.messages())
    tab.evaluate("() => { const t = document.createElement('textarea'); document.body.prepend(t); t.focus(); page.store.seek(7); }")
    tab.keyboard.press("Home")
    tab.keyboard.type("b ?[]")
    assert tab.evaluate("() => page.store.x") == 7
    assert tab.evaluate("() => document.querySelector('textarea').value") == "b ?[]"
    assert tab.evaluate("() => sent.length") == 0


def test_model_text_shows_literally(tab):
    feed(tab, synth.messages(hostile=True))
    answer = tab.locator('[aria-label="Answer of lane A"]')
    assert "${HOME} <img src=x onerror=alert(1)> {{value}}</script>" in answer.inner_text()
    assert "\u202e" not in answer.inner_text(), "a direction override must not turn the rest of the page's text around"
    tab.evaluate("() => { page.store.select('A', 31); page.store.flush(); }")
    assert "·<img·src=x·onerror=alert(1)>" in tab.locator(".why .tok").inner_text()
    assert tab.evaluate("() => document.getElementById('root').shadowRoot.querySelectorAll('img, script').length") == 0


def test_screen_reader_gets_text_and_state(tab):
    messages = synth.messages()
    feed(tab, messages)
    tab.evaluate("() => { page.store.seek(9); page.store.flush(); }")
    grid = tab.get_by_role("grid", name="Tokens of lane A")
    tab.wait_for_timeout(300)
    cells = grid.get_by_role("gridcell")
    assert cells.count() == 128
    pos, _, _, reason, *_ = steps_of(messages)[9]["c"][0]
    text = cells.nth(pos - 26).inner_text()
    words = {"confidence": "confidence", "drift": "drift event", "forced": "forced", "suffix": "suffix pre-commit"}
    assert f"position {pos}" in text and words[reason] in text and "committed at pass 9" in text and "new in this pass" in text
    assert "masked" in cells.nth(127).inner_text()


def test_bytes_of_a_character_show_until_it_is_complete(tab):
    got = tab.evaluate(
        """async () => { const {cellTexts, pieces} = await import('/assets/js/tokens.js');
        const V = [{t: '', b: 'e282'}, {t: '', b: 'ac'}, {t: ' a\\n'}];
        const of = (id) => V[id];
        return [cellTexts([0, -1, 2], of), cellTexts([0, 1, 2], of), cellTexts([1, 0], of), pieces([0, 1, 2, 1], 4, of)]; }"""
    )
    assert got[0] == ["E2 82", "", "·a⏎"]
    assert got[1] == ["€", "◂", "·a⏎"]
    assert got[2] == ["AC", "E2 82"]
    assert got[3] == [{"kind": "text", "text": "€ a\n"}, {"kind": "bytes", "text": "⟨AC⟩"}]


def test_first_divergence_is_found_marked_and_reached(tab):
    messages = synth.messages()
    feed(tab, messages)
    final, when = {}, {}
    for lane in "AB":
        for s in steps_of(messages, lane):
            for pos, tok, *_ in s["c"]:
                final[lane, pos], when[lane, pos] = tok, s["i"]
    differ = [p for p in range(26, 154) if final["A", p] != final["B", p]]
    assert differ
    first = min(differ, key=lambda p: (max(when["A", p], when["B", p]), p))
    passes = max(when["A", first], when["B", first])
    link = tab.get_by_role("button", name=f"first divergence: position {first}, pass {passes}")
    link.click()
    assert tab.evaluate("() => [page.store.sel.pos, page.store.passOf('A')]") == [first, min(passes, tab.evaluate("() => page.store.lanes.A.n - 1"))]
    assert f"{len(differ)} of 128 positions differ" in tab.locator(".compare").inner_text()


def test_comparison_names_what_lane_a_loses(tab):
    feed(tab, synth.messages())
    tab.evaluate("() => { page.store.lanes.A.metrics.tps = 1; page.store.touch('data'); page.store.flush(); }")
    text = tab.locator(".compare .verdict").inner_text()
    assert text.startswith("Polestar loses on") and "TPS" in text


def test_states_empty_queue_error_and_reset(tab):
    empty = tab.locator(".empty")
    assert empty.is_visible()
    empty.get_by_role("button", name="Open").first.click()
    assert tab.evaluate("() => sent.at(-1)") == {"cmd": "open", "name": "polestar"}

    def status(run, **event):
        feed(tab, [json.dumps({"v": 1, "run": run, "seq": 0, "events": [{"type": "status", "place": None, "text": "", **event}]})])

    status("q", state="queued", place=2)
    assert "number 2 in line" in empty.inner_text()
    status("l", state="loading", text="loading weights on cpu")
    assert "loading weights on cpu" in empty.inner_text()
    status("e", state="error", text="The prompt is 900 tokens and the model takes 512; shorten the prompt.")
    assert "shorten the prompt" in empty.inner_text()
    feed(tab, synth.messages(run="r3"))
    assert empty.is_hidden()
    feed(tab, [json.dumps({"v": 1, "run": "r3", "seq": len(synth.messages(run="r3")), "events": [{"type": "reset"}]})])
    assert empty.is_visible()


def test_themes_follow_the_page(tab):
    feed(tab, synth.messages())
    bg = "() => getComputedStyle(document.getElementById('root').shadowRoot.querySelector('.app')).backgroundColor"
    dark = tab.evaluate(bg)
    tab.evaluate("() => { document.body.className = 'light'; }")
    tab.wait_for_timeout(100)
    light = tab.evaluate(bg)
    assert dark != light
    assert tab.evaluate("() => page.store.theme.name") == "light"
    assert tab.evaluate("() => page.store.theme.ink") == "#182033"


def test_no_redraw_when_nothing_changed(tab):
    feed(tab, synth.messages())
    tab.wait_for_timeout(200)
    frames = tab.evaluate(
        """async () => { let n = 0; const s = page.store; s.listeners.add(() => n++);
        s.seek(s.x, s.follow); s.select(null); s.point(null); await new Promise((r) => setTimeout(r, 200)); return n; }"""
    )
    assert frames == 0

"""Lessons drive the page with the bundled recordings; the empty page offers both."""

from __future__ import annotations

import json

import synth
from pages import feed, last, lesson_files, lessons_event, open_panel, push, recording


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


def test_a_lesson_that_begins_is_scrolled_to_on_a_small_page_and_its_list_is_where_all_lessons_says(tab):
    tab.set_viewport_size({"width": 792, "height": 700})
    status = {"type": "status", "state": "empty", "text": "", "place": None}
    feed(tab, [json.dumps({"v": 1, "run": "r0", "seq": 0, "events": [status, lessons_event()]})])
    tab.get_by_role("button", name="Start the first lesson").click()
    feed(tab, recording("l1", lesson_files()[0].read_text().split("trace: ")[1].split("\n")[0]))
    tab.wait_for_function("""() => { const r = document.getElementById('root').shadowRoot.querySelector('.lesson .primary').getBoundingClientRect();
        return r.top >= 0 && r.bottom < innerHeight + 1; }""")
    tab.evaluate("() => page.store.set({tab: 'why'})")
    tab.locator(".lesson").get_by_role("button", name="all lessons").click()
    assert tab.evaluate("page.store.view.tab") == "lessons" and tab.locator(".lesson-card").first.is_visible()

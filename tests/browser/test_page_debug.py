"""The debugger in a real browser, with the real engine and the bundled model: stop, step, fork, note, keep, open, link.

Most tests use the cells, tabs and buttons that a person uses; what a person types into a native control goes through the control.
"""

from __future__ import annotations

import json

import pytest

from tests.browser.conftest import ROOT

ROOT_JS = "const app = document.querySelector('#polestar-bus').shadowRoot;"
LOG = "lane => { const l = window.polestar.app.store.lanes[lane]; return l.steps.map((s) => s.commits.map((c) => [c.pos, c.tok])); }"
LONG = {"gen_length": 64, "block_length": 16, "compare": False, "tau_s": 1.05, "drift_commit": False, "suffix_commit": False}  # a token a pass


@pytest.fixture(scope="module")
def app(serve_app):
    return serve_app()


def press(t, label: str) -> None:
    """Press a button that shows, by its name as it is read aloud or written."""
    t.wait(
        f"""label => {{ {ROOT_JS} const named = (x) => (x.getAttribute('aria-label') || x.textContent) === label;
        const b = [...app.querySelectorAll('button')].find((x) => x.offsetParent && named(x)); if (b) b.click(); return !!b; }}""",
        label,
    )


def settings(t, **values) -> None:
    """Fill the controls as a short link does, and wait until they hold the last number."""
    t.js("values => { window.polestar.send({cmd: 'settings', values}); }", values)
    t.wait("g => document.querySelector('#ps-gen_length input[type=number]').value === String(g)", values["gen_length"])


def select(t, lane: str, offset: int) -> int:
    """Click on the cell of a generated position."""
    position, x, y = t.js(
        f"""([lane, k]) => {{ {ROOT_JS} const p = window.polestar.app.store.lanes[lane].P + k;
        const at = window.polestar.app.grids[lane].place(p);
        const box = app.querySelector(`[aria-label="Lane ${{lane}}"] .lane-grid canvas`).getBoundingClientRect();
        return [p, box.x + at.x + 4, box.y + at.y + 4]; }}""",
        [lane, offset],
    )
    t.page.mouse.click(x, y)
    t.wait("([lane, p]) => { const s = window.polestar.app.store.sel; return s && s.lane === lane && s.pos === p; }", [lane, position])
    return position


def says(t, words: str, timeout: float = 60) -> None:
    t.wait("w => document.querySelector('#polestar-bus').shadowRoot.querySelector('.app').innerText.includes(w)", words, timeout)


def decoded(t, **values) -> None:
    settings(t, **{**LONG, **values})
    t.run("Describe Sam the bear.")
    t.wait_state("done")


def test_b_on_a_cell_stops_the_run_there_and_a_step_goes_to_the_next_refresh(app, tab):
    t = tab(app.url)
    decoded(t, gen_length=48)
    position = select(t, "A", 20)
    t.page.keyboard.press("b")
    t.wait("() => window.polestar.app.store.breakpoints.length === 1")
    t.run()
    t.wait_state("paused")
    t.wait("p => window.polestar.app.store.lanes.A.commitAt(p)", position)
    says(t, "breakpoint 1")
    assert t.js("p => window.polestar.app.store.lanes.A.commitAt(p).at", position) == t.passes() - 1
    assert f"position {position}" in t.js("window.polestar.app.store.breakpoints[0].fired")
    before = t.passes()
    t.js("() => { const s = window.polestar.app.store; s.set({tab: 'breaks'}); s.end(); }")
    t.wait(f"() => {{ {ROOT_JS} return app.querySelector('#panel-breaks li.fired label')?.offsetParent; }}")
    text, fired = t.js(f"""() => {{ {ROOT_JS} const words = document.createRange(); const label = app.querySelector('#panel-breaks li.fired label');
        words.selectNode(label.firstChild); const box = (x) => {{ const r = x.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; }};
        return [box(words), box(label.querySelector('.why-fired'))]; }}""")
    assert text[3] < 30 and text[1] + text[3] <= fired[1] + 1 and fired[2] > 150, (text, fired)  # one line, and the reason below it in the row's width
    press(t, "Forward to refresh")
    t.wait("n => window.polestar.app.store.lanes.A.n > n && document.documentElement.dataset.run !== 'running'", before)
    t.wait_state("paused")
    flags = t.js("window.polestar.app.store.lanes.A.steps.map((s) => !!s.refresh)")
    assert flags[-1] and not any(flags[before:-1])
    t.click("continue")
    t.wait_state("done")
    assert t.js("window.polestar.app.store.breakpoints[0].fired") is None


def test_a_fork_reproduces_the_run_and_an_edited_one_holds_the_token(app, tab):
    t = tab(app.url)
    decoded(t, gen_length=32)
    position = select(t, "A", 30)
    word = t.js("""() => { const s = window.polestar.app.store; const l = s.lanes.A;
        return l.steps.flatMap((x) => x.commits).map((c) => s.token(c.tok).t).find((w) => /^ [a-z]{3,}$/.test(w)); }""")
    t.js("() => { const s = window.polestar.app.store; s.seek(4); s.set({tab: 'forks'}); }")
    t.page.fill("[aria-label='Token for the selected position']", "several words here")
    press(t, "put")
    press(t, "Fork")
    t.page.wait_for_selector("#panel-forks [role=alert]:has-text('but a position holds one')")
    t.page.fill("[aria-label='Token for the selected position']", word)
    press(t, "put")
    press(t, "Fork")
    t.wait("() => window.polestar.app.store.lanes.B?.metrics")
    t.wait_state("done")
    assert t.js("() => { const s = window.polestar.app.store; return s.token(s.lanes.B.stateAt(31 - 1).tok[30]).t; }") == word
    assert t.js("p => window.polestar.app.store.lanes.A.commitAt(p).at", position) > 4
    says(t, "1 edit from pass 4")
    t.js("() => { const s = window.polestar.app.store; s.set({focus: 'A'}); s.seek(9); }")
    press(t, "clear")
    press(t, "Fork")
    t.wait("() => window.polestar.app.store.branches.length === 3 && window.polestar.app.store.lanes.B?.metrics")
    t.wait_state("done")
    assert t.js(LOG, "A") == t.js(LOG, "B")
    assert [b["at"] for b in t.js("window.polestar.app.store.branches")] == [None, 4, 9]


def test_a_trace_that_is_dropped_opens_and_a_broken_one_changes_nothing(app, tab, tmp_path):
    t = tab(app.url)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes((ROOT / "assets/traces/vanilla.safetensors").read_bytes()[:5000])
    t.js("() => window.polestar.app.store.set({tab: 'export'})")
    t.page.set_input_files("#trace-file", ROOT / "assets/traces/polestar.safetensors")
    t.wait("() => window.polestar.app.store.lanes.A?.metrics && document.documentElement.dataset.run === 'replay'")
    before = t.js(LOG, "A")
    t.page.set_input_files("#trace-file", broken)
    t.wait(
        f"() => {{ {ROOT_JS} return [...app.querySelectorAll('[role=alert]')].some((x) => x.textContent.startsWith('cannot open the file: ')); }}"
    )
    assert t.js(LOG, "A") == before and t.state == "replay"


def test_a_note_and_an_html_file_that_opens_without_the_server(app, tab, chromium, tmp_path):
    t = tab(app.url)
    t.js("() => { window.polestar.send({cmd: 'open', name: 'polestar', lane: null}); }")
    t.wait("() => window.polestar.app.store.lanes.A?.metrics")
    t.js("() => { const s = window.polestar.app.store; s.seek(3); s.set({tab: 'notes'}); }")
    t.page.fill("[aria-label='New note']", "the first drift event")
    press(t, "Pin note")
    t.wait("() => window.polestar.app.store.notes.A[0]?.text === 'the first drift event' && window.polestar.app.store.notes.A[0].pass === 3")
    t.js("() => { window.polestar.app.store.set({tab: 'export'}); }")
    press(t, "HTML")
    t.wait("() => window.polestar.app.store.files.length === 1")
    file = t.js("window.polestar.app.store.files[0]")
    answer = t.context.request.get(app.url + file["url"])
    assert answer.ok and len(answer.body()) < 5_000_000 and file["name"] == "polestar-polestar.html"
    path = tmp_path / file["name"]
    path.write_bytes(answer.body())
    page = chromium.new_page()
    page.goto(path.as_uri())
    page.wait_for_function("() => window.polestarPage?.store.lanes.A?.metrics")
    assert page.evaluate("window.polestarPage.store.notes.A.map((n) => n.text)") == ["the first drift event"]
    page.close()


def test_observe_mode_shows_staleness_and_says_what_its_speed_means(app, tab):
    t = tab(app.url)
    settings(t, gen_length=16, compare=False)
    t.page.click("#ps-detail input")
    t.page.click("[role=option]:has-text('everything, observed')")
    t.run("Describe Sam the bear.")
    t.wait_state("done")
    says(t, "the speed of this run means nothing")
    assert t.js("window.polestar.app.store.lanes.A.steps.slice(1).every((s) => s.stale?.length > 0)")


def test_a_link_fills_the_controls_and_copy_settings_makes_one(app, tab):
    t = tab(app.url)
    settings(t, gen_length=40, method_a="klass", compare=False, prompt="Name three rivers.", tau_conf=0.8)
    t.page.click("#ps-copy")
    t.wait("() => window.polestarLink?.includes('#ps=')")
    other = tab(app.url)
    other.js("link => { location.href = link; location.reload(); }", t.js("window.polestarLink"))
    other.wait("() => document.querySelector('#ps-prompt textarea')?.value === 'Name three rivers.'")
    other.wait("() => document.querySelector('#ps-gen_length input[type=number]')?.value === '40'")
    assert other.page.input_value("#ps-method-a input") == "KLASS" and not other.page.is_checked("#ps-compare input")


def test_the_keyboard_goes_through_the_controls_and_is_seen_there(app, tab):
    t = tab(app.url)
    t.page.mouse.move(700, 890)
    t.page.focus("#ps-model input")
    where = """() => { const e = document.activeElement; const c = getComputedStyle(e.type === 'radio' ? e.closest('label') : e);
        return [e.closest('[id^=ps-]')?.id ?? e.tagName, e.type ?? '', c.outlineStyle, parseFloat(c.outlineWidth)]; }"""
    steps = [t.js(where)]
    while steps[-1][0] != "ps-copy" and len(steps) < 80:
        t.page.keyboard.press("Tab")
        steps.append(t.js(where))
    names = [name for name, *_ in steps]
    assert {"ps-run", "ps-detail", "ps-prompt", "ps-method-a", "ps-compare", "ps-method-b", "ps-preset", "ps-tau_s", "ps-seed", "ps-copy"} <= set(names)
    assert "BODY" not in names and [s for s in steps if s[2] == "none" or s[3] < 2] == []
    t.wait("() => ![...document.querySelectorAll('[role=listbox]')].some((x) => x.offsetParent)")  # a list that was passed is shut
    t.page.focus("#ps-method-a input")
    for key in ("ArrowDown", "Enter"):  # it still opens and chooses
        t.page.keyboard.press(key)
    t.wait("() => document.querySelector('#ps-method-a input').value !== 'Polestar'")


def test_a_damaged_link_is_said_and_the_page_is_as_ever(app, tab):
    t = tab(app.url)
    t.js("() => { location.hash = '#ps=%%%'; }")
    t.page.reload()
    t.wait("() => document.documentElement.dataset.polestar === 'ready'")
    says(t, "The link in the address is damaged")
    t.run("Describe Sam the bear.")
    t.wait_state("done")
    assert "damaged" not in t.text()


def test_a_dropped_file_opens_where_the_choice_says(app, tab):
    import base64

    t = tab(app.url)
    drop = f"""([text, name, lane]) => {{ {ROOT_JS} const files = new DataTransfer();
        files.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name));
        const on = app.querySelector(lane ? `[aria-label="Lane ${{lane}}"]` : '.app');
        const how = {{dataTransfer: files, bubbles: true, composed: true, cancelable: true}};
        for (const type of ['dragover', 'drop']) on.dispatchEvent(new DragEvent(type, how)); }}"""
    methods = "want => JSON.stringify(['A', 'B'].map((lane) => window.polestar.app.store.lanes[lane]?.header.method ?? null)) === want"
    t.js("() => window.polestar.app.store.set({tab: 'export'})")
    for name, choice, lane, want in (("polestar", "", None, ["polestar", None]), ("klass", "B", None, ["polestar", "klass"]),
                                     ("vanilla", "", "B", ["polestar", "vanilla"]), ("parallel", "", None, ["parallel", None])):  # fmt: skip
        t.page.select_option("[aria-label='Open into']", choice)
        t.js(drop, [base64.b64encode((ROOT / f"assets/traces/{name}.safetensors").read_bytes()).decode(), f"{name}.safetensors", lane])
        t.wait(methods, json.dumps(want, separators=(",", ":")))


def test_a_model_that_is_not_here_says_what_it_needs(app, tab):
    t = tab(app.url)
    seen = "() => [...document.querySelectorAll('#ps-fetch, .ps-chips')].filter((x) => x.offsetParent).map((x) => x.id || x.innerText)"
    before = t.js(seen)
    assert len(before) == 1 and "List, reversed" in before[0]  # one set of examples, and no panel
    t.page.fill("#ps-model input", "LLaDA-8B-Instruct")
    t.page.press("#ps-model input", "Enter")
    t.wait("() => document.querySelector('#ps-fetch-text textarea')?.value.includes('16.0 GB in bfloat16')")
    assert "this machine has" in t.page.input_value("#ps-fetch-text textarea")
    t.page.fill("#ps-model input", "demo")
    t.page.press("#ps-model input", "Enter")
    t.wait("() => !document.querySelector('#ps-fetch').offsetParent")
    t.wait(f"words => JSON.stringify(({seen})()) === words", json.dumps(before, separators=(",", ":"), ensure_ascii=False))


def test_lessons_go_to_their_end_and_a_saved_trace_stands_in_lane_b(app, tab):
    t = tab(app.url)
    alerts = f"() => {{ {ROOT_JS} return [...app.querySelectorAll('[role=alert]')].filter((x) => x.offsetParent).map((x) => x.innerText); }}"
    t.js("() => window.polestar.app.store.set({tab: 'lessons'})")
    t.wait("() => window.polestar.app.store.lessons.length >= 6")
    t.wait(f"() => {{ {ROOT_JS} return app.querySelectorAll('.lesson-card').length >= 6; }}")
    t.js(f"() => {{ {ROOT_JS} app.querySelectorAll('.lesson-card')[1].click(); }}")
    for _ in range(12):
        t.wait(f"() => {{ {ROOT_JS} return [...app.querySelectorAll('#panel-lessons .btn.primary')].some((b) => b.offsetParent); }}")
        name = t.js(f"() => {{ {ROOT_JS} const b = app.querySelector('#panel-lessons .btn.primary'); b.click(); return b.textContent; }}")
        if name == "done":
            break
        t.wait("() => window.polestar.app.store.lanes.A?.metrics")
    assert name == "done" and t.js(alerts) == []
    t.wait("() => window.polestar.app.store.lanes.B?.metrics")  # the lesson opened a second trace beside the first
    t.js("() => { const s = window.polestar.app.store; s.set({tab: 'export'}); }")
    t.page.select_option("[aria-label='Open into']", "B")
    t.page.set_input_files("#trace-file", ROOT / "assets/traces/klass.safetensors")
    t.wait("() => window.polestar.app.store.lanes.B?.header.method === 'klass' && window.polestar.app.store.lanes.A.header.method === 'fast-dllm-dual'")

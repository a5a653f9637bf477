"""The page with a scripted engine: what must hold of stream, buttons, line and text, whatever is decoded."""

from __future__ import annotations

import time

import pytest

HOSTILE = "${HOME} <img src=x onerror=alert(1)> {{value}}"


def settle(seconds: float = 0.3) -> None:
    time.sleep(seconds)


def one_lane(t) -> None:
    t.page.uncheck("#ps-compare input")
    t.number("gen_length", 256)


def test_256_flooded_passes_arrive_complete_and_in_order(serve, tab):
    t = tab(serve("--pass-seconds", "0").url)
    t.js("""() => { window.seqs = []; const app = window.polestar.app, old = app.receive;
        app.receive = (m) => { window.seqs.push(JSON.parse(m).seq); old(m); }; }""")
    t.number("gen_length", 256)
    t.run()
    assert t.wait_state("done") == "done"
    for lane in "AB":
        indices = t.js("lane => window.polestar.app.store.lanes[lane].steps.map((s) => s.i ?? s.index)", lane)
        assert indices == list(range(256))
    seqs = t.js("window.seqs")
    assert sorted(set(seqs)) == list(range(max(seqs) + 1))


def test_messages_that_a_busy_tab_passed_over_are_sent_again(serve, tab):
    t = tab(serve("--pass-seconds", "0.01").url)
    one_lane(t)
    t.run()
    t.wait_passes(5)
    t.js("() => { const until = performance.now() + 1500; while (performance.now() < until) ; }")
    t.wait_state("done")
    t.wait_passes(256)
    assert t.js("window.polestar.app.store.problem") == ""


def test_tokens_are_on_screen_while_later_passes_still_run(serve, tab):
    t = tab(serve("--pass-seconds", "0.05").url)
    one_lane(t)
    t.js("""() => { window.seen = null; const look = setInterval(() => {
        const n = window.polestar.app.store.lanes.A?.n, text = document.querySelector('#polestar-bus').shadowRoot.querySelector('.app').innerText;
        if (n > 2 && text.includes('live') && text.includes('one two')) { window.seen = [n, document.documentElement.dataset.run]; clearInterval(look); }
    }, 50); }""")
    t.run("one two three")
    t.wait("() => window.seen !== null")
    passes, state = t.js("window.seen")
    assert passes < 256 and state == "running"
    if t.state == "running":
        t.click("stop")


def test_at_most_about_20_updates_a_second_and_the_last_one_always(serve, tab):
    t = tab(serve("--pass-seconds", "0.01").url)
    one_lane(t)
    t.js("() => { window.times = []; const app = window.polestar.app, old = app.receive; app.receive = (m) => { times.push(performance.now()); old(m); }; }")
    t.run()
    t.wait_state("done")
    times = t.js("window.times")
    assert len(times) / ((times[-1] - times[0]) / 1000) <= 30
    assert t.passes() == 256


def test_stop_ends_within_one_pass_and_keeps_what_was_decoded(serve, tab):
    t = tab(serve("--pass-seconds", "0.4").url)
    one_lane(t)
    t.run()
    t.wait_passes(2)
    before = t.js("() => { const n = window.polestar.app.store.lanes.A.n; document.getElementById('ps-stop').click(); return n; }")
    t.wait_state("stopped")
    settle(1.0)
    assert before <= t.passes() <= before + 2  # the pass that ran when Stop was pressed, and one that was on its way to the screen


def test_pause_step_continue(serve, tab):
    t = tab(serve("--pass-seconds", "0.05").url)
    one_lane(t)
    t.run()
    t.wait_passes(2)
    t.click("pause")
    t.wait_state("paused")
    settle(0.4)
    held = t.passes()
    settle(0.4)
    assert t.passes() == held
    t.click("step")
    t.wait_passes(held + 1)
    settle(0.4)
    assert t.passes() == held + 1
    t.click("continue")
    t.wait_passes(held + 4)
    assert t.state == "running"
    t.click("stop")
    t.wait_state("stopped")


@pytest.mark.parametrize("order", ["A, then B", "A and B in turn"])
def test_compare_shows_both_lanes_and_says_how_they_are_run(serve, tab, order):
    t = tab(serve("--pass-seconds", "0.02").url)
    t.number("gen_length", 64)
    if order != "A, then B":
        t.page.click("#ps-order input")
        t.page.click(f"[role=option]:has-text('{order}')")
    t.js("""() => { window.order = []; const app = window.polestar.app, old = app.receive;
        app.receive = (m) => { order.push(...JSON.parse(m).events.filter((e) => 'steps status'.includes(e.type)).map((e) => e.lane || e.text)); old(m); }; }""")
    t.run()
    t.wait_state("done")
    assert (t.passes("A"), t.passes("B")) == (64, 64)
    seen = t.js("window.order")
    lanes = "".join(e for e in seen if e in ("A", "B"))
    if order == "A, then B":
        assert "BA" not in lanes and any("timed alone" in e for e in seen)
    else:
        assert "BA" in lanes and any("interleaved" in e for e in seen)


def test_hostile_text_shows_literally_in_prompt_and_answer(serve, tab):
    t = tab(serve("--pass-seconds", "0").url)
    t.js("() => { window.alerts = 0; window.alert = () => { window.alerts += 1; }; }")
    one_lane(t)
    t.number("gen_length", 16)
    t.run(HOSTILE)
    t.wait_state("done")
    settle()
    words = t.js("() => window.polestar.app.store.lanes.A.header.prompt_ids.map((i) => window.polestar.app.store.vocab.get(i).t)")
    assert "".join(words).strip() == HOSTILE
    assert HOSTILE in t.text()
    assert t.page.input_value("#ps-prompt textarea") == HOSTILE
    assert t.js("window.alerts") == 0 and t.js("document.querySelectorAll('img[src=x]').length") == 0


def test_a_second_tab_waits_with_its_place_and_then_runs(serve, tab):
    url = serve("--pass-seconds", "0.05").url
    first, second, third = tab(url), tab(url), tab(url)
    for t in (first, second, third):
        one_lane(t)
    first.run()
    first.wait_passes(2)
    second.run()
    second.wait_state("queued")
    third.run()
    third.wait_state("queued")
    settle(0.5)
    assert "next in line" in second.text() and "1 before you" in third.text()
    second.click("stop")  # leaving the line
    second.wait_state("stopped")
    first.click("stop")
    third.wait_passes(2)
    assert third.state == "running"
    third.click("stop")
    third.wait_state("stopped")


def test_closing_the_tab_ends_the_run_and_frees_the_model(serve, tab):
    url = serve("--pass-seconds", "0.05").url
    first, second = tab(url), tab(url)
    for t in (first, second):
        one_lane(t)
    first.run()
    first.wait_passes(2)
    second.run()
    second.wait_state("queued")
    began = time.monotonic()
    first.page.close()
    second.wait_passes(1, timeout=5)
    assert time.monotonic() - began < 5
    second.click("stop")
    second.wait_state("stopped")


def test_a_parameter_moved_during_a_run_reaches_the_session_and_k_stays_at_most_K(serve, tab):
    t = tab(serve("--pass-seconds", "0.05").url)
    t.number("K", 2)
    t.wait("() => document.querySelector('#ps-k input[type=number]').value === '2'")
    t.page.wait_for_selector("text=k is 2 now")
    t.click("reset")
    t.wait("() => document.querySelector('#ps-k input[type=number]').value === '4'")
    assert t.page.input_value("#ps-K input[type=number]") == "8"


def test_one_cluster_leaves_the_controls_at_work(serve, tab):
    t = tab(serve("--pass-seconds", "0").url)
    for typed in (1, 0):
        t.number("K", typed)
        t.wait("() => ['K', 'k'].every((n) => document.querySelector(`#ps-${n} input[type=number]`).value === '1')")
        t.page.check("#ps-side input[value=B]")
        t.wait("() => document.querySelector('#ps-preset-b').getClientRects().length > 0")
        t.page.check("#ps-side input[value=A]")
        t.wait("() => document.querySelector('#ps-preset').getClientRects().length > 0")
        t.number("k", 2)
        t.page.wait_for_selector("text=k = 2 is more than K = 1 cluster; k is 1 now.")
        t.click("reset")
        t.wait("() => document.querySelector('#ps-K input[type=number]').value === '8'")
        assert t.page.input_value("#ps-k input[type=number]") == "4"


def test_a_listener_that_fails_says_so(serve, tab):
    t = tab(serve("--pass-seconds", "0").url)
    t.page.route("**/gradio_api/run/**", lambda route: route.fulfill(status=500, json={"error": None}))
    t.number("tau_s", 0.5)
    t.page.wait_for_selector("text=τ_s could not be changed; see the log of the server.")
    t.errors.clear()  # the browser's own word on the answer 500


def test_errors_are_sentences_on_the_page(serve, tab):
    t = tab(serve("--pass-seconds", "0").url)
    t.run("   ")
    t.wait_state("error")
    settle()
    assert "the prompt is empty" in t.text()
    t.page.fill("#ps-model input", "nothing-of-that-name")
    t.page.keyboard.press("Enter")
    t.run("hello")
    t.wait_state("error")
    t.wait("() => document.querySelector('#polestar-bus').shadowRoot.querySelector('.app').innerText.includes('no model named')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(serve, tab, scheme):
    t = tab(serve("--pass-seconds", "0").url, color_scheme=scheme)

    def brightness(selector: str) -> float:
        rgb = t.js("s => getComputedStyle(document.querySelector(s)).backgroundColor.match(/[\\d.]+/g).map(Number)", selector)
        return sum(rgb[:3]) / 3

    dark = scheme == "dark"
    assert (brightness("#ps-controls") < 100) == dark
    assert t.js("document.querySelector('#polestar-bus').shadowRoot.querySelector('.app').dataset.theme") == scheme
    t.click("theme")
    settle()
    assert (brightness("#ps-controls") < 100) != dark
    assert t.js("document.querySelector('#polestar-bus').shadowRoot.querySelector('.app').dataset.theme") != scheme


def test_everything_is_on_one_screen(serve, tab):
    t = tab(serve("--pass-seconds", "0").url)
    t.number("gen_length", 64)
    t.run()
    t.wait_state("done")
    assert t.js("document.scrollingElement.scrollHeight <= innerHeight && document.scrollingElement.scrollWidth <= innerWidth")
    names = ["#ps-run", "#ps-prompt", "#ps-method-a", "#ps-tau_s", "#ps-alpha", "#ps-gen_length", "#ps-reset", "#polestar-bus"]
    boxes = t.js("""(names) => names.map((s) => { const r = document.querySelector(s).getBoundingClientRect();
        return [s, r.top >= 0 && r.bottom <= innerHeight && r.right <= innerWidth && r.height > 0]; })""", names)
    assert [s for s, inside in boxes if not inside] == []


def test_every_control_has_a_sentence_of_help(serve, tab):
    t = tab(serve("--pass-seconds", "0").url)
    missing = t.js("""() => [...document.querySelectorAll('.ps-param, .ps-choice, .ps-switch, .ps-number, .ps-bar')].filter((e) => e.id)
        .filter((e) => !(e.querySelector('.info-text')?.textContent.trim().length > 10)).map((e) => e.id)""")
    assert missing == []
    t.page.hover("#ps-tau_s")
    t.wait("() => getComputedStyle(document.querySelector('#ps-tau_s .info-text')).visibility === 'visible'")
    assert "Default: 0.9" in t.page.inner_text("#ps-tau_s .info-text")


OPEN_TIPS = """() => [...document.querySelectorAll('.info-text')].filter((e) => getComputedStyle(e).visibility === 'visible' && e.getClientRects().length)
    .map((e) => e.closest('[id^=ps-]').id)"""


def test_one_tip_of_help_is_open_at_a_time(serve, tab):
    t = tab(serve("--pass-seconds", "0").url)
    t.page.click("#ps-more > button")
    t.page.wait_for_selector("#ps-drift_max_delta, #ps-c_floor, #ps-more .ps-param", state="visible")
    t.page.focus("#ps-more input")  # one of several in a box: the others' tips stay shut
    t.page.keyboard.press("Tab")
    t.page.keyboard.press("Shift+Tab")
    t.page.mouse.move(900, 500)
    t.wait(f"() => ({OPEN_TIPS})().length > 0")
    t.page.wait_for_timeout(500)
    assert len(t.js(OPEN_TIPS)) == 1
    t.page.focus("#ps-prompt textarea")
    for name in ("ps-tau_s", "ps-method-a", "ps-pace", "ps-model", "ps-talk"):
        t.page.hover(f"#{name}")
        t.wait(f"(name) => ({OPEN_TIPS})().includes(name)", name)
        assert t.js(OPEN_TIPS) == [name]
    t.page.mouse.move(900, 500)
    t.page.focus("#ps-gen_length input[type=number]")
    t.wait(f"() => ({OPEN_TIPS})().includes('ps-gen_length')")
    assert t.js(OPEN_TIPS) == ["ps-gen_length"], "the keyboard's own, once the pointer is on none"


def test_the_blocks_are_named_before_the_run(serve, tab):
    t = tab(serve("--pass-seconds", "0").url)
    plan = "() => document.querySelector('#ps-plan p').textContent"
    assert t.js(plan).startswith("blocks ")
    t.number("gen_length", 20)
    t.number("block_length", 8)
    t.wait(f"() => ({plan})() === 'blocks 8 + 8 + 4'")
    t.run("one two three")
    t.wait_state("done")
    assert t.js("() => window.polestar.app.store.lanes.A.header.blocks.map(([s, e]) => e - s)") == [8, 8, 4]


def test_a_trace_given_at_start_is_shown_as_a_replay(serve, tab, tmp_path_factory):
    from tests.browser.fake import FakeEngine

    engine = FakeEngine()
    codec = engine.load("demo")
    session = engine.session(codec, "one two three", engine.config("polestar", "paper", {"gen_length": 100}), "full")
    assert len(list(session.steps())) == 100
    path = tmp_path_factory.mktemp("traces") / "hundred.safetensors"
    session.trace.save(path, codec)
    t = tab(serve("--trace", str(path)).url)
    t.wait_passes(100)
    assert t.state == "replay" and "replay" in t.text() and "live" not in t.text().split("\n")[0]
    t.number("gen_length", 16)
    t.page.uncheck("#ps-compare input")
    t.run("four five")
    t.wait_state("done")
    assert t.passes() == 16


def test_a_run_streams_beside_the_queue_and_goes_on_through_it_when_it_cannot(serve, tab):
    t = tab(serve("--pass-seconds", "0.01").url)
    one_lane(t)
    t.js("""() => { window.direct = 0; const Old = window.EventSource;
        window.EventSource = class extends Old { constructor(url, how) { super(url, how); if (!url.includes('polestar/stream/')) return;
            this.addEventListener('message', () => { window.direct += 1; }); this.addEventListener('end', () => { window.over = true; }); } }; }""")
    t.run()
    t.wait_state("done")
    t.wait_passes(256)
    assert t.js("window.direct") > 3
    t.wait("() => window.over")
    t.js("""() => { window.direct = 0; window.tried = 0; const Old = window.EventSource;
        window.EventSource = function (url, how) { if (!url.includes('polestar/stream/')) return new Old(url, how);
            window.tried += 1; const broken = {close() {}, addEventListener() {}}; setTimeout(() => broken.onerror()); return broken; }; }""")
    t.run()
    t.wait("() => window.tried === 1")
    t.wait_state("done")
    t.wait_passes(256)
    assert t.js("window.direct") == 0 and t.js("window.polestar.app.store.problem") == ""

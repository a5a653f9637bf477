"""The page with the real engine and the bundled model."""

from __future__ import annotations

import json
import os
import time

import pytest

HOSTILE = "${HOME} <img src=x onerror=alert(1)> {{value}}"


def one_by_one(t) -> None:
    """One token a pass: nothing reaches τ_s, and the other two rules are off."""
    t.number("tau_s", 1.05)
    t.page.uncheck("#ps-drift_commit input")
    t.page.uncheck("#ps-suffix_commit input")


def slowly(t) -> None:
    """Two passes a second, so that a run still goes on when the test looks, however busy the machine is."""
    t.page.click("#ps-pace input")
    t.page.click("[role=option]:has-text('2 passes/s')")


@pytest.fixture(scope="module")
def app(serve_app):
    return serve_app()


def test_the_page_is_up_quickly(app, tab):
    began = time.monotonic()
    tab(app.url)
    shown = app.seconds + time.monotonic() - began
    quiet = os.getloadavg()[0] < 1.5
    assert shown < (5 if quiet else 60), f"server {app.seconds:.1f} s, page {shown - app.seconds:.1f} s"


def test_a_prompt_is_decoded_live_beside_fast_dllm(app, tab):
    t = tab(app.url)
    t.js("""() => { window.early = null; const look = setInterval(() => { const l = window.polestar.app.store.lanes;
        if (l.A?.n > 0 && document.documentElement.dataset.run === 'running') { early = [l.A.n, l.B?.n ?? 0]; clearInterval(look); } }, 20); }""")
    t.number("gen_length", 256)
    one_by_one(t)
    t.run()
    t.wait("() => window.early !== null")
    assert t.js("window.early[1]") == 0  # tokens of A are there before B has begun
    assert t.wait_state("done", "error", timeout=180) == "done"
    lanes = t.js("""() => Object.fromEntries(['A', 'B'].map((lane) => { const l = window.polestar.app.store.lanes[lane];
        return [lane, [l.header.method, l.n, l.metrics.tokens, l.metrics.text, l.header.model]]; }))""")
    for lane, method in (("A", "polestar"), ("B", "fast-dllm-dual")):
        name, passes, tokens, text, model = lanes[lane]
        assert (name, tokens, model) == (method, 256, "demo")
        assert passes == 256
        assert text.strip() and text.strip()[:12] in t.text()


def test_the_page_shows_what_the_command_line_decodes(app, tab):
    from polestar import DecodeConfig, decode, load_model

    t = tab(app.url)
    t.number("gen_length", 64)
    prompt = "Take the list Ben, Sam, Ava, Cora and put it in reverse order."
    t.run(prompt)
    t.wait_state("done", "error")
    loaded = load_model("demo")
    for lane, method in (("A", "polestar"), ("B", "fast-dllm-dual")):
        trace = decode(loaded, loaded.codec.encode_chat(prompt), DecodeConfig.make(method=method, gen_length=64))
        mine = [[c.position, c.token, c.reason] for s in trace for c in s.commits]
        shown = json.loads(t.js("lane => JSON.stringify(window.polestar.app.store.lanes[lane].metrics)", lane))
        assert (shown["nfe"], shown["tokens"], shown["text"]) == (len(trace), len(mine), trace.metrics(loaded.codec)["text"])


def test_sliders_move_during_a_run_and_the_log_says_so(app, tab):
    t = tab(app.url)
    t.page.uncheck("#ps-compare input")
    t.number("gen_length", 128)
    one_by_one(t)
    slowly(t)
    t.run()
    t.wait_passes(3)
    t.number("alpha", 2.5)
    t.wait("() => JSON.stringify(window.polestar.app.store.lanes.A.steps.map((s) => s.changes)).includes('alpha')")
    t.click("stop")
    t.wait_state("stopped")


def test_stop_keeps_what_was_decoded_and_the_model_is_free(app, tab):
    t = tab(app.url)
    t.page.uncheck("#ps-compare input")
    one_by_one(t)
    slowly(t)
    t.run()
    t.wait_passes(3)
    t.click("stop")
    t.wait_state("stopped")
    assert 3 <= t.passes() < 128
    t.number("gen_length", 8)
    t.run()
    t.wait("() => window.polestar.app.store.lanes.A?.metrics?.tokens === 8")


def test_hostile_text_is_text(app, tab):
    t = tab(app.url)
    t.js("() => { window.alerts = 0; window.alert = () => { window.alerts += 1; }; }")
    t.number("gen_length", 16)
    t.run(HOSTILE)
    t.wait_state("done", "error")
    assert t.js("window.alerts") == 0 and t.js("document.querySelectorAll('img[src=x]').length") == 0
    assert t.page.input_value("#ps-prompt textarea") == HOSTILE


def test_an_empty_prompt_and_a_model_that_is_not_there_are_sentences(app, tab):
    t = tab(app.url)
    t.run("  ")
    t.wait_state("error")
    t.wait("() => document.querySelector('#polestar-bus').shadowRoot.querySelector('.app').innerText.includes('the prompt is empty')")


def test_presets_methods_and_reset_set_the_controls(app, tab):
    t = tab(app.url)
    t.page.click("#ps-preset input")
    t.page.click("[role=option]:has-text('release')")
    t.wait("() => document.querySelector('#ps-tau_upd input[type=number]').value === '1'")
    t.page.click("#ps-method-a input")
    t.page.click("[role=option]:has-text('Vanilla')")
    t.wait("() => !document.querySelector('#ps-alpha').getClientRects().length")
    assert t.js("[...document.querySelectorAll('.ps-group h2')].filter((h) => h.getClientRects().length).map((h) => h.textContent)").count("Cache") == 0
    t.page.click("#ps-method-a input")
    t.page.locator("[role=option]", has_text="Polestar").first.click()
    t.wait("() => document.querySelector('#ps-alpha input[type=number]')?.value === '10'")
    t.click("reset")
    t.wait("() => document.querySelector('#ps-tau_upd input[type=number]').value === '3'")


def test_share_needs_a_password():
    import subprocess
    import sys

    from tests.browser.conftest import ROOT

    for args, sentence in (
        (["--share"], "--share makes the page public and needs --auth"),
        (["--auth", "me"], "--auth takes USER:PASSWORD"),
        (["--trace", "nowhere.safetensors"], "is not a file"),
    ):
        done = subprocess.run([sys.executable, "app.py", *args], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and sentence in done.stderr and done.stdout == ""


def test_umap_of_the_window_comes_when_it_is_ready(app, tab):
    t = tab(app.url)
    t.page.uncheck("#ps-compare input")
    t.number("gen_length", 64)
    t.run("Describe Sam the bear.")
    t.wait_state("done")
    t.js("() => { window.polestar.send({cmd: 'points', lane: 'A', layer: 1, method: 'umap'}); }")
    t.wait("() => window.polestar.app.store.points.get('A/1/umap')?.length > 0", timeout=400)
    frames, steps = t.js("""() => [window.polestar.app.store.points.get('A/1/umap').map((f) => [f.i, f.xy.length]),
        window.polestar.app.store.lanes.A.steps.map((s, i) => s.pts ? i : -1).filter((i) => i >= 0)]""")
    assert [i for i, _ in frames] == steps and all(size > 100 for _, size in frames)


def test_parameters_under_more_keep_their_defaults_when_opened(app, tab):
    t = tab(app.url)
    t.page.uncheck("#ps-compare input")
    t.number("gen_length", 16)
    t.page.click("#ps-more button")
    t.wait("() => document.querySelector('#ps-drift_max_delta textarea, #ps-drift_max_delta input')?.value === 'inf'")
    t.run("Describe Sam the bear.")
    t.wait_state("done")
    from polestar.config import DecodeConfig

    config = t.js("window.polestar.app.store.lanes.A.header.config")
    assert config == {**DecodeConfig.make(method="polestar").as_dict(), "gen_length": 16}

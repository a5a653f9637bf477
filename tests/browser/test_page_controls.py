"""Number boxes that are emptied or typed into: one value, the one that the box shows. With the real engine and the bundled model."""

from __future__ import annotations

import pytest

CHANGES = "() => window.polestar.app.store.lanes.A.steps.flatMap((s) => s.changes.map(([n, , v]) => [n, v]))"
CONFIG = "window.polestar.app.store.lanes.A.header.config"


@pytest.fixture(scope="module")
def app(serve_app):
    return serve_app()


def empty(t, name: str) -> None:
    """Select all, Delete; the box keeps the focus."""
    box = t.page.locator(f"#ps-{name} input[type=number]").first
    box.click()
    box.press("Control+a")
    box.press("Delete")


def shows(t, name: str, value: str) -> None:
    t.wait("([n, v]) => document.querySelector(`#ps-${n} input[type=number]`).value === v", [name, value])


def test_the_next_run_has_what_an_emptied_box_shows(app, tab):
    t = tab(app.url)
    t.page.uncheck("#ps-compare input")
    t.number("gen_length", 16)
    for name, typed, back in (("alpha", 20, "10"), ("seed", 7, "0"), ("K", 2, "8")):
        t.number(name, typed)
        shows(t, name, str(typed))
        empty(t, name)
        assert t.page.input_value(f"#ps-{name} input[type=number]") == ""  # so that another number can be typed
        t.page.keyboard.press("Tab")
        shows(t, name, back)
    t.page.wait_for_selector("text=K was left empty; it is 8 now, its default.")
    t.number("alpha", 20)
    empty(t, "alpha")
    t.page.click("#ps-run")  # straight from the box
    t.wait_state("done")
    config = t.js(CONFIG)
    assert (config["alpha"], config["seed"], config["K"]) == (10, 0, 8)
    shows(t, "alpha", "10")


def test_the_log_of_a_run_has_what_an_emptied_box_shows(app, tab):
    t = tab(app.url)
    t.page.uncheck("#ps-compare input")
    t.number("tau_s", 1.05)
    t.number("alpha", 20)
    t.page.uncheck("#ps-drift_commit input")
    t.page.uncheck("#ps-suffix_commit input")
    t.page.click("#ps-pace input")
    t.page.click("[role=option]:has-text('5 passes/s')")
    t.run("Describe Sam the bear.")
    t.wait_passes(2)
    empty(t, "alpha")
    n = t.passes()
    t.wait_passes(n + 4)
    assert t.js(CHANGES) == []  # a number may yet be typed
    t.page.keyboard.press("Tab")
    t.wait(f"() => ({CHANGES})().length > 0")
    shows(t, "alpha", "10")
    t.wait_passes(t.passes() + 3)
    t.click("stop")
    t.wait_state("stopped")
    assert t.js(CHANGES) == [["alpha", 10]]
    shows(t, "alpha", "10")


def test_K_typed_by_way_of_1_leaves_k_alone(app, tab):
    t = tab(app.url)
    empty(t, "K")
    t.page.keyboard.type("1")
    t.page.locator("#ps-K input[type=number]").first.click()  # lets go of it, half typed
    t.page.wait_for_timeout(400)
    t.page.keyboard.press("End")
    t.page.keyboard.type("6")
    t.page.keyboard.press("Tab")
    shows(t, "K", "16")
    t.page.wait_for_timeout(500)
    assert t.page.input_value("#ps-k input[type=number]") == "4"
    t.number("k", 12)  # more than the 8 clusters of before
    t.page.wait_for_timeout(1000)
    shows(t, "k", "12")
    t.number("K", 6)
    t.page.wait_for_selector("text=k = 12 is more than K = 6 clusters; k is 6 now.")
    shows(t, "k", "6")


def test_an_answer_that_is_late_takes_nothing_back(app, tab):
    """Whatever was chosen, what was typed before the answer came stays."""
    t = tab(app.url)
    held = []
    t.page.route("**/gradio_api/run/**", lambda route: route.continue_() if held else held.append(route))
    t.page.uncheck("#ps-compare input")
    t.page.wait_for_timeout(100)
    typed = {"alpha": 20, "tau_upd": 5, "temperature": 0.5, "K": 6}
    for name, value in typed.items():
        t.number(name, value)
    held[0].continue_()
    t.wait("() => !document.querySelector('#ps-side')?.getClientRects().length")
    t.page.wait_for_timeout(300)
    for name, value in typed.items():
        shows(t, name, str(value))

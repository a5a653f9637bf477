"""A run that goes on: what the stream brings waits for its turn to be drawn, what the person does does not; tips and thresholds follow the passes."""

from __future__ import annotations

import json

import synth
from pages import feed, settle

REST = """async (action) => {
    const s = page.store;
    s.flush();
    await new Promise((done) => setTimeout(done, 30)); // what a draw says of itself a task later is said
    s.flush();
    s.rested = performance.now() + 60000;
    new Function('s', action)(s);
    return {now: s.frame !== 0, later: s.restTimer !== 0};
}"""


def running(tab, **how):
    """The first half of a run at full speed; returns the messages of the other half."""
    messages = synth.messages(compare=False, passes=60, per_message=4, **how)
    half = len(messages) // 2
    feed(tab, messages[:half])
    tab.evaluate("() => { page.store.hurried = true; }")
    return messages[half:]


def drawn(tab, action: str) -> dict:
    """Whether a draw is due at the next frame, or only after the rest, once `action` has been done."""
    return tab.evaluate(REST, action)


def slow(message: str) -> str:
    """The message with passes that took long to compute."""
    found = json.loads(message)
    for event in found["events"]:
        for step in event.get("steps", []):
            step["dt"] = 100.0
    return json.dumps(found)


def test_news_of_a_decode_at_full_speed_waits_and_the_person_does_not(tab):
    rest = running(tab)
    assert drawn(tab, f"s.receive({json.dumps(slow(rest[0]))})") == {"now": False, "later": True}
    for act in ("s.home()", "s.end()", "s.select('A', s.lanes.A.P + 1)", "s.move(-3)"):
        assert drawn(tab, act)["now"], act
    assert not tab.evaluate("page.store.follow")
    assert drawn(tab, f"s.receive({json.dumps(slow(rest[1]))})") == {"now": False, "later": True}, "scrubbed back, too"


def test_news_of_a_paced_decode_is_drawn_at_once(tab):
    rest = running(tab)
    tab.evaluate("() => { page.store.heard = performance.now() - 60000; }")
    assert drawn(tab, f"s.receive({json.dumps(rest[0])})")["now"]


def test_news_that_come_during_a_draw_wait_too(tab):
    rest = running(tab)
    got = tab.evaluate("""async ([first, second]) => {
        const s = page.store;
        s.flush();
        await new Promise((done) => setTimeout(done, 30));
        s.flush();
        s.rested = 0;
        return await new Promise((done) => {
            const draw = () => {
                s.listeners.delete(draw);
                s.receive(second);
                done({now: s.frame !== 0, later: s.restTimer !== 0});
            };
            s.listeners.add(draw);
            s.receive(first);
        });
    }""", [slow(m) for m in rest[:2]])  # fmt: skip
    assert got == {"now": False, "later": True}


def test_how_fast_a_decode_goes_is_told_by_a_whole_message(tab):
    """Its passes come in several parts, of which one alone may have taken no time at all."""
    rest = running(tab)
    message = json.loads(slow(rest[0]))
    parts = [{**e, "steps": [{**step, "dt": 0.0 if not i else 100.0}]} for e in message["events"] for i, step in enumerate(e.get("steps", []))]
    assert len(parts) > 1
    message["events"] = parts
    tab.evaluate("() => { page.store.hurried = false; }")
    assert drawn(tab, f"s.receive({json.dumps(json.dumps(message))})") == {"now": False, "later": True}


def test_a_tip_follows_the_run_under_a_pointer_that_rests(tab):
    rest = running(tab)
    settle(tab)
    tab.locator(".card.drift canvas").first.hover(position={"x": 60, "y": 40})
    tip = tab.locator(".tip")
    before = tip.inner_text()
    assert " of 2" in before or " of 3" in before
    feed(tab, rest)
    tab.evaluate("() => page.store.flush()")
    assert f" of {tab.evaluate('page.store.lanes.A.n')}" in tip.inner_text() and tip.inner_text() != before


def test_the_threshold_is_the_one_in_force(tab):
    got = tab.evaluate("""async () => {
        const {thresholds} = await import('/assets/js/timeline.js');
        const steps = [0, 1, 2, 3].map((i) => ({i, changes: i === 2 ? [['alpha', 10, 20], ['tau_upd', 3, 64]] : []}));
        return thresholds({header: {config: {tau_upd: 3}}, steps});
    }""")
    assert got == [[0, 3], [2, 64]]

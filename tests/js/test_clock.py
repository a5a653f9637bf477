"""The stray clock of the page: it is stopped, and nothing else is."""

from __future__ import annotations

import pytest

HOST = """async ([strays, frames]) => {
    const {stopStrayClock} = await import('/assets/js/clock.js');
    let handle = 0, due = new Map();
    const host = {
        requestAnimationFrame(draw) { due.set(++handle, draw); return handle; },
        cancelAnimationFrame(which) { due.delete(which); },
    };
    const ran = strays.map(() => 0);
    const begin = (at) => { const clock = () => { ran[at] += 1; host.requestAnimationFrame(clock); }; host.requestAnimationFrame(clock); };
    strays.forEach((first, at) => first && begin(at));
    stopStrayClock(host);
    strays.forEach((first, at) => !first && begin(at));
    for (let i = 0; i < frames; i += 1) {
        const now = [...due.keys()];
        for (const which of now) { const draw = due.get(which); if (draw) { due.delete(which); draw(); } }
    }
    return {ran, pending: due.size};
}"""


@pytest.mark.parametrize("first", [True, False], ids=["runs before the look", "runs after it"])
def test_the_only_clock_is_stopped_within_a_second_or_so(tab, first):
    got = tab.evaluate(HOST, [[first], 200])
    assert 50 <= got["ran"][0] <= 70 and got["pending"] == 0


def test_of_two_none_is_touched(tab):
    got = tab.evaluate(HOST, [[True, False], 700])
    assert got["ran"] == [700, 700] and got["pending"] == 2


def test_where_there_is_none_it_gives_up(tab):
    assert tab.evaluate(HOST, [[], 599])["pending"] == 1
    assert tab.evaluate(HOST, [[], 600])["pending"] == 0

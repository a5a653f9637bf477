"""The stray clock of the page: it is stopped, and nothing else is."""

from __future__ import annotations

import pytest

HOST = """async ([kinds, frames]) => {
    const {stopStrayClock} = await import('/assets/js/clock.js');
    let handle = 0, due = new Map();
    const host = {
        requestAnimationFrame(draw) { due.set(++handle, draw); return handle; },
        cancelAnimationFrame(which) { due.delete(which); },
    };
    const kept = host.requestAnimationFrame, ran = kinds.map(() => 0);
    const ask = {stray: (draw) => kept.call(host, draw), own: (draw) => host.requestAnimationFrame(draw)};
    const begin = (kind, at) => { const draw = () => { ran[at] += 1; ask[kind](draw); }; ask[kind](draw); };
    kinds.forEach(([kind, when], at) => when === 'early' && begin(kind, at));
    stopStrayClock(host);
    kinds.forEach(([kind, when], at) => when === 'late' && begin(kind, at));
    for (let i = 0; i < frames; i += 1) {
        kinds.forEach(([kind, when], at) => when === i && begin(kind, at));
        for (const which of [...due.keys()]) { const draw = due.get(which); if (draw) { due.delete(which); draw(); } }
    }
    return {ran, pending: due.size, restored: host.requestAnimationFrame === kept};
}"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_clock_alone_is_stopped_within_a_second_or_so(tab, when):
    got = tab.evaluate(HOST, [[["stray", when]], 200])
    assert 50 <= got["ran"][0] <= 70 and got["pending"] == 0 and got["restored"]


def test_what_else_draws_goes_on_and_does_not_keep_the_clock_alive(tab):
    got = tab.evaluate(HOST, [[["own", "early"], ["stray", "early"], ["own", "late"], ["own", 30]], 300])
    assert got["ran"][0] == got["ran"][2] == 300 and got["ran"][3] == 270
    assert got["ran"][1] <= 130 and got["pending"] == 3 and got["restored"]


def test_of_two_that_look_alike_none_is_touched(tab):
    got = tab.evaluate(HOST, [[["stray", "early"], ["stray", "late"]], 1300])
    assert got == {"ran": [1300, 1300], "pending": 2, "restored": True}


def test_where_there_is_none_it_gives_up(tab):
    assert tab.evaluate(HOST, [[], 1199])["pending"] == 1
    assert tab.evaluate(HOST, [[], 1200]) == {"ran": [], "pending": 0, "restored": True}

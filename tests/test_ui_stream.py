"""Channel, line and run of the page, without gradio or a browser."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.browser.fake import FakeEngine
from ui.line import Line
from ui.runs import Request, Run
from ui.server import Server
from ui.stream import STEPS_PER_MESSAGE, Channel, status, unpack


def request(**changes) -> Request:
    values = {"gen_length": 64, "block_length": 16, "tau_s": 0.9}
    base = {"model": "demo", "prompt": "one two three", "lanes": {"A": ("polestar", "paper", values)}}
    return Request(**{**base, **changes})


def events_of(values) -> list[dict]:
    return [e for v in values for m in unpack(v) for e in json.loads(m)["events"]]


def take_all(channel: Channel) -> list[str]:
    return list(iter(channel.take, None))


def in_a_loop(coroutine) -> None:
    """Run it in an event loop of its own thread; this thread may have one already, of a browser."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, coroutine).result(60)


def finish(run: Run) -> None:
    done = threading.Event()
    run.start(done.set)
    assert done.wait(20)


def test_seq_has_no_gaps_and_steps_are_gathered():
    channel = Channel()
    channel.begin()
    finish(Run(channel, FakeEngine(), request()))
    messages = [json.loads(m) for v in take_all(channel) for m in unpack(v)]
    assert [m["seq"] for m in messages] == list(range(len(messages)))
    assert {m["run"] for m in messages} == {channel.run}
    steps = [e for m in messages for e in m["events"] if e["type"] == "steps"]
    assert [s["i"] for e in steps for s in e["steps"]] == list(range(64))
    assert max(len(e["steps"]) for e in steps) <= STEPS_PER_MESSAGE


def test_words_come_before_the_first_step_that_needs_them():
    channel = Channel()
    channel.begin()
    finish(Run(channel, FakeEngine(), request()))
    known: set[int] = set()
    for e in events_of(take_all(channel)):
        if e["type"] == "vocab":
            known |= {int(i) for i in e["map"]}
        if e["type"] == "steps":
            assert {c[1] for s in e["steps"] for c in s["c"]} <= known


def test_what_was_missed_is_sent_again_from_where_the_tab_says():
    channel = Channel()
    run = channel.begin()
    for i in range(5):
        channel.put(status("running", str(i)))
        channel.take()
    channel.behind(run, 2)
    again = [json.loads(m)["seq"] for m in unpack(channel.take())]
    assert again == [2, 3, 4] or again == [2, 3, 4, 5]
    channel.behind("r0", 7)
    assert json.loads(unpack(channel.take())[0])["seq"] == 0


def test_events_of_an_earlier_run_never_reach_the_next():
    channel = Channel()
    old = channel.begin()
    channel.begin()
    channel.put(status("running", "late"), run=old)
    assert [e["type"] for e in events_of(take_all(channel))] == ["reset"]


@pytest.mark.parametrize("interleave", [False, True])
def test_lanes_alternate_only_when_asked(interleave):
    channel = Channel()
    channel.begin()
    lanes = {"A": ("polestar", "paper", {"gen_length": 8, "block_length": 8}), "B": ("parallel", "paper", {"gen_length": 8, "block_length": 8})}
    finish(Run(channel, FakeEngine(), request(lanes=lanes, interleave=interleave)))
    order = [(e["lane"], s["i"]) for e in events_of(take_all(channel)) if e["type"] == "steps" for s in e["steps"]]
    if interleave:
        assert order == [(lane, i) for i in range(8) for lane in "AB"]
    else:
        assert order == [("A", i) for i in range(8)] + [("B", i) for i in range(8)]


def test_stop_ends_after_the_running_pass_and_every_lane_says_its_end():
    channel = Channel()
    channel.begin()
    run = Run(channel, FakeEngine(0.05), request())
    done = threading.Event()
    run.start(done.set)
    time.sleep(0.3)
    seen = run.lanes["A"].session.trace
    run.stop()
    at_stop = len(seen)
    assert done.wait(5)
    assert len(seen) <= at_stop + 1 and run.traces["A"].status == "stopped"
    last = events_of(take_all(channel))
    assert [e["status"] for e in last if e["type"] == "end"] == ["stopped"] and last[-1]["state"] == "stopped"


def test_step_moves_only_the_lane_whose_turn_it_is():
    channel = Channel()
    channel.begin()
    lanes = {x: ("parallel", "paper", {"gen_length": 32, "block_length": 8}) for x in "AB"}
    run = Run(channel, FakeEngine(0.01), request(lanes=lanes))
    done = threading.Event()
    run.start(done.set)
    time.sleep(0.1)
    run.pause()
    time.sleep(0.1)
    before = len(run.lanes["A"].session.trace)
    run.step()
    run.step()
    time.sleep(0.2)
    assert (len(run.lanes["A"].session.trace), len(run.lanes["B"].session.trace)) == (before + 2, 0)
    run.stop()
    assert done.wait(5)


def test_pace_holds_passes_apart_and_stop_does_not_wait_for_it():
    run = Run(Channel(), FakeEngine(), request(pace=2.0))
    done = threading.Event()
    run.start(done.set)
    time.sleep(0.8)
    assert len(run.lanes["A"].session.trace) <= 3
    began = time.monotonic()
    run.stop()
    assert done.wait(5) and time.monotonic() - began < 0.4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": "  "}, "the prompt is empty"),
        ({"model": "nowhere"}, "no model named 'nowhere'"),
        ({"lanes": {"A": ("polestar", "paper", {"K": -3})}}, "K takes a whole number"),
        ({"lanes": {"A": ("none", "paper", {})}}, "no method is called 'none'"),
    ],
)
def test_what_cannot_run_says_so_in_one_sentence_and_frees_the_line(change, sentence):
    channel = Channel()
    channel.begin()
    finish(Run(channel, FakeEngine(), request(**change)))
    last = events_of(take_all(channel))[-1]
    assert last["state"] == "error" and sentence in last["text"] and "\n" not in last["text"]


def test_line_serves_in_order_and_places_move_up():
    async def main():
        line = Line()
        a, b, c = line.enter(), line.enter(), line.enter()
        assert [t.place for t in (a, b, c)] == [0, 1, 2]
        b.leave()
        await asyncio.sleep(0)
        assert c.place == 1
        a.leave()
        a.leave()
        await asyncio.sleep(0)
        assert c.place == 0 and list(line.waiting) == [c]

    in_a_loop(main())


def test_a_closed_generator_ends_the_run_and_the_next_tab_gets_the_model():
    async def main():
        server = Server(FakeEngine(0.02))
        first = server.run("one", request())
        got = events_of([await anext(first) for _ in range(4)])
        assert any(e["type"] == "steps" for e in got)
        second = server.run("two", request(lanes={"A": ("parallel", "paper", {"gen_length": 8, "block_length": 8})}))
        waiting = events_of([await anext(second)])
        assert waiting[-1] == {"type": "status", "state": "queued", "text": "waiting for the model; next in line", "place": 1}
        await first.aclose()
        rest = events_of([v async for v in second])
        assert [e["state"] for e in rest if e["type"] == "status"][-1] == "done"
        assert not server.line.waiting

    in_a_loop(main())


def test_leaving_the_page_stops_the_run_and_forgets_the_tab():
    async def main():
        server = Server(FakeEngine(0.02))
        stream = server.run("one", request())
        await anext(stream)
        run = server.tabs["one"].run
        server.leave("one")
        async for _ in stream:
            pass
        assert run.stopping.is_set() and not run.alive and server.tabs == {} and not server.line.waiting

    in_a_loop(main())


def test_commands_that_make_no_sense_change_nothing():
    server = Server(FakeEngine())
    for command in (None, 3, {}, {"cmd": "explode"}, {"cmd": "set"}, {"cmd": "resend", "from": "x"}, {"cmd": "open", "name": "../../etc/passwd"}):
        server.command("tab", command)
    said = events_of(take_all(server.tab("tab").channel))
    assert all(e["type"] == "status" for e in said)
    assert any("there is no sample trace called" in e["text"] for e in said)

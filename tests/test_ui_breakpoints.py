"""Breakpoints, steps and lists as a tab sends and is answered them, without a browser."""

from __future__ import annotations

import pytest

from tests.browser.fake import FakeEngine
from tests.tabs import SMALL, Page, play, put_in, small
from ui.samples import sample_path


def test_a_breakpoint_pauses_at_its_pass_says_so_and_continue_goes_on(engine):
    async def scene(p: Page):
        p.send(cmd="breakpoint", op="add", breakpoint={"pass": 3})
        p.send(cmd="breakpoint", op="add", breakpoint={"pass": 4})
        p.send(cmd="breakpoint", op="disable", id=2)
        await p.until(lambda: len(p.of("breakpoints")) == 3)
        p.run(small())
        await p.ends("paused")
        await p.settle()
        assert [s["i"] for s in p.steps()] == [0, 1, 2, 3]
        assert p.text == "breakpoint 1 (pass 3) at pass 3, block 0"
        first, second = p.of("breakpoints")[-1]["list"]
        assert first == {"id": 1, "text": "pass 3", "enabled": True, "fired": p.text, "position": None}
        assert second == {"id": 2, "text": "pass 4", "enabled": False, "fired": None, "position": None}
        p.send(cmd="continue")
        assert await p.ends() == "done"
        assert p.of("breakpoints")[-1]["list"][0]["fired"] is None
        p.send(cmd="breakpoint", op="clear")
        await p.until(lambda: p.of("breakpoints")[-1]["list"] == [])

    play(engine, scene)


def test_breakpoints_stay_between_runs_and_hold_in_each_lane(engine):
    async def scene(p: Page):
        p.send(cmd="breakpoint", op="add", breakpoint={"pass": 1, "block_entry": False, "block": 0})
        p.run(small(lanes={x: ("polestar", "paper", SMALL) for x in "AB"}))
        for lane in "AB":
            await p.until(lambda lane=lane: p.state == "paused" and p.text.startswith(f"lane {lane}, breakpoint 1"))
            p.send(cmd="continue")
        assert await p.ends() == "done"

    play(engine, scene)


def test_a_breakpoint_set_while_the_run_goes_is_asked_too(engine):
    async def scene(p: Page):
        p.run(small(pace=20.0))
        await p.until(lambda: len(p.steps()) > 1)
        p.send(cmd="breakpoint", op="add", breakpoint={"block_entry": True})
        assert await p.ends("paused", "done") == "paused"
        await p.settle()
        assert p.steps()[-1]["k"].startswith("entry")

    play(engine, scene)


def test_a_step_past_a_breakpoint_says_what_is_true_then(engine):
    async def scene(p: Page):
        p.send(cmd="breakpoint", op="add", breakpoint={"pass": 3})
        p.send(cmd="breakpoint", op="add", breakpoint={"pass": 5})
        p.run(small())
        await p.until(lambda: p.state == "paused" and "breakpoint 1" in p.text)
        p.send(cmd="step")
        await p.until(lambda: len(p.steps()) == 5)
        await p.settle()
        assert (p.state, p.text) == ("paused", "paused; step, continue or stop")
        assert [b["fired"] for b in p.of("breakpoints")[-1]["list"]] == [None, None]
        p.send(cmd="step")
        await p.until(lambda: len(p.steps()) == 6)
        await p.settle()
        assert p.text == "breakpoint 2 (pass 5) at pass 5, block 0", "and the one that it meets"
        p.send(cmd="stop")
        await p.ends()

    play(engine, scene)


def test_a_position_is_listed_and_holds_in_a_later_run_that_is_longer(engine):
    async def scene(p: Page):
        p.run(small())
        await p.ends()
        beyond = p.of("header")[-1]["header"]["length"]
        p.send(cmd="breakpoint", op="add", breakpoint={"position": beyond})
        await p.until(lambda: p.of("breakpoints") and p.of("breakpoints")[-1]["list"])
        assert p.of("breakpoints")[-1]["list"][0]["position"] == beyond
        p.run(small())
        assert await p.ends("paused", "done") == "done"
        p.run(small(lanes={"A": ("polestar", "paper", SMALL | {"gen_length": SMALL["gen_length"] + 8})}))
        assert await p.ends("paused", "done") == "paused" and f"position {beyond} committed" in p.text
        p.send(cmd="stop")
        await p.ends()

    play(engine, scene)


def test_a_breakpoint_on_a_token_names_its_text(engine):
    async def scene(p: Page):
        p.run(small())
        await p.ends()
        token = p.commits()[0][2]
        text = engine.codec(engine.load("demo")).token_text(token)
        p.send(cmd="breakpoint", op="add", breakpoint={"token": token})
        await p.until(lambda: p.of("breakpoints") and p.of("breakpoints")[-1]["list"])
        assert p.of("breakpoints")[-1]["list"][0]["text"] == f"a commit of token {text!r} (id {token})"
        p.run(small())
        await p.ends("paused")
        assert f"token {text!r} (id {token}), confidence" in p.text
        p.send(cmd="stop")
        await p.ends()

    play(engine, scene)


def test_text_breakpoints_know_the_tokens_of_the_model(engine):
    async def scene(p: Page):
        p.run(small())
        await p.ends()
        answer = p.of("end")[-1]["metrics"]["text"].split()[2]
        p.send(cmd="breakpoint", op="add", breakpoint={"text": answer})
        p.run(small())
        await p.ends("paused", "done")
        assert p.state == "paused" and answer in p.text

    play(engine, scene)


def test_steps_go_to_the_next_event_and_say_where(engine):
    async def scene(p: Page):
        p.send(cmd="breakpoint", op="add", breakpoint={"pass": 0})
        p.run(small())
        await p.ends("paused")
        await p.settle()
        p.send(cmd="step")
        await p.until(lambda: len(p.steps()) == 2)
        p.send(cmd="step", what="block", lane="A")
        await p.until(lambda: p.state == "paused" and "block at pass" in p.text)
        await p.settle()
        assert p.steps()[-1]["b"] == 1 and p.steps()[-2]["b"] == 0
        p.send(cmd="step", what="leap")
        await p.until(lambda: "there is no event 'leap'" in p.text)
        assert p.state == "paused"

    play(engine, scene)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ({"op": "add", "breakpoint": {"delta": {"above": "x"}}}, "delta above takes a number"),
        ({"op": "add", "breakpoint": None}, "a breakpoint is None"),
        ({"op": "remove", "id": 9}, "there is no breakpoint 9"),
        ({"op": "explode"}, "no operation 'explode'"),
    ],
)
def test_breakpoints_that_make_no_sense_are_sentences(command, sentence):
    async def scene(p: Page):
        p.send(cmd="breakpoint", **command)
        await p.until(lambda: p.of("status"))
        assert sentence in p.text and not p.of("breakpoints")

    play(FakeEngine(), scene)


def test_hello_brings_the_lists():
    async def scene(p: Page):
        p.send(cmd="hello")
        await p.until(lambda: p.of("branches"))
        assert p.of("breakpoints")[0]["list"] == [] and p.of("lessons")

    play(FakeEngine(), scene)


def test_the_tree_keeps_what_is_shown_and_forgets_the_oldest():
    async def scene(p: Page):
        p.send(cmd="open", name="vanilla")
        p.send(cmd="open", name="vanilla")
        await p.until(lambda: p.of("end"))
        assert len(p.of("branches")[-1]["list"]) == 1  # a sample stands in the tree once
        name = put_in(p.server.shelf, sample_path("vanilla").read_bytes())["name"]
        for _ in range(20):
            p.send(cmd="open", name=name)
        await p.until(lambda: p.of("branches") and len(p.of("branches")[-1]["list"]) == 16)
        assert p.of("branches")[-1]["list"][-1]["lane"] == "A"

    play(FakeEngine(), scene)

"""Forks and branches of a tab, without a browser."""

from __future__ import annotations

import pytest

from polestar.trace.file import load
from tests.tabs import SMALL, Page, play, small
from ui.samples import sample_path


def test_an_unchanged_fork_reproduces_the_run_beside_it(engine):
    async def scene(p: Page):
        p.run(small())
        await p.ends()
        original = p.commits()
        p.send(cmd="fork", lane="A", **{"pass": 2}, changes={}, method=None, edits={}, to="B")
        await p.until(lambda: p.of("end", lane="B"))
        assert await p.ends() == "done"
        assert p.commits("A") == original and p.commits("B") == original
        assert p.of("header", lane="B")[0]["header"]["parent"]["pass"] == 2
        root, fork = p.of("branches")[-1]["list"]
        assert (root["parent"], root["lane"]) == (None, "A")
        assert (fork["parent"], fork["at"], fork["lane"], fork["label"]) == (root["id"], 2, "B", "unchanged from pass 2")

    play(engine, scene)


def test_forks_with_an_edit_another_method_and_a_parameter_form_a_tree(engine):
    async def scene(p: Page):
        p.run(small())
        await p.ends()
        header = p.of("header")[0]["header"]
        first = header["prompt_length"]
        p.send(cmd="fork", lane="A", **{"pass": 1}, edits={str(first): 7, str(first + 1): None}, to="B")
        await p.until(lambda: p.of("end", lane="B"))
        edited = [s["ed"] for s in p.steps("B") if "ed" in s]
        assert edited and [first, 7] in edited[0]
        p.send(cmd="fork", lane="B", **{"pass": 3}, method="fast-dllm-dual", to="A")
        await p.until(lambda: p.of("end", lane="A") and p.of("header", lane="A")[0]["header"]["method"] == "fast-dllm-dual")
        p.send(cmd="fork", lane="B", **{"pass": 3}, changes={"tau_s": 0.5}, to="A")
        await p.until(lambda: p.of("branches") and len(p.of("branches")[-1]["list"]) == 4)
        await p.ends()
        nodes = p.of("branches")[-1]["list"]
        assert [n["parent"] for n in nodes] == [None, "b1", "b2", "b2"] and nodes[3]["label"] == "τ_s = 0.5 from pass 3"
        p.send(cmd="branch", id="b1", lane="B")
        await p.until(lambda: p.state == "replay")
        assert p.commits("B") and {n["id"]: n["lane"] for n in p.of("branches")[-1]["list"]} == {"b1": "B", "b2": None, "b3": None, "b4": "A"}

    play(engine, scene)


def test_a_paused_run_can_be_forked_and_keeps_its_passes(engine):
    async def scene(p: Page):
        p.send(cmd="breakpoint", op="add", breakpoint={"pass": 3, "once": True})
        p.run(small())
        await p.ends("paused")
        p.send(cmd="fork", lane="A", **{"pass": 3}, to="B")
        await p.until(lambda: p.of("end", lane="B"))
        assert await p.ends() == "done"
        assert len(p.steps("A")) == 4 and p.commits("B")[: len(p.commits("A"))] == p.commits("A")
        assert not p.server.line.waiting

    play(engine, scene)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ({"lane": "B", "pass": 0}, "lane 'B' shows no run"),
        ({"lane": "A", "pass": 999}, "a fork cannot begin at pass 999"),
        ({"lane": "A", "pass": 0, "to": "C"}, "shown in lane A or B"),
        ({"lane": "A", "pass": 0, "edits": {"x": 1}}, "the edit of position 'x'"),
        ({"lane": "A", "pass": 0, "edits": {"3": 1}}, "position 3 cannot be edited"),
        ({"lane": "A", "pass": 0, "changes": {"tau_s": "high"}}, "tau_s takes a number"),
    ],
)
def test_forks_that_cannot_be_are_sentences(engine, command, sentence):
    async def scene(p: Page):
        p.send(cmd="open", name="polestar")
        await p.until(lambda: p.of("end"))
        p.send(cmd="fork", **command)
        await p.until(lambda: sentence in p.text)
        assert p.commits("A")  # what was shown still is

    play(engine, scene)


def test_a_fork_that_fails_leaves_both_lanes(engine):
    """Known at once: nothing is replaced. Known to the model alone: the lane shows again what it showed."""

    async def scene(p: Page):
        p.run(small(lanes={"A": ("polestar", "paper", SMALL), "B": ("fast-dllm-dual", "paper", {"gen_length": 16, "block_length": 8})}))
        await p.ends()
        first, run = p.of("header", lane="A")[0]["header"]["prompt_length"], p.server.tab(p.name).channel.run
        a, b = p.commits("A"), p.commits("B")
        for command, sentence in (
            ({"edits": {str(first): "Sam the bear ran"}}, "but a position holds one"),
            ({"changes": {"alpha": "steep"}}, "alpha takes a number"),
            ({"edits": {str(first + i): 7 for i in range(16)}}, "no position holds [MASK]"),
        ):
            p.send(cmd="fork", lane="A", **{"pass": 1}, **command)
            await p.until(lambda said=sentence: said in p.text)
        assert p.server.tab(p.name).channel.run == run and (p.commits("A"), p.commits("B")) == (a, b)
        p.send(cmd="fork", lane="A", **{"pass": 1}, edits={str(first): 10**9}, to="B")
        await p.ends("error")
        assert "is no id of the vocabulary" in p.text
        assert (p.commits("A"), p.commits("B")) == (a, b) and {n["lane"] for n in p.of("branches")[-1]["list"]} == {"A", "B"}
        assert p.server.tab(p.name).trace("B") is not None
        p.send(cmd="fork", lane="B", **{"pass": 0}, method="polestar", to="A")
        await p.until(lambda: p.of("branches") and len(p.of("branches")[-1]["list"]) == 3)
        assert await p.ends() == "done"

    play(engine, scene)


def test_a_sample_that_another_checkpoint_made_is_not_forked_wrongly(engine, tmp_path):
    """A recording whose passes come out otherwise says so instead of showing a fork."""
    from dataclasses import replace

    trace = load(sample_path("polestar"))
    step = trace.steps[1]
    step.commits = [replace(c, token=c.token + 1) for c in step.commits]
    codec = engine.codec(engine.load("demo"))
    was = step.commits[0].token
    trace.save(tmp_path / "other.safetensors")

    async def scene(p: Page):
        p.send(cmd="hello")
        await p.until(lambda: p.of("end"))
        p.send(cmd="fork", lane="A", **{"pass": 3})
        await p.until(lambda: p.state == "error")
        assert "pass 1 made again" in p.text or "is not" in p.text or "cannot be reproduced" in p.text
        assert f"where the record has token {codec.token_bytes(was).decode()!r} (id {was}) at position" in p.text

    play(engine, scene, trace=str(tmp_path / "other.safetensors"))

"""The debugger commands of the page: what a tab sends and is answered, without a browser."""

from __future__ import annotations

import asyncio
import json
import time
import zipfile
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from polestar.trace.file import load
from tests.browser.fake import FakeEngine
from ui import exports, lessons, settings
from ui.engine import Engine
from ui.files import Shelf
from ui.runs import Request
from ui.samples import sample_path
from ui.server import Server
from ui.stream import unpack

SMALL = {"gen_length": 16, "block_length": 8, "tau_s": 1.05, "drift_commit": False, "suffix_commit": False}  # one token a pass


def small(method: str = "polestar", prompt: str = "Describe Sam the bear.", lanes=None, **changes) -> Request:
    return Request(model="demo", prompt=prompt, lanes=lanes or {"A": (method, "paper", SMALL)}, **changes)


@pytest.fixture(scope="module")
def engine():
    return Engine(device="cpu")


class Page:
    """A tab as the page's javascript sees it: commands go in, events come out."""

    def __init__(self, server: Server, name: str = "tab"):
        self.server, self.name = server, name
        self.events: list[dict] = []
        self.tasks: list[asyncio.Task] = []

    async def _read(self, stream) -> None:
        async for value in stream:
            for text in unpack(value):
                message = json.loads(text)
                for e in message["events"]:
                    if e["type"] == "reset":
                        self.events.clear()
                    self.events.append(e)

    def run(self, request: Request) -> None:
        self.events.clear()
        self.tasks.append(asyncio.create_task(self._read(self.server.run(self.name, request))))

    def send(self, **command):
        answer = self.server.command(self.name, command)
        self.tasks.append(asyncio.create_task(self._read(self.server.drain(self.name))))
        return answer

    def of(self, kind: str, **fields) -> list[dict]:
        return [e for e in self.events if e["type"] == kind and all(e.get(k) == v for k, v in fields.items())]

    def steps(self, lane: str = "A") -> list[dict]:
        return [s for e in self.of("steps", lane=lane) for s in e["steps"]]

    def commits(self, lane: str = "A") -> list[tuple]:
        return [(s["i"], *c[:2]) for s in self.steps(lane) for c in s["c"]]

    @property
    def state(self) -> str:
        return self.of("status")[-1]["state"] if self.of("status") else "none"

    @property
    def text(self) -> str:
        return self.of("status")[-1]["text"]

    async def until(self, test, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not test():
            assert time.monotonic() < end, f"state {self.state}: {self.of('status')[-3:]}"
            await asyncio.sleep(0.02)

    async def ends(self, *states: str) -> str:
        await self.until(lambda: self.state in (states or ("done", "error", "stopped")))
        return self.state

    async def settle(self) -> None:
        """Until nothing more comes for a moment."""
        count = -1
        while count != len(self.events):
            count = len(self.events)
            await asyncio.sleep(0.15)

    async def close(self) -> None:
        self.server.leave(self.name)
        await asyncio.gather(*self.tasks)


def play(engine, scene, **kind) -> None:
    """Run `scene(page)` in an event loop, with a server of its own."""

    async def main():
        page = Page(Server(engine, **kind))
        try:
            await scene(page)
        finally:
            await page.close()

    asyncio.run(main())


# ---- breakpoints and steps ----------------------------------------------------------------------------------------------------


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
        assert first == {"id": 1, "text": "pass 3", "enabled": True, "fired": p.text}
        assert second == {"id": 2, "text": "pass 4", "enabled": False, "fired": None}
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


# ---- forks and branches -------------------------------------------------------------------------------------------------------


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
        assert [n["parent"] for n in nodes] == [None, "b1", "b2", "b2"] and nodes[3]["label"] == "tau_s = 0.5 from pass 3"
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
    trace.save(tmp_path / "other.safetensors")

    async def scene(p: Page):
        p.send(cmd="hello")
        await p.until(lambda: p.of("end"))
        p.send(cmd="fork", lane="A", **{"pass": 3})
        await p.until(lambda: p.state == "error")
        assert "pass 1 made again" in p.text or "is not" in p.text or "cannot be reproduced" in p.text

    play(engine, scene, trace=str(tmp_path / "other.safetensors"))


# ---- notes, exports -----------------------------------------------------------------------------------------------------------


def test_notes_are_added_edited_removed_and_kept_in_the_exported_trace(engine):
    async def scene(p: Page):
        p.send(cmd="open", name="polestar")
        await p.until(lambda: p.of("end"))
        p.send(cmd="note", op="add", lane="A", position=None, text=" look here ", **{"pass": 2})
        p.send(cmd="note", op="add", lane="A", position=p.of("header")[0]["header"]["prompt_length"], text="first", **{"pass": 3})
        p.send(cmd="note", op="edit", lane="A", index=1, text="second")
        await p.until(lambda: len(p.of("notes")) == 3)
        assert [n["text"] for n in p.of("notes")[-1]["notes"]] == ["look here", "second"]
        p.send(cmd="export", what="trace", lane="A")
        await p.until(lambda: p.of("file"))
        file = p.of("file")[-1]
        got = TestClient(Starlette(routes=p.server.shelf.routes())).get("/" + file["url"])
        assert got.status_code == 200 and file["name"] == "polestar-polestar.safetensors" and "attachment" in got.headers["content-disposition"]
        path = Path(p.server.shelf._folder) / "again.safetensors"
        path.write_bytes(got.content)
        assert [n["text"] for n in load(path).notes] == ["look here", "second"]
        p.send(cmd="note", op="remove", lane="A", index=0)
        await p.until(lambda: len(p.of("notes")[-1]["notes"]) == 1)
        for wrong in ({"op": "add", "pass": 9999, "text": "x"}, {"op": "add", "pass": 1, "text": " "}, {"op": "edit", "index": 5, "text": "x"}):
            before = len(p.of("status"))
            p.send(cmd="note", lane="A", **wrong)
            await p.until(lambda before=before: len(p.of("status")) > before)
        assert len(p.of("notes")[-1]["notes"]) == 1
        p.server.leave(p.name)
        assert TestClient(Starlette(routes=p.server.shelf.routes())).get("/" + file["url"]).status_code == 404

    play(FakeEngine(), scene)


def test_html_and_tables_are_exported_while_the_run_goes(engine):
    async def scene(p: Page):
        p.send(cmd="breakpoint", op="add", breakpoint={"pass": 4})
        p.run(small())
        await p.ends("paused")
        for what in ("html", "parquet"):
            p.send(cmd="export", what=what, lane="A")
        await p.until(lambda: len(p.of("file")) == 2)
        client = TestClient(Starlette(routes=p.server.shelf.routes()))
        html, tables = (client.get("/" + f["url"]) for f in p.of("file"))
        assert html.text.startswith("<!doctype html>") and "connect-src" not in html.text and len(html.content) < 5_000_000
        path = Path(p.server.shelf._folder) / "tables.zip"
        path.write_bytes(tables.content)
        assert {"run.json", "steps.parquet", "commits.parquet"} <= set(zipfile.ZipFile(path).namelist())
        p.send(cmd="export", what="gif", lane="A")
        await p.until(lambda: "is not exported as 'gif'" in p.text)
        assert p.state == "paused"

    play(engine, scene)


def test_names_of_files_hold_nothing_that_a_trace_says():
    trace = load(sample_path("polestar"))
    object.__setattr__(trace.header, "method", "../../etc/<b>x")
    assert exports.file_name("html", {"A": trace}) == "polestar-etc-b-x.html"


# ---- files that are put in ----------------------------------------------------------------------------------------------------


def put_in(shelf: Shelf, body: bytes, **headers) -> dict:
    return TestClient(Starlette(routes=shelf.routes())).post("/polestar/open", content=body, headers=headers).json()


def test_a_trace_that_is_put_in_opens_beside_another():
    async def scene(p: Page):
        name = put_in(p.server.shelf, sample_path("vanilla").read_bytes())["name"]
        p.send(cmd="open", name="polestar")
        p.send(cmd="open", name=name, lane="B")
        await p.until(lambda: len(p.of("end")) == 2)
        assert [e["header"]["method"] for e in p.of("header")] == ["polestar", "vanilla"]
        assert p.state == "replay"

    play(FakeEngine(), scene)


def test_what_is_no_trace_is_one_sentence_and_leaves_nothing():
    shelf = Shelf()
    good = sample_path("vanilla").read_bytes()
    damaged = bytearray(good)
    damaged[len(damaged) // 2] ^= 1
    for body, sentence in (
        (b"", "it is empty"),
        (b"hello, I am text", "no safetensors file"),
        (good[: len(good) // 2], "truncated"),
        (bytes(damaged), "checksum"),
        (b"\x80\x04.", "pickle"),
        ((Path(__file__).parents[1] / "assets/demo/model.safetensors").read_bytes()[:1 << 20], "truncated"),
    ):
        answer = put_in(shelf, body)
        assert sentence in answer["error"] and answer["error"].startswith("cannot open the file: ") and "\n" not in answer["error"]
    assert list(shelf._folder.iterdir()) == []
    shelf.limit = 1000
    assert "larger than" in put_in(shelf, good)["error"] and list(shelf._folder.iterdir()) == []
    assert "error" in put_in(Shelf(), good, origin="http://elsewhere.example")


def test_old_uploads_go():
    shelf, body = Shelf(), sample_path("vanilla").read_bytes()
    names = [put_in(shelf, body)["name"] for _ in range(10)]
    assert [shelf.uploaded(n) is not None for n in names] == [False] * 2 + [True] * 8
    assert shelf.uploaded("../x") is None


# ---- settings, lessons, conversation, observe ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page_parts():
    import gradio as gr

    from ui.layout import lay_out
    from ui.tables import Tables

    tables = Tables.read()
    with gr.Blocks():
        yield tables, lay_out(tables, "demo", [name for name, _ in tables.models])


def test_settings_fill_the_controls_and_say_what_they_cannot(page_parts):
    tables, parts = page_parts
    values = {"prompt": "hi", "method_a": "klass", "compare": False, "tau_s": 0.7, "gen_length": 64, "bogus": 1, "temperature": "hot", "model": ["x"]}
    updates, said = settings.fill(tables, parts, values)
    got = dict(zip(settings.names(parts), updates, strict=True))
    assert (got["prompt"]["value"], got["method_a"]["value"], got["compare"]["value"], got["gen_length"]["value"]) == ("hi", "klass", False, 64)
    assert got["alpha"]["visible"] is False and got["preset"]["choices"] == list(tables.methods["klass"].presets)
    assert "value" not in got["model"] and "value" not in got["detail"]
    assert len(said) == 3 and any("bogus" in s for s in said) and any("temperature" in s for s in said)
    nothing, said = settings.fill(tables, parts, {})
    assert said == [] and all("value" not in u for u in nothing)


def test_another_method_or_preset_keeps_what_the_person_changed(page_parts):
    _, parts = page_parts
    controls = parts.params
    said = controls.base("polestar", "fast-dllm-dual", "paper")
    given = [{"gen_length": 64, "temperature": 0.5, "tau_s": 0.7, "K": 4, "k": 4}.get(name, said[name]) for name in controls.names]
    kept = controls.changed(given, said)
    assert kept == {"gen_length": 64, "temperature": 0.5, "tau_s": 0.7, "K": 4}
    updates = dict(zip(controls.names, controls.preset("klass", None, "paper", kept), strict=True))
    assert (updates["gen_length"]["value"], updates["temperature"]["value"], updates["tau_s"]["value"]) == (64, 0.5, 0.7)
    assert updates["alpha"]["visible"] is False
    updates = dict(zip(controls.names, controls.preset("polestar", None, "paper", {"K": 2}), strict=True))
    assert (updates["k"]["value"], updates["k"]["maximum"]) == (2, 2)
    assert controls.preset("polestar", None, "paper")[controls.names.index("gen_length")]["value"] == 256  # what reset does


def test_a_number_outside_its_control_is_corrected_and_named(page_parts):
    from ui.controls import half_written, hold

    _, parts = page_parts
    params, of = parts.params.params, parts.params.of
    assert hold(params["tau_s"], 5) == (1.05, "τ_s = 5 is outside 0 to 1.05; τ_s is 1.05 now.")
    assert hold(params["k"], 0) == (1, "k = 0 is outside 1 to 32; k is 1 now.")
    assert hold(params["seed"], -3)[0] == 0 and "seed = -3" in hold(params["seed"], -3)[1]
    assert hold(params["tau_s"], 0.7) == (0.7, "") and half_written(params["gen_length"], 1) and not half_written(params["gen_length"], 900)
    assert [of[name].preprocess(value) for name, value in (("tau_s", 5), ("k", 40), ("seed", -3))] == [5, 40, -3]  # no error before the listeners
    assert [of[name].get_block_name() for name in ("tau_s", "seed")] == ["slider", "number"]
    given = [{"tau_s": 5}.get(name, params[name].default) for name in parts.params.names]
    assert parts.params.values(given)["tau_s"] == 1.05


def test_a_method_chosen_during_a_run_says_that_it_is_for_the_next_one(engine):
    async def scene(p: Page):
        p.server.next_run(p.name, "new method")
        p.run(small(pace=5.0))
        await p.until(lambda: p.steps())
        assert not any("next run" in e["text"] for e in p.of("status"))
        p.server.next_run(p.name, "new method")
        await p.until(lambda: p.text.startswith("next run: new method;"))
        assert p.state == "running"
        p.send(cmd="stop")
        await p.ends()

    play(engine, scene)


def test_lessons_are_read_in_order(tmp_path):
    (tmp_path / "b.md").write_text("---\ntitle: Second\norder: 2\n---\ntext\n")
    (tmp_path / "a.md").write_text("no front matter\n")
    (tmp_path / "c.md").write_text("---\ntitle: 'First'\norder: 1\n---\n")
    found = lessons.lessons(tmp_path)["list"]
    assert [(x["name"], x["title"], x["order"]) for x in found] == [("c", "First", 1), ("b", "Second", 2), ("a", "a", 999)]
    assert found[1]["markdown"].startswith("---\ntitle: Second")


def test_a_lesson_runs_and_its_settings_go_to_the_controls(engine):
    async def scene(p: Page):
        filled = p.send(cmd="run", method="polestar", method_b="parallel", prompt="Describe Sam the bear.", changes={**SMALL, "alpha": 5})
        assert (filled["method_b"], filled["compare"], filled["alpha"]) == ("parallel", True, 5)
        await p.until(lambda: len(p.of("end")) == 2)
        assert p.of("header", lane="A")[0]["header"]["config"]["alpha"] == 5
        p.send(cmd="run", method="polestar", prompt="x", changes={"gamma": 5})
        await p.until(lambda: "no parameter 'gamma'" in p.text)
        assert len(p.of("end")) == 2

    play(engine, scene)


def test_the_conversation_goes_on_only_when_asked(engine):
    async def scene(p: Page):
        p.run(small())
        await p.ends()
        answer = p.of("end")[-1]["metrics"]["text"].strip()
        alone = p.of("header")[0]["header"]["prompt_length"]
        p.run(small(talk=True, prompt="Describe Ava the fox."))
        await p.until(lambda: p.of("header") and p.of("header")[0]["header"]["prompt_text"] == "Describe Ava the fox.")
        await p.ends()
        assert p.of("header")[0]["header"]["prompt_length"] > alone + len(answer.split())
        said = p.server.tab(p.name).desk.history
        assert [m["role"] for m in said] == ["user", "assistant"] * 2 and said[1]["content"] == answer
        p.run(small())
        await p.until(lambda: p.of("header") and p.of("header")[0]["header"]["prompt_length"] == alone)
        await p.ends()
        assert len(p.server.tab(p.name).desk.history) == 2

    play(engine, scene)


def test_observe_mode_shows_staleness_and_says_that_its_speed_means_nothing(engine):
    async def scene(p: Page):
        p.run(small(level="observe"))
        await p.ends()
        assert p.state == "done" and "speed of this run means nothing" in p.text
        assert all(s["stale"] and s["fulldrift"] for s in p.steps()[1:])
        p.send(cmd="fork", lane="A", **{"pass": 1}, to="B")
        await p.until(lambda: p.of("end", lane="B"))
        assert all(s["stale"] for s in p.steps("B")[1:])

    play(engine, scene)


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


def test_with_a_password_only_who_is_signed_in_may_put_a_file_in():
    shelf = Shelf()
    app = Starlette(routes=shelf.routes())
    app.auth, app.cookie_id, app.tokens = {"me": "secret"}, "x", {"good": "me"}
    body = sample_path("vanilla").read_bytes()
    assert TestClient(app).post("/polestar/open", content=body).status_code == 403
    assert TestClient(app, cookies={"access-token-x": "bad"}).post("/polestar/open", content=body).status_code == 403
    assert "name" in TestClient(app, cookies={"access-token-x": "good"}).post("/polestar/open", content=body).json()

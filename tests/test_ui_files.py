"""Notes, exports, and traces that are put in."""

from __future__ import annotations

import zipfile
from pathlib import Path

from starlette.applications import Starlette
from starlette.testclient import TestClient

from polestar.trace.file import load
from tests.browser.fake import FakeEngine
from tests.tabs import Page, play, put_in, small
from ui import exports
from ui.files import Shelf
from ui.samples import sample_path


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
        ((Path(__file__).parents[1] / "assets/demo/model.safetensors").read_bytes()[: 1 << 20], "truncated"),
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


def test_with_a_password_only_who_is_signed_in_may_put_a_file_in():
    shelf = Shelf()
    app = Starlette(routes=shelf.routes())
    app.auth, app.cookie_id, app.tokens = {"me": "secret"}, "x", {"good": "me"}
    body = sample_path("vanilla").read_bytes()
    assert TestClient(app).post("/polestar/open", content=body).status_code == 403
    assert TestClient(app, cookies={"access-token-x": "bad"}).post("/polestar/open", content=body).status_code == 403
    assert "name" in TestClient(app, cookies={"access-token-x": "good"}).post("/polestar/open", content=body).json()

"""Keep and share: pictures, tables, files, links, and opening a trace."""

from __future__ import annotations

import base64
import csv
import io
import json
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import synth
from browser import open_tab
from pages import events_of, feed, last, open_panel, push, select, settle, steps_of


def download(tab, button) -> tuple[str, bytes]:
    with tab.expect_download() as got:
        button.click()
    return got.value.suggested_filename, Path(got.value.path()).read_bytes()


def test_the_view_is_saved_as_png_and_svg(tab):
    feed(tab, synth.messages(hostile=True))
    tab.evaluate("() => { page.store.seek(20); page.store.flush(); }")
    panel = open_panel(tab, "Export")
    name, data = download(tab, panel.get_by_role("button", name="SVG"))
    assert name == "polestar-polestar-vs-fast-dllm-dual.svg"
    root = xml.etree.ElementTree.fromstring(data)
    texts = " ".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "Polestar" in texts and "LOCAL WINDOW" in texts and "pass 20" in texts
    assert "<img src=x onerror=alert(1)>" in texts, "the answer, as text"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}image"))) >= 6 and not list(root.iter("{http://www.w3.org/2000/svg}script"))
    name, data = download(tab, panel.get_by_role("button", name="PNG"))
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    box = tab.locator(".app").bounding_box()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and (width, height) == (round(box["width"]) * 2, round(box["height"]) * 2) and len(data) > 100_000


MARKS = """() => {
  const root = document.getElementById('root').shadowRoot, app = root.querySelector('.app').getBoundingClientRect();
  const place = (node, l = 0, w = null) => { const r = node.getBoundingClientRect(); return [r.left - app.left + l, r.top - app.top, w ?? r.width, r.height]; };
  const out = {state: place(root.querySelector('.state'), 6, 14)};
  for (const i of root.querySelectorAll('.legend i')) {
    const name = i.className ? i.className.split(' ').at(-1) : i.parentElement.className.split('r-').at(-1);
    if (i.getBoundingClientRect().width) out[name] = place(i);
  }
  for (const [name, cell] of [['win', root.querySelector('.cmp td.win')], ['lose', root.querySelector('.cmp td.lose')]]) {
    if (cell) { const r = cell.getBoundingClientRect(); out[name] = [r.right - app.left - 14, r.top - app.top, 14, r.height]; }
  }
  return out;
}"""


def test_the_picture_holds_the_marks_that_css_draws(harness):
    """Swatches, the state's dot and the signs of the comparison are pseudo-elements, gradients and outlines: each looks as it does on the screen."""
    from PIL import Image, ImageFilter

    with open_tab(harness, reduced_motion="reduce") as tab:
        feed(tab, synth.messages())
        tab.evaluate("() => { page.store.seek(20); page.store.set({tab: 'compare'}); page.store.flush(); }")
        settle(tab)
        picture = """async () => { const {svgToPng, viewAsSvg} = await import('/assets/js/svg.js'); page.store.flush();
          const blob = await svgToPng(viewAsSvg(document.getElementById('root').shadowRoot.querySelector('.app')), 1);
          return [...new Uint8Array(await blob.arrayBuffer())]; }"""
        seen = set()
        for state in ("running", "paused", "error", "done", "loading"):
            push(tab, {"type": "status", "state": state, "text": "", "place": None})
            settle(tab)
            marks = tab.evaluate(MARKS)
            saved = Image.open(io.BytesIO(bytes(tab.evaluate(picture)))).convert("RGB")
            screen = Image.open(io.BytesIO(tab.locator(".app").screenshot())).convert("RGB")
            back = np.array(screen.getpixel((3, 3)), int)
            for name, (x, y, w, h) in marks.items():
                box = (round(x) - 1, round(y) - 1, round(x + w) + 1, round(y + h) + 1)
                # A little blurred: the browser's dashes begin a pixel earlier or later than a picture's.
                a, b = (np.asarray(image.crop(box).filter(ImageFilter.BoxBlur(1)), int) for image in (screen, saved))
                ink = np.abs(a - back).sum(2) > 60  # where the screen shows a mark at all
                assert ink.any(), name
                assert np.abs(a - b)[ink].mean() < 10, f"{name} while {state}: {np.abs(a - b)[ink].mean():.0f} of 255 apart"
                seen.add(name)
        assert seen >= {"state", "masked", "fresh", "window", "lit", "differ", "confidence", "drift", "suffix", "forced", "win", "lose"}


def test_tables_are_saved_as_csv(tab):
    messages = synth.messages(hostile=True)
    feed(tab, messages)
    panel = open_panel(tab, "Export")

    def table(title):
        _, data = download(tab, panel.get_by_role("button", name=f"{title} (CSV)"))
        return list(csv.DictReader(io.StringIO(data.decode())))

    rows = table("Passes")
    both = [(lane, s) for lane in "AB" for s in steps_of(messages, lane)]
    assert len(rows) == len(both)
    for row, (lane, s) in zip(rows, both, strict=True):
        assert (row["lane"], int(row["pass"]), row["kind"], int(row["rows"]), float(row["seconds"])) == (lane, s["i"], s["k"], s["rows"], s["dt"])
        assert row["N"] == ("" if s["N"] is None else str(s["N"])) and row["reason"] == s["why"]
    rows = table("Commits")
    wanted = [(lane, s["i"], c[0], c[1]) for lane, s in both for c in s["c"]]
    assert [(r["lane"], int(r["pass"]), int(r["position"]), int(r["token"])) for r in rows] == wanted
    vocab = events_of(messages, "vocab", None)[0]["map"]
    assert all(json.loads(r["text"]) == vocab[r["token"]]["t"] for r in rows)
    rows = table("Confidence and drift")
    first = steps_of(messages)[3]
    mine = [r for r in rows if r["lane"] == "A" and r["pass"] == "3"]
    conf = np.frombuffer(base64.b64decode(first["conf"]), "<f4")
    assert [r["confidence"] for r in mine].count("") == int(np.isnan(conf).sum())
    assert np.allclose([float(r["confidence"]) for r in mine if r["confidence"]], conf[~np.isnan(conf)])
    assert next(r["measure"] for r in table("Comparison")) == "forward passes (NFE)"


def test_files_are_asked_of_the_server_and_linked(tab):
    feed(tab, synth.messages())
    panel = open_panel(tab, "Export")
    for label, what in (("HTML", "html"), ("Trace", "trace"), ("Parquet", "parquet")):
        panel.get_by_role("button", name=label, exact=True).click()
        assert last(tab) == {"cmd": "export", "what": what, "lane": "A"}
    push(tab, {"type": "file", "name": "run.html", "url": "polestar/file/abc/run.html"})
    link = panel.get_by_role("link", name="run.html")
    assert link.get_attribute("href") == "polestar/file/abc/run.html" and link.get_attribute("download") == "run.html"


def test_a_short_link_restores_settings_and_position(tab, harness):
    messages = synth.messages()
    feed(tab, messages)
    tab.get_by_role("button", name="tokens", exact=True).click()
    tab.evaluate("() => { page.store.seekPass('A', 9); page.store.flush(); }")
    select(tab, 61)
    panel = open_panel(tab, "Export")
    panel.get_by_role("button", name="copy link").click()
    url = panel.get_by_label("Short link").input_value()
    here = "() => [page.store.passOf('A'), page.store.passOf('B'), page.store.sel, page.store.view.align, page.store.view.tab, page.store.follow]"
    before = tab.evaluate(here)
    with open_tab(harness) as other:
        other.goto("about:blank")
        other.goto(url)
        other.wait_for_function("window.ready && sent.length")
        sent = other.evaluate("() => sent")
        assert sent[0]["cmd"] == "settings"
        values = sent[0]["values"]
        assert values["method_a"] == "polestar" and values["method_b"] == "fast-dllm-dual" and values["compare"] is True
        assert values["tau_s"] == 0.9 and values["alpha"] == 10 and values["preset"] == "paper"
        feed(other, messages)
        assert other.evaluate(here) == before
    with open_tab(harness) as other:
        other.goto("about:blank")
        other.goto(url.split("#")[0] + "#ps=broken!")
        other.wait_for_function("window.ready")
        assert "link in the address is damaged" in other.locator(".empty").inner_text()
        assert other.evaluate("() => sent.length") == 0


DROP = """([selector, name, bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], name));
  const target = document.getElementById('root').shadowRoot.querySelector(selector);
  for (const type of ['dragover', 'drop']) target.dispatchEvent(new DragEvent(type, {dataTransfer: data, bubbles: true, composed: true, cancelable: true}));
}"""


def test_traces_open_by_drop_and_from_the_panel_and_a_bad_one_changes_nothing(tab, tmp_path):
    feed(tab, synth.messages())
    posted = []

    def answer(route):
        posted.append(route.request.post_data_buffer)
        bad = not posted[-1].startswith(b"good")
        reply = {"error": "notes.txt is no trace (it does not begin like a safetensors file); open a trace."} if bad else {"name": "upload-1"}
        route.fulfill(json=reply)

    tab.route("**/polestar/open", answer)
    tab.evaluate(DROP, [".panels", "run.safetensors", list(b"good trace")])
    tab.wait_for_function("() => sent.at(-1)?.cmd === 'open'")
    assert posted == [b"good trace"] and last(tab) == {"cmd": "open", "name": "upload-1", "lane": None}
    tab.evaluate(DROP, ['section[aria-label="Lane B"] .lane-grid', "run.safetensors", list(b"good too")])
    tab.wait_for_function("() => sent.at(-1)?.lane === 'B'")
    sent = tab.evaluate("() => sent.length")
    state = "() => [page.store.run, page.store.lanes.A.n, page.store.lanes.B.n]"
    before = tab.evaluate(state)
    tab.evaluate(DROP, [".panels", "notes.txt", list(b"hello")])
    alert = tab.locator(".banner")
    alert.wait_for()
    assert "notes.txt is no trace" in alert.inner_text()
    assert tab.evaluate("() => sent.length") == sent and tab.evaluate(state) == before
    panel = open_panel(tab, "Export")
    file = tmp_path / "mine.safetensors"
    file.write_bytes(b"good file")
    panel.get_by_label("Open into").select_option("B")
    panel.get_by_label("Trace file").set_input_files(str(file))
    tab.wait_for_function("(n) => sent.length > n", arg=sent)
    assert last(tab) == {"cmd": "open", "name": "upload-1", "lane": "B"} and posted[-1] == b"good file"

"""What each method adds to the page: its panel, its marks over the grid."""

from __future__ import annotations

import re

import numpy as np
from pages import LESSONS, feed, open_panel, recording, select


def method_panel(tab, name):
    """Show a bundled recording of a method and its panel; answers (panel, trace)."""
    from polestar.trace.file import load

    feed(tab, recording(f"m-{name}", name))
    return open_panel(tab, "Method"), load(LESSONS.parent / "traces" / f"{name}.safetensors")


def overlay(tab, p):
    return tab.evaluate("async (p) => (await import('/assets/js/overlay.js')).overlayOf(page.store.lanes.A, p)", p)


def at_pass(tab, p):
    tab.evaluate("(p) => { page.store.seek(p); page.store.flush(); }", p)


def grid_pixels(tab):
    return tab.evaluate(
        """() => { page.store.flush(); const c = document.getElementById('root').shadowRoot.querySelector('.grid-cv canvas');
        return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.reduce((a, b) => (a * 31 + b) | 0, 0); }"""
    )


def test_dawn_draws_its_dependency_edges_over_the_grid(tab):
    panel, trace = method_panel(tab, "dawn")
    p = max(range(len(trace)), key=lambda i: len(trace[i].extra["dawn"]["edges"]))
    at_pass(tab, p)
    edges = trace[p].extra["dawn"]["edges"]
    assert [e[:2] for e in overlay(tab, p)["edges"]] == [list(map(int, e)) for e in edges]
    assert f"{len(edges)}: {edges[0][0]}→{edges[0][1]}" in panel.inner_text() and "depends on" in panel.inner_text()
    drawn = grid_pixels(tab)
    tab.get_by_role("tab", name="Why").click()
    plain = grid_pixels(tab)
    assert plain != drawn, "the edges are in the grid while the panel is open"
    tab.get_by_role("tab", name="Method").click()
    panel.get_by_role("checkbox").check()
    tab.get_by_role("tab", name="Why").click()
    assert grid_pixels(tab) == drawn, "and stay when asked"


def test_klass_shows_kl_in_its_panel_in_the_grid_and_in_why(tab):
    panel, trace = method_panel(tab, "klass")
    p = 4
    at_pass(tab, p)
    x, step = trace[p].extra["klass"], trace[p]
    kl = np.asarray(x["kl"], float)
    marks = overlay(tab, p)
    assert len(marks["bars"]) == int((~np.isnan(kl)).sum())
    assert [pos for pos, kind in marks["rings"] if kind == "stable"] == [int(v) for v in x["stable"]]
    assert "KL by position" in panel.inner_text() and "threshold 0.010" not in panel.inner_text(), "figures on the canvas are not text"
    j = int(np.flatnonzero(~np.isnan(kl))[0])
    tab.get_by_role("tab", name="Why").click()
    select(tab, step.block_start + j)
    assert "KL, nats" in tab.get_by_role("tabpanel", name="Why", exact=True).inner_text()


def test_each_method_says_what_it_kept_and_why_it_acted(tab):
    panel, trace = method_panel(tab, "elastic-cache")
    p = next(s.index for s in trace if s.refresh and s.extra["reset_layer"])
    at_pass(tab, p)
    text = panel.inner_text()
    assert trace[p].refresh_reason in text
    assert f"recomputed\n{trace[p].extra['reset_layer']}" in text and "tracked positions" in text
    assert [pos for pos, kind in overlay(tab, p)["rings"] if kind == "tracked"] == [int(v) for v in trace[p].extra["tracked"]]
    panel.get_by_role("button", name=str(int(trace[p].extra["tracked"][0])), exact=True).click()
    assert tab.evaluate("() => page.store.sel.pos") == int(trace[p].extra["tracked"][0])

    panel, trace = method_panel(tab, "d2cache")
    at_pass(tab, 3)
    rings = overlay(tab, 3)["rings"]
    for part, rows in trace[3].extra["chosen"].items():
        assert [pos for pos, kind in rings if kind == part] == [int(v) for v in rows]
    assert "recomputed: masks" in panel.inner_text()

    panel, trace = method_panel(tab, "dynamic-dllm")
    at_pass(tab, 3)
    assert panel.get_by_text("By layer, at this pass").is_visible() and overlay(tab, 3)["spans"] == [list(trace[3].extra["window"])]

    panel, trace = method_panel(tab, "entropycache")
    at_pass(tab, 3)
    assert "Reconstructed" in panel.inner_text()
    said = float(re.search(r"largest entropy of the tokens committed\n([\d.]+) nats", panel.inner_text())[1])
    assert abs(said - trace[3].extra["entropy"]) < 0.006

    panel, trace = method_panel(tab, "adablock")
    at_pass(tab, len(trace) - 1)
    blocks = []
    for s in trace:
        if [s.block_start, s.block_end] not in blocks:
            blocks.append([s.block_start, s.block_end])
    assert overlay(tab, len(trace) - 1)["spans"] == blocks and "blocks as the method has set them" in panel.inner_text()

    panel, _ = method_panel(tab, "polestar")
    assert "logs nothing beyond what the other panels show" in panel.inner_text()

"""Settings, lessons, the conversation and observe mode, without a browser."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tabs import SMALL, Page, play, small
from ui import lessons, settings


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
    updates, said, lanes = settings.fill(tables, parts, values)
    got = dict(zip(settings.names(parts), updates, strict=True))
    assert (got["prompt"]["value"], got["method_a"]["value"], got["compare"]["value"], got["gen_length"]["value"]) == ("hi", "klass", False, 64)
    assert got["alpha"]["visible"] == "hidden" and got["preset"]["choices"] == list(tables.methods["klass"].presets)
    assert (lanes.method_a, lanes.both, lanes.values["tau_s"]) == ("klass", False, 0.7)
    assert "value" not in got["model"] and "value" not in got["detail"]
    assert len(said) == 3 and any("bogus" in s for s in said) and any("temperature" in s for s in said)
    nothing, said, _ = settings.fill(tables, parts, {})
    assert said == [] and all("value" not in u for u in nothing)


def test_another_method_or_preset_keeps_what_the_person_changed(page_parts):
    _, parts = page_parts
    controls = parts.params
    said = controls.base("polestar", "paper")
    given = said | {"gen_length": 64, "temperature": 0.5, "tau_s": 0.7, "K": 4, "k": 4}
    kept = controls.changed(given, said)
    assert kept == {"gen_length": 64, "temperature": 0.5, "tau_s": 0.7, "K": 4}
    updates = dict(zip(controls.names, controls.show(controls.base("klass", "paper") | kept, "klass"), strict=True))
    assert (updates["gen_length"]["value"], updates["temperature"]["value"], updates["tau_s"]["value"]) == (64, 0.5, 0.7)
    assert updates["alpha"]["visible"] == "hidden"
    updates = dict(zip(controls.names, controls.show(said | {"K": 2}, "polestar"), strict=True))
    assert (updates["k"]["value"], updates["k"]["maximum"]) == (2, 2)
    changed = replace(parts.lanes, values=given)
    assert changed.settled().values == given and changed.reset().values["gen_length"] == 256


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


def test_one_cluster_is_a_setting_like_any_other(page_parts):
    """gradio takes no slider whose end is its beginning."""
    from ui.controls import hold_k

    _, parts = page_parts
    slider = parts.params.of["k"]
    said = parts.params.base("polestar", "paper")
    for clusters, k, held in ((1, 4, 1), (0, 4, 1), (1, 1, 1), (1, 2, 1), (2, 4, 2), (32, 4, 4)):
        update, sentence = hold_k(clusters, k)
        shown = dict(zip(parts.params.names, parts.params.show(said | {"K": clusters, "k": k}, "polestar"), strict=True))["k"]
        for change in (update, shown):
            props = {"value": k, "minimum": slider.minimum, **{name: change[name] for name in ("value", "maximum") if name in change}}
            assert type(slider)(render=False, **props).value == held
        assert bool(sentence) == (k != held)
    assert hold_k(1, 4)[1] == "k = 4 is more than K = 1 cluster; k is 1 now."


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

"""Lane B with a preset, parameters and a seed of its own: what the controls mean for each lane, without a browser."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from polestar.config import DecodeConfig
from polestar.trace.wire import changed
from tests.browser.fake import FakeEngine, ScriptSession, WordCodec
from tests.tabs import SMALL, play
from ui import settings
from ui.controls import Controls, written
from ui.lanes import AS_A, START, Lanes, reach
from ui.runs import Request


@pytest.fixture(scope="module")
def parts():
    import gradio as gr

    from ui.layout import lay_out
    from ui.tables import Tables

    tables = Tables.read()
    with gr.Blocks():
        yield lay_out(tables, "demo", [name for name, _ in tables.models])


class Hand:
    """A person at the controls: sees one lane, changes what is seen; each time the lanes are read as the page gives them."""

    def __init__(self, controls: Controls, a: str = "polestar", b: str = "polestar"):
        self.controls, self.preset, self.a, self.b, self.both, self.preset_b, self.note = controls, "paper", a, b, True, "", START
        self.base = controls.base(a, "paper")
        self.values = dict(controls.start)

    @property
    def lanes(self) -> Lanes:
        given = [self.values[name] for name in self.controls.names]
        return Lanes.read(self.controls, self.base, self.a, self.both, self.b, self.preset, self.preset_b, self.note, given)

    def sees(self, lanes: Lanes) -> None:
        """What the page then holds."""
        self.preset, self.preset_b, self.both, self.base, self.note = lanes.preset, lanes.preset_b, lanes.both, lanes.base, lanes.note()
        on_a = lanes.shown == "A"
        updates = self.controls.show(lanes.values if on_a else lanes.of_b(), lanes.method_a if on_a else lanes.method_b)
        self.values = {name: u["value"] for name, u in zip(self.controls.names, updates, strict=True)}
        self.visible = {name for name, u in zip(self.controls.names, updates, strict=True) if u["visible"] is True}
        json.loads(lanes.note(), parse_constant=lambda text: pytest.fail(f"{text} is no JSON that a browser reads"))

    def show(self, lane: str) -> None:
        self.sees(self.lanes.show(lane))

    def of(self, lane: str) -> dict:
        return self.lanes.lanes()[lane][2]


def test_lane_b_is_set_as_lane_a_until_something_is_its_own(parts):
    hand = Hand(parts.params)
    hand.values |= {"tau_s": 0.7, "seed": 5}
    assert hand.of("A") == hand.of("B") and hand.of("B")["tau_s"] == 0.7 and hand.lanes.says() == AS_A and not hand.lanes.differ()
    hand.show("B")
    hand.values |= {"tau_s": 0.95, "seed": 3}
    a, b = hand.of("A"), hand.of("B")
    assert {name: (a[name], b[name]) for name in a if a[name] != b[name]} == {"tau_s": (0.7, 0.95), "seed": (5, 3)}
    assert hand.lanes.says() == "B: τ_s 0.95, seed 3" and json.loads(hand.lanes.told())["names"] == ["tau_s", "seed"]
    hand.show("A")
    assert (hand.values["tau_s"], hand.values["seed"]) == (0.7, 5) and json.loads(hand.lanes.told())["names"] == []
    hand.values["alpha"] = 4.0  # lane B has none of its own, so it follows
    hand.values["tau_s"] = 0.6  # it has
    assert (hand.of("B")["alpha"], hand.of("B")["tau_s"], hand.of("A")["tau_s"]) == (4.0, 0.95, 0.6)
    hand.sees(hand.lanes.same())
    assert hand.of("A") == hand.of("B") and hand.lanes.says() == AS_A and hand.values["tau_s"] == 0.6


def test_a_preset_of_lane_bs_own_keeps_what_was_changed_by_hand(parts):
    hand = Hand(parts.params)
    hand.values["tau_s"] = 0.7
    hand.show("B")
    hand.values["seed"] = 9
    hand.preset_b = "release"  # chosen in the preset's control, whose values have not arrived yet
    hand.sees(hand.lanes.with_b())
    release = DecodeConfig.make(method="polestar", preset="release")
    assert hand.lanes.lanes()["B"][1] == "release" and hand.lanes.says() == "B: preset release, seed 9"
    own = {name: v for name, v in hand.of("B").items() if v != release[name]}
    assert own == {"gen_length": 128, "tau_s": 0.7, "seed": 9}
    assert hand.lanes.lanes()["A"][1] == "paper" and hand.of("A")["tau_upd"] == 3.0 and hand.values["tau_upd"] == 1.0
    hand.preset_b = ""
    hand.sees(hand.lanes.with_b())
    assert hand.of("B") == hand.of("A") | {"seed": 9}


def test_another_method_of_either_lane_keeps_both_lanes_settings(parts):
    hand = Hand(parts.params, b="klass")
    hand.show("B")
    assert "kl_threshold" in hand.visible and "alpha" not in hand.visible
    hand.values |= {"kl_threshold": 0.5, "seed": 2}
    hand.a = "parallel"
    hand.sees(hand.lanes.settled())
    assert (hand.of("B")["kl_threshold"], hand.of("B")["seed"], hand.of("A")["seed"]) == (0.5, 2, 0)
    hand.b = "fast-dllm-dual"
    hand.sees(hand.lanes.with_b())
    assert "kl_threshold" not in hand.visible and hand.lanes.says() == "B: seed 2"
    hand.b = "klass"
    hand.sees(hand.lanes.with_b())
    assert hand.of("B")["kl_threshold"] == 0.5
    hand.preset_b = "release"
    hand.sees(hand.lanes.with_b())
    assert hand.of("B")["block_length"] == 64 and hand.of("A")["block_length"] == 32
    hand.b = "vanilla-dream"
    hand.sees(replace(hand.lanes, preset_b="nothing").with_b())
    assert hand.preset_b == ""


def test_without_comparison_the_controls_are_lane_as_and_lane_b_is_remembered(parts):
    hand = Hand(parts.params)
    hand.show("B")
    hand.values["seed"] = 3
    hand.both = False  # the box was cleared; the controls still hold lane B's values
    assert list(hand.lanes.lanes()) == ["A"] and hand.of("A")["seed"] == 0
    hand.sees(hand.lanes.with_b())
    assert hand.values["seed"] == 0 and hand.lanes.says() == "" and hand.lanes.show("B").shown == "A"
    hand.both = True
    hand.sees(hand.lanes.with_b())
    assert hand.of("B")["seed"] == 3


def test_reset_is_of_the_lane_that_is_shown(parts):
    hand = Hand(parts.params)
    hand.values["tau_s"] = 0.7
    hand.show("B")
    hand.values["seed"] = 3
    hand.sees(hand.lanes.reset())
    paper = dict(DecodeConfig.make(method="polestar"))
    assert hand.of("B") == paper and hand.of("A")["tau_s"] == 0.7 and hand.lanes.says() == "B: preset paper, τ_s 0.9, length 256"
    hand.show("A")
    hand.sees(hand.lanes.reset())
    assert hand.of("A") == paper == hand.of("B")


def test_numbers_out_of_range_and_half_written_text_stay_with_their_lane(parts):
    hand = Hand(parts.params)
    hand.show("B")
    hand.values |= {"tau_s": 50, "K": 2, "drift_max_delta": "lots", "seed": None}
    assert hand.of("B")["tau_s"] == 1.05 and hand.of("B")["seed"] == 0 and hand.of("A")["tau_s"] == 0.9
    with pytest.raises(ValueError, match="drift_max_delta takes a number from 0, not 'lots'"):
        DecodeConfig.make(method="polestar", **hand.of("B"))
    DecodeConfig.make(method="polestar", **hand.of("A"))
    hand.values["drift_max_delta"] = "inf"
    hand.show("A")
    hand.show("B")
    assert (hand.values["k"], hand.values["K"], hand.values["drift_max_delta"]) == (2, 2, "inf")


def test_a_link_brings_lane_b_back(parts):
    tables = parts.params.tables
    link = {"method_a": "polestar", "method_b": "polestar", "compare": True, "preset": "paper", "gen_length": 64, "tau_s": 0.8}
    _, said, lanes = settings.fill(tables, parts, {**link, "preset_b": "release", "lane_b": {"seed": 3, "tau_s": 0.8, "alpha": 2}})
    assert said == [] and lanes.own == {"seed": 3, "alpha": 2.0} and lanes.says() == "B: preset release, α 2, seed 3"
    b = lanes.lanes()["B"][2]
    assert (b["gen_length"], b["tau_s"], b["tau_upd"]) == (64, 0.8, 1.0)
    updates, said, after = settings.fill(tables, parts, link, lanes.show("B"))  # nothing is said of lane B: it has nothing of its own
    got = dict(zip(settings.names(parts), updates, strict=True))
    assert said == [] and not after.differ() and after.shown == "A" and (got["preset"]["visible"], got["preset_b"]["visible"]) == (True, "hidden")
    assert got["seed"]["value"] == 0 and got["preset_b"]["value"] == ""
    _, said, kept = settings.fill(tables, parts, {"gen_length": 32}, lanes)
    assert said == [] and kept.own == lanes.own and kept.preset_b == "release"
    wrong = {"preset_b": 7, "lane_b": {"seed": "x", "bogus": 1, "alpha": 2}}
    _, said, lanes = settings.fill(tables, parts, {**link, **wrong})
    assert len(said) == 3 and lanes.own == {"alpha": 2.0} and lanes.preset_b == ""
    _, said, lanes = settings.fill(tables, parts, {**link, "lane_b": [1]})
    assert len(said) == 1 and "lane B cannot be '[1]'" in said[0] and not lanes.differ()


def test_a_control_moves_the_lanes_that_follow_it(parts):
    hand = Hand(parts.params)
    assert reach(hand.note, "tau_s") == ("A", "B")
    hand.show("B")
    assert reach(hand.note, "tau_s") == ("B",)
    hand.values["tau_s"] = 0.5
    hand.show("A")
    assert reach(hand.note, "tau_s") == ("A",) and reach(hand.note, "alpha") == ("A", "B")


def test_both_lanes_decode_as_they_were_set_and_a_change_reaches_only_its_lane(parts):
    engine = FakeEngine(0.01)
    hand = Hand(parts.params)
    hand.values |= {**SMALL, "gen_length": 64}
    hand.show("B")
    hand.values |= {"seed": 3, "tau_s": 0.8}

    async def scene(p):
        p.run(Request(model="demo", prompt="one two", lanes=hand.lanes.lanes(), interleave=True))
        await p.until(lambda: len(p.of("header")) == 2 and p.steps("A") and p.steps("B"))
        a, b = (p.of("header", lane=x)[0]["header"]["config"] for x in "AB")
        assert {n for n in a if a[n] != b[n]} == {"seed", "tau_s"} and (b["seed"], b["tau_s"]) == (3, 0.8)
        tab = p.server.tab(p.name)
        assert p.server.set(tab, "tau_s", 0.5, reach(hand.note, "tau_s")) == "" and p.server.set(tab, "alpha", 2) == ""
        assert [s.changes for s in engine.sessions] == [[("alpha", 2)], [("tau_s", 0.5), ("alpha", 2)]]
        assert "tau_s takes" in p.server.set(tab, "tau_s", "x", ("A",))
        p.send(cmd="stop")
        await p.ends()

    play(engine, scene)


def test_a_lane_that_has_not_begun_shows_what_it_will_begin_with(parts):
    hand = Hand(parts.params)
    hand.values |= SMALL

    async def scene(p):
        p.run(Request(model="demo", prompt="one two", lanes=hand.lanes.lanes()))
        await p.until(lambda: len(p.of("header")) == 2 and len(p.steps("A")) > 2)
        p.server.set(p.server.tab(p.name), "temperature", 2)
        await p.until(lambda: len(p.of("header", lane="B")) == 2)
        assert p.steps("B") == [] and [h["header"]["config"]["temperature"] for h in p.of("header", lane="B")] == [0, 2]
        await p.until(lambda: len(p.steps("B")) > 2)
        p.server.set(p.server.tab(p.name), "alpha", 3)  # it has begun: its log says it
        await p.ends()
        assert len(p.of("header", lane="A")) == 1 and len(p.of("header", lane="B")) == 2 and len(p.steps("B")) == SMALL["gen_length"]
        assert p.server.tab(p.name).trace("B").header.config["temperature"] == 0

    play(FakeEngine(0.05), scene)


def test_a_header_says_what_was_changed_from_its_preset():
    config = DecodeConfig.make(method="polestar", preset="release", seed=3, tau_s=0.8, tau_upd=1.0)
    header = ScriptSession(WordCodec(), [2, 3], config, "full", 0).trace.header
    assert changed(replace(header, preset="release")) == {"seed": 3, "tau_s": 0.8}
    assert changed(replace(header, preset="paper"))["tau_upd"] == 1.0
    assert changed(replace(header, method="of another version")) == {}


def test_what_a_control_writes_is_what_it_reads(parts):
    values = parts.params.base("polestar", "release")
    given = [written(values[name]) for name in parts.params.names]
    assert parts.params.values(given) == values

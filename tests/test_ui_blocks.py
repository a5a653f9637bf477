"""The blocks that the page names before a run are those that the run then has."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from polestar.config import DecodeConfig
from polestar.decoders import METHODS
from polestar.driver import decoder_for
from tests.test_ui_lanes import parts  # noqa: F401
from ui.blocks import blocks_of, says


@pytest.mark.parametrize(("length", "block"), [(20, 8), (16, 8), (8, 8), (8, 32), (40, 32), (9, 1), (50, 8), (64, 8), (7, 5)])
def test_the_sizes_are_those_of_the_decode(llada, length, block):
    config = DecodeConfig.make(method="parallel", gen_length=length, block_length=block)
    real = [e - s for s, e in decoder_for(llada, [5, 6, 7], config).header.blocks]
    said = []
    for part in blocks_of(length, block, "fixed").split(" ", 1)[1].replace("block of ", "").split(" + "):
        many = re.fullmatch(r"(\d+) × (\d+)", part)
        said += [int(many[2])] * int(many[1]) if many else [int(part)]
    assert said == real


def test_what_is_said_in_words():
    assert blocks_of(20, 8, "fixed") == "blocks 8 + 8 + 4" and blocks_of(256, 32, "fixed") == "blocks 8 × 32"
    assert blocks_of(250, 32, "fixed") == "blocks 7 × 32 + 26" and blocks_of(20, 32, "fixed") == blocks_of(20, 8, "whole") == "one block of 20"
    assert {METHODS[name].scheduler.shape for name in ("polestar", "vanilla-dream", "elastic-cache", "adablock")} == {"fixed", "whole", "sliding", "text"}


def test_lanes_that_differ_are_both_named(parts):  # noqa: F811
    lanes = replace(parts.lanes, values={**parts.lanes.values, "gen_length": 20, "block_length": 8})
    assert says(lanes) == "blocks 8 + 8 + 4"
    assert says(lanes.with_own({"block_length": 10})) == "A: blocks 8 + 8 + 4; B: blocks 10 + 10"
    assert says(replace(lanes, method_b="elastic-cache")) == "A: blocks 8 + 8 + 4; B: a window of 8, sliding over 20"
    assert says(replace(lanes, values={**lanes.values, "gen_length": "many"}, both=False)) == ""

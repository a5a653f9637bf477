"""`bench overhead` on a tiny model: what it measures and how it tells it."""

import json

import pytest

from polestar.__main__ import main
from polestar.bench import overhead
from polestar.bench.engine import random_llada


@pytest.fixture(scope="module")
def rows():
    model = random_llada(d=32, layers=2, heads=2, mlp=64, vocab=128, length=96)
    return overhead.measure(model, list(range(32)), {"gen_length": 64, "block_length": 16, "tau_upd": 0}, 1)


def test_every_variant_and_kind_of_pass_is_there(rows):
    kinds = {variant: {r["pass"] for r in rows if r["variant"] == variant} for variant in overhead.VARIANTS}
    assert kinds["polestar"] == kinds["polestar, straightforward"] >= {"entry-full", "entry-window", "refresh"}
    assert kinds["fast-dllm-dual"] == {"entry-full", "plain"}


def test_ratios_are_of_the_times_beside_them(rows):
    for r in rows:
        assert r["passes"] >= 1 and r["main_ms"] > 0 and r["pass_ms"] > 0
        assert r["extra_ratio"] == pytest.approx((r["pass_ms"] - r["main_ms"]) / r["main_ms"])
        assert r["extra_ratio_beyond_packets"] == pytest.approx((r["pass_ms"] - r["main_ms"] - r["packet_ms"]) / r["main_ms"])
        if r["pass"] == "refresh":
            assert r["packet_ms"] > 0.01
        else:
            assert r["packet_ms"] < r["main_ms"]


def test_the_table_has_a_line_for_each(rows):
    text = overhead.table("tiny", rows)
    assert len([line for line in text.splitlines() if line.startswith("| ") and "pass |" not in line]) == len(rows)


def test_the_command_writes_json_for_the_bundled_model(capsys):
    assert main(["bench", "overhead", "--models", "demo", "--gen-length", "32", "--repeats", "1", "--json", "-", "--quiet", "--cpu-time"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["results"]) == {"demo"} and found["cpu_time"] is True and found["results"]["demo"]

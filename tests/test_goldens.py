"""Token for token against the authors' release and official Fast-dLLM, on the tiny LLaDA (recorded in tests/data/golden)."""

import pytest

from polestar.config import DecodeConfig
from polestar.driver import decode
from tests.goldens import KINDS, REASONS, ReleaseReplay, record

NAMES = ("llada_p7_g128", "llada_p40_g128", "llada_p100_g256")
ROWS = {
    "fastdllm_dual": ("fast-dllm-dual", "release"),
    "fastdllm_prefix": ("fast-dllm-prefix", "release"),
    "fastdllm_vanilla_thr": ("parallel", "paper"),
    "fastdllm_vanilla_1tok": ("vanilla", "paper"),
}
CASES = [(name, row) for name in NAMES for row in ROWS if row in record(name)["methods"]]


@pytest.mark.parametrize(("name", "row"), CASES)
def test_fast_dllm_rows_equal_the_official_code(llada, name, row):
    data = record(name)
    method, preset = ROWS[row]
    config = DecodeConfig.make(method=method, preset=preset, gen_length=data["meta"]["gen_length"])
    trace = decode(llada, data["meta"]["prompt"], config)
    assert trace.canvas_at(len(trace) - 1).tolist() == data["methods"][row]["tokens"]
    assert len(trace) == data["methods"][row]["nfe"]


@pytest.mark.parametrize("name", NAMES)
def test_polestar_release_equals_the_authors_code(llada, name, record_property):
    replay = ReleaseReplay(llada.model, name)
    for step, entry in replay.passes():
        where = f"pass {step.index}"
        assert step.kind == KINDS[entry["kind"]], where
        ours = {key: [c.position for c in step.commits if c.reason == reason] for key, reason in REASONS.items()}
        assert ours == entry["commit"], where
        assert {str(c.position): c.token for c in step.commits} == entry["changed"], where
        if entry["kind"] == "step":
            assert step.refresh == entry["cluster"], where
            assert step.drift == pytest.approx(entry["drift"], abs=2e-4), where
        else:
            for layer, seen in entry["layers"].items():
                assert step.clusters.labels[int(layer)].tolist() == [label for label in seen["labels"] if label >= 0], where
    assert replay.decoder.step() is None
    assert replay.decoder.run.index == replay.record["nfe"]
    assert replay.decoder.run.canvas.host.tolist() == replay.record["tokens"]
    record_property("ties_replayed", replay.ties)
    assert replay.ties <= 16

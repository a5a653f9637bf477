"""Dream: rows that equal the public code, the published schedule, and Polestar's `paper` preset where the release is not correct."""

import pytest
import torch

from polestar.clock import PhaseClock
from polestar.commit.dream import filtered, scheduled
from polestar.config import DecodeConfig
from polestar.driver import Decoder, decode
from polestar.plan import ForwardPlan
from tests.goldens import record

NAMES = ("dream_p7_g128", "dream_p40_g128", "dream_p100_g256")
ROWS = {
    "fastdllm_dual": ("fast-dllm-dual-dream", {}),
    "fastdllm_prefix": ("fast-dllm-prefix-dream", {}),
    "fastdllm_vanilla_thr": ("vanilla-dream", {"alg": "confidence_threshold"}),
    "fastdllm_vanilla_1tok": ("vanilla-dream", {"alg": "entropy"}),
}
CASES = [(name, row) for name in NAMES for row in ROWS if row in record(name)["methods"]]


@pytest.mark.parametrize(("name", "row"), CASES)
def test_rows_equal_the_official_code_on_dream(dream, name, row):
    data = record(name)
    method, values = ROWS[row]
    trace = decode(dream, data["meta"]["prompt"], DecodeConfig.make(method=method, preset="release", gen_length=data["meta"]["gen_length"], **values))
    assert trace.canvas_at(len(trace) - 1).tolist() == data["methods"][row]["tokens"]
    assert len(trace) == data["methods"][row]["model_calls"]

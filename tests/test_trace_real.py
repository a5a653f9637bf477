"""Real decodes of every method through the log: files, equal runs, messages, tables, figures."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from safetensors import safe_open

from polestar.config import DecodeConfig
from polestar.decoders import METHODS
from polestar.driver import decode
from polestar.trace import compare_traces, digest, export_tables, load, save
from polestar.trace.html import MAX_BYTES, render
from polestar.trace.wire import messages
from tests.trace_samples import same

PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46]


def run(llada, method, level="full", **parameters):
    config = DecodeConfig.make(method=method, gen_length=48, block_length=16, seed=5, **parameters)
    return decode(llada, PROMPT, config, level=level)


@pytest.mark.parametrize("level", ["off", "steps", "full"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_decode_of_every_method_comes_back_from_its_file(llada, method, level, tmp_path):
    trace = run(llada, method, level)
    back = load(save(trace, tmp_path / "t.safetensors"))
    assert same(back.header, trace.header) and back.header.config == trace.header.config and back.status == trace.status == "done"
    for a, b in zip(trace, back, strict=True):
        assert same(a, b)
    assert np.array_equal(back.tokens, trace.tokens) and not (trace.tokens == trace.header.mask_id).any()
    assert back.metrics() == trace.metrics()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_same_seed_gives_the_same_file_apart_from_times(llada, method, tmp_path):
    views = []
    for i in range(2):
        trace = run(llada, method)
        with safe_open(str(save(trace, tmp_path / f"{i}.safetensors")), framework="numpy") as f:
            meta = {k: v for k, v in f.metadata().items() if k not in ("created", "times")}
            views.append((meta, {k: f.get_tensor(k).tobytes() for k in list(f.keys()) if not k.startswith("times/")}))
        views[-1] += (digest(trace),)
    assert views[0] == views[1]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_figures_messages_and_tables_agree_with_the_steps(llada, method, tmp_path):
    trace = run(llada, method)
    m = trace.metrics()
    committed = sum(len(s.commits) for s in trace)
    assert m["nfe"] == len(trace) and m["tokens"] == 48 <= committed and sum(m["reasons"].values()) == committed
    assert m["tpf_all"] == 48 / len(trace) and m["seconds"] == trace[-1].elapsed == pytest.approx(sum(s.seconds for s in trace))
    tables = trace.to_pandas()
    assert len(tables["steps"]) == len(trace) and len(tables["commits"]) == committed
    assert len(export_tables(trace, tmp_path, "parquet")) == 6
    sent = [s for text in messages(trace) for e in json.loads(text)["events"] if e["type"] == "steps" for s in e["steps"]]
    assert [s["i"] for s in sent] == list(range(len(trace))) and sum(len(s["c"]) for s in sent) == committed
    for s, w in zip(trace, sent, strict=True):
        for name, key, dtype in (("conf", "conf", "<f4"), ("argmax", "am", "<i4"), ("drift", "drift", "<f4")):
            a = getattr(s, name)
            assert (a is None) == (w[key] is None)
            assert a is None or np.array_equal(np.frombuffer(base64.b64decode(w[key]), dtype), a, equal_nan=True)


def test_two_methods_side_by_side_in_one_small_file(llada):
    a, b = run(llada, "polestar"), run(llada, "fast-dllm-dual")
    c = compare_traces(a, b)
    assert [row["name"] for row in c["table"][:3]] == ["nfe", "positions", "seconds"] and c["table"][0]["a"] == len(a)
    for entry in c["differing"]:
        assert a.tokens[entry["index"]] != b.tokens[entry["index"]]
        assert a[entry["pass_a"]].commits.count(entry["commit_a"]) == 1 and entry["commit_b"].token == b.tokens[entry["index"]]
    text, done = render([a, b])
    assert done == [] and len(text.encode()) < MAX_BYTES

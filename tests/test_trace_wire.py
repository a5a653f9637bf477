"""What the page is sent: every field as docs/architecture.md says, strict JSON, no gaps, nothing lost."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from polestar.trace import Clusters, Commit, ParamChange, Step, Trace, TraceError
from polestar.trace.wire import VocabSender, b64, encode_header, encode_metrics, encode_step, messages, plain, token_entry
from tests.trace_samples import answer, full_trace, header, traces


def unpack(text, dtype):
    return None if text is None else np.frombuffer(base64.b64decode(text), "<" + dtype)


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_step_in_full():
    n, K, W = 2, 3, 2
    step = Step(
        index=0, block=0, block_start=2, block_end=6, kind="within", refresh=True, refresh_reason="N = 4 > τ_upd = 3", count_last=4, count_since=6,
        rows=4, packet_rows=np.array([0, 9], np.int32), commits=[Commit(2, 5, 0.5, "drift", 0.25, 0.125), Commit(9, 5, 0.95, "suffix")],
        conf=np.array([0.5, np.nan, 1, 0], np.float32), argmax=np.array([5, -1, 4, 0], np.int32), drift=np.array([0.5, 0, 0, 0], np.float32),
        delta=np.full(4, -0.5, np.float32), gate=np.full(4, 1.5, np.float32), candidate_ids=np.arange(20, dtype=np.int32).reshape(4, 5),
        candidate_probs=np.full((4, 5), 0.2, np.float32), staleness=np.full((n, 10), 0.75, np.float32), full_drift=np.full(10, 0.5, np.float32),
        clusters=Clusters(
            window=np.array([0, 9], np.int32), labels=np.array([[0, 2], [1, 1]], np.uint8), scores=np.full((n, K), 0.5, np.float32),
            selected=np.array([[1, 0, 0], [0, 1, 1]], bool), points=np.arange(n * (W + K) * 3, dtype=np.float32).reshape(n, W + K, 3),
        ),
        seconds=0.5, elapsed=2.5, phases={"head": 0.25}, changes=[ParamChange("tau_upd", 3, float("inf"))], edits=[(4, 7)],
        extra={"a": np.array([1, 2]), "b": float("nan")},
    )  # fmt: skip
    w = strict(json.dumps(encode_step(step, header())))
    assert {k: w[k] for k in ("i", "b", "s", "e", "k", "rf", "why", "N", "M", "rows", "t", "dt", "ph", "par", "x", "ed")} == {
        "i": 0, "b": 0, "s": 2, "e": 6, "k": "within", "rf": 1, "why": "N = 4 > τ_upd = 3", "N": 4, "M": 6, "rows": 4, "t": 2.5, "dt": 0.5,
        "ph": {"head": 0.25}, "par": [["tau_upd", 3, "inf"]], "x": {"a": [1, 2], "b": None}, "ed": [[4, 7]],
    }  # fmt: skip
    assert w["c"] == [[2, 5, 0.5, "drift", 0.25, 0.125], [9, 5, 0.95, "suffix", None, None]]
    assert unpack(w["prows"], "u2").tolist() == [0, 9] and unpack(w["win"], "u2").tolist() == [0, 9]
    assert np.array_equal(unpack(w["conf"], "f4"), step.conf, equal_nan=True) and unpack(w["am"], "i4").tolist() == [5, -1, 4, 0]
    assert unpack(w["delta"], "f4").tolist() == [-0.5] * 4 and unpack(w["gate"], "f4").tolist() == [1.5] * 4 and unpack(w["drift"], "f4")[0] == 0.5
    assert unpack(w["lab"], "u1").tolist() == [0, 2, 1, 1] and unpack(w["sel"], "u1").tolist() == [1, 0, 0, 0, 1, 1]
    assert unpack(w["cs"], "f4").tolist() == [0.5] * 6
    assert unpack(w["pts"], "f4").reshape(n, W + K, 2).tolist() == step.clusters.points[..., :2].tolist()
    assert unpack(w["cand"]["tok"], "i4").tolist() == list(range(20)) and len(unpack(w["cand"]["p"], "f4")) == 20
    assert len(unpack(w["stale"], "f4")) == 20 and len(unpack(w["fulldrift"], "f4")) == 10


def test_what_does_not_exist_is_null_never_0():
    w = encode_step(Step(index=0, block=0, block_start=2, block_end=6, kind="entry-full"), header())
    for name in ("N", "M", "prows", "conf", "am", "drift", "delta", "gate", "win", "lab", "cs", "sel", "pts", "cand", "stale", "fulldrift"):
        assert w[name] is None, name
    assert "ed" not in w and w["c"] == [] and w["rf"] == 0
    one = Step(index=0, block=0, block_start=2, block_end=6, kind="within", clusters=Clusters(points=np.ones((2, 3, 1), np.float32)))
    assert unpack(encode_step(one, header())["pts"], "f4").reshape(2, 3, 2)[0].tolist() == [[1, 0]] * 3


def test_numbers_json_cannot_hold():
    assert plain({"a": float("inf"), 1: (float("-inf"), float("nan"), np.float32(0.5), np.int64(3))}) == {"a": "inf", "1": ["-inf", None, 0.5, 3]}
    assert plain("a\ud800b") == "a?b" and plain("é") == "é"
    with pytest.raises(TraceError, match="70000"):
        b64(np.array([70000]), "u2")


def test_the_header_has_every_field_of_the_contract():
    w = strict(json.dumps(encode_header(answer(), live=True)))
    assert {"method", "title", "preset", "config", "model", "revision", "device", "dtype", "prompt_ids", "gen_length", "block_length", "n_layers", "n_heads",
            "mask_id", "eos_ids", "prompt_length", "length", "blocks", "level", "live", "versions"} <= set(w)  # fmt: skip
    assert (w["prompt_length"], w["length"], w["blocks"], w["live"], w["config"]["tau_upd"]) == (2, 10, [[2, 6], [6, 10]], True, "inf")


def test_the_header_names_parameters_as_people_read_them():
    names = strict(json.dumps(encode_header(header())))["names"]
    assert {n: names[n] for n in ("tau_s", "gen_length", "drift_commit", "window_prefix", "k")} == {
        "tau_s": "τ_s", "gen_length": "length", "drift_commit": "drift", "window_prefix": "Ω prefix", "k": "k",
    }  # fmt: skip
    assert encode_header(replace(header(), method="dllm-cache"))["names"]["prompt_interval"] == "K_p", "the method's own name"
    assert encode_header(replace(header(), method="of another version"))["names"] == {}


def test_metrics_have_every_field_of_the_contract():
    m = encode_metrics(answer())
    assert {"nfe", "tpf", "tpf_all", "tps", "tps_all", "seconds", "tokens", "non_eos", "rows", "rows_per_token", "reasons", "text"} <= set(m)
    assert m["tpf"] == 1.25 and encode_metrics(answer().metrics()) == m


class Codec:
    texts = {0: "<eos>", 1: "<mask>", 4: "\ufffd", 5: " x\n"}
    raw = {4: b"\xe2\x82"}

    def token_text(self, i):
        return self.texts[i]

    def token_bytes(self, i):
        return self.raw.get(i, self.texts[i].encode())

    def is_special(self, i):
        return i < 2

    def decode(self, ids):
        return "".join(self.texts.get(i, "?") for i in ids)


def test_token_entries():
    assert token_entry(Codec(), 0) == {"t": "<eos>", "s": 1} and token_entry(Codec(), 5) == {"t": " x\n"}
    assert token_entry(Codec(), 4) == {"t": "\ufffd", "b": "e282"}
    assert token_entry(Codec(), 99) == {"t": "[99]"} and token_entry(None, 7) == {"t": "[7]"}


def test_each_token_is_sent_once_and_before_the_step_that_needs_it():
    sender = VocabSender(Codec(), {7: {"t": "seven"}})
    assert sender.need([5, 7])["map"] == {"5": {"t": " x\n"}, "7": {"t": "seven"}} and sender.need([5, 7]) is None
    known = set()
    for text in messages(full_trace(40), Codec(), per_message=3):
        for e in strict(text)["events"]:
            if e["type"] == "vocab":
                assert not known & set(e["map"])
                known |= set(e["map"])
            for s in e.get("steps", ()):
                needed = {c[1] for c in s["c"]} | {t for _, t in s.get("ed", ())} | set(unpack(s["am"], "i4").tolist()) - {-1}
                needed |= set(unpack(s["cand"]["tok"], "i4").tolist()) if s["cand"] else set()
                assert {str(t) for t in needed} <= known


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(trace=traces())
def test_any_trace_becomes_strict_json_with_every_pass_in_order(trace):
    got = [strict(text) for text in messages({"B": trace}, per_message=2, run="r3")]
    assert [m["seq"] for m in got] == list(range(len(got))) and all(m["v"] == 1 and m["run"] == "r3" for m in got)
    steps = [s for m in got for e in m["events"] if e["type"] == "steps" for s in e["steps"]]
    assert [s["i"] for s in steps] == list(range(len(trace)))
    assert all("\ud800" not in text for text in messages(trace))


def test_two_lanes_and_what_surrounds_the_steps():
    a, b = answer(), Trace(header())
    a.note(2, "look", 5)
    got = [strict(text) for text in messages([a, b])]
    first = [e["type"] for e in got[0]["events"]]
    assert first[:3] == ["reset", "header", "vocab"] and first[-1] == "status" and "notes" in first
    assert got[0]["events"][-1]["state"] == "replay"
    ends = {e["lane"]: e for m in got for e in m["events"] if e["type"] == "end"}
    assert ends["A"]["status"] == "done" and ends["B"]["status"] == "stopped" and ends["A"]["metrics"]["tps_all"] == 4.0
    note = next(e for e in got[0]["events"] if e["type"] == "notes")
    assert note == {"type": "notes", "lane": "A", "notes": [{"pass": 2, "position": 5, "text": "look"}]}


def test_encoding_changes_nothing():
    from polestar.trace import digest

    trace = full_trace(20)
    before = digest(trace)
    messages(trace)
    assert digest(trace) == before

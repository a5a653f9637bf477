"""Figures of section D.1, counted from ids; the trace's canvas, checks, tables and comparison."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from polestar.trace import (
    Clusters,
    Commit,
    Header,
    Step,
    Trace,
    TraceError,
    align,
    compare_traces,
    differing,
    export_tables,
    first_divergence,
    rates,
)
from tests.trace_samples import answer, full_trace, header


def step(i=0, **changes):
    return Step(**({"index": i, "block": 0, "block_start": 2, "block_end": 6, "kind": "within"} | changes))


# ------------------------------------------------------------------------------------------------------------- metrics


def test_tpf_and_tps_of_the_definition():
    m = answer().metrics()
    assert (m["nfe"], m["tokens"], m["non_eos"], m["seconds"]) == (4, 8, 5, 2.0)
    assert (m["tpf"], m["tps"], m["tpf_all"], m["tps_all"]) == (1.25, 2.5, 2.0, 4.0)
    assert m["rows"] == 28 and m["rows_per_token"] == 3.5 and m["reasons"] == {"confidence": 8}


def test_prompt_tokens_never_count():
    assert answer(prompt_ids=[5] * 40, blocks=[[40, 44], [44, 48]]).metrics()["tpf"] == 1.25


def test_an_answer_that_is_eos_at_once_has_tpf_0():
    m = answer(ids=(0,) * 8).metrics()
    assert m["tpf"] == 0 and m["tps"] == 0 and m["tpf_all"] == 2.0 and m["blank"] is True
    assert rates([0, 0], 2, 0.0, [0])["tps"] is None


def test_figures_without_a_divisor_do_not_exist():
    m = Trace(header()).metrics()
    assert m["nfe"] == 0 and m["tpf"] is None and m["tps"] is None and m["rows_per_token"] is None and m["blocks"] == [] and m["blank"] is False


def test_positions_still_masked_are_no_tokens():
    trace = Trace(header())
    trace.append(step(commits=[Commit(2, 5, 1.0, "forced"), Commit(3, 0, 1.0, "forced")], elapsed=1.0, rows=10))
    m = trace.metrics()
    assert (m["tokens"], m["non_eos"], m["tpf"], m["tpf_all"], m["rows_per_token"]) == (2, 1, 1.0, 2.0, 5.0)
    assert not trace.complete and answer().complete


def test_several_eos_ids_and_a_token_committed_twice():
    assert answer(eos_ids=[0, 6]).metrics()["non_eos"] == 4
    trace = answer()
    trace.append(step(4, commits=[Commit(2, 0, 1.0, "revised")]))
    m = trace.metrics()
    assert m["non_eos"] == 4 and m["tokens"] == 8 and m["reasons"] == {"confidence": 8, "revised": 1}


def test_packet_rows_are_in_units_of_the_whole_model():
    trace = Trace(header())
    trace.append(step(rows=4, refresh=True, packet_rows=np.array([0, 5], np.int32), commits=[Commit(2, 5, 1.0, "drift")]))
    m = trace.metrics()
    assert m["packet_rows"] == 2.5 and m["rows_per_token"] == 6.5 and m["refreshes"] == 1
    assert m["blocks"][0]["packet_rows"] == 2.5 and m["blocks"][0]["reasons"] == {"drift": 1}


def test_the_table_of_blocks_adds_up():
    trace = full_trace()
    m = trace.metrics()
    for name in ("nfe", "rows", "refreshes"):
        assert sum(b[name] for b in m["blocks"]) == m[name]
    assert sum(b["committed"] for b in m["blocks"]) == sum(m["reasons"].values())
    assert sum(b["packet_rows"] for b in m["blocks"]) == pytest.approx(m["packet_rows"])
    assert [b["first_pass"] for b in m["blocks"]] == [0, 24, 47] and sum(m["kinds"].values()) == 70


def test_text_ends_at_the_first_eos_and_comes_from_the_tokenizer():
    class Codec:
        def decode(self, ids):
            return "|".join(map(str, ids))

    assert answer().metrics(Codec())["text"] == "5|5|4|6|5"
    assert answer().metrics()["text"] is None
    assert answer(ids=(5, 0, 6, 0, 0, 0, 0, 0)).metrics(Codec())["text"] == "5"


# --------------------------------------------------------------------------------------------------------------- trace


def test_canvas_after_any_pass_equals_a_replay_from_the_start():
    trace = full_trace(101)
    canvas = np.array([*trace.header.prompt_ids, *[1] * 20])
    assert np.array_equal(trace.canvas_at(-1), canvas)
    for i, s in enumerate(trace):
        for position, token in s.edits:
            canvas[position] = token
        for c in s.commits:
            canvas[c.position] = c.token
        assert np.array_equal(trace.canvas_at(i), canvas), i
    assert np.array_equal(trace.tokens, canvas[5:]) and trace.tokens.dtype == np.int32
    trace.canvas_at(50)[:] = 0
    trace.tokens[:] = 0
    assert np.array_equal(trace.canvas_at(100), canvas)
    for i in (-2, 101):
        with pytest.raises(TraceError, match="passes 0 to 100"):
            trace.canvas_at(i)


def test_prefix_shares_steps_and_has_its_own_canvas():
    trace = full_trace(70)
    cut = trace.prefix(40)
    assert len(cut) == 40 and cut[39] is trace[39] and np.array_equal(cut.tokens, trace.canvas_at(39)[5:])
    cut.append(step(40, block_start=5, block_end=13, commits=[Commit(5, 3, 1.0, "forced")]))
    assert cut.tokens[0] == 3 and len(trace) == 70
    assert [s.index for s in trace[2:5]] == [2, 3, 4] and trace[-1].index == 69 and sum(1 for _ in trace) == 70


@pytest.mark.parametrize(("change", "words"), [
    ({"index": 1}, "append every pass in order"), ({"block_start": 1}, "outside the generation"), ({"block_end": 11}, "outside the generation"),
    ({"block_end": 2}, "outside the generation"), ({"kind": "other"}, "entry-full"), ({"rows": -1}, "negative"),
    ({"commits": [Commit(1, 5, 1.0, "forced")]}, "position 1"), ({"commits": [Commit(10, 5, 1.0, "forced")]}, "position 10"),
    ({"commits": [Commit(3, -1, 1.0, "forced")]}, "token -1"), ({"edits": [(0, 5)]}, "positions run from 2 to 9"),
    ({"conf": np.zeros(3, np.float32)}, "conf has shape"), ({"packet_rows": np.zeros(3, np.int32)}, "packet_rows has shape"),
    ({"staleness": np.zeros((2, 9), np.float32)}, "staleness"), ({"full_drift": np.zeros(4, np.float32)}, "full_drift"),
    ({"candidate_ids": np.zeros((3, 5), np.int32)}, "candidate_ids"), ({"clusters": Clusters(labels=np.zeros((3, 4), np.uint8))}, "labels"),
    ({"clusters": Clusters(window=np.zeros(5, np.int32), labels=np.zeros((2, 4), np.uint8))}, "labels"),
    ({"clusters": Clusters(counts=np.zeros((2, 4), np.int32), scores=np.zeros((2, 5), np.float32))}, "scores"),
    ({"clusters": Clusters(points=np.zeros((2, 5), np.float32))}, "points"),
])  # fmt: skip
def test_a_step_that_does_not_fit_is_refused_and_changes_nothing(change, words):
    trace = Trace(header())
    with pytest.raises(TraceError, match=words) as e:
        trace.append(step(**change))
    assert "\n" not in str(e.value) and str(e.value).startswith("pass 0: ")
    assert len(trace) == 0 and (trace.tokens == 1).all()


@pytest.mark.parametrize(("change", "words"), [
    ({"gen_length": 0}, "gen_length is 0"), ({"gen_length": True}, "True"), ({"prompt_ids": "abc"}, "list"), ({"prompt_ids": [1, -4]}, "-4"),
    ({"mask_id": 1.5}, "mask_id"), ({"blocks": [[2, 6], [4, 9]]}, "4"), ({"blocks": [[2, 2]]}, "end after"), ({"level": "x"}, "off, steps, full"),
    ({"method": 3}, "text"), ({"seed": 2**64}, "seed"), ({"config": None}, "config"),
])  # fmt: skip
def test_a_header_says_what_is_wrong_with_it(change, words):
    with pytest.raises(TraceError, match=words):
        header(**change)


def test_a_header_comes_back_from_its_table():
    h = header(prompt_ids=np.array([3, 4]), eos_ids=(0, 2), created="2031-01-01T00:00:00")
    assert Header.from_dict(json.loads(json.dumps(h.to_dict() | {"config": {}}))) == header(prompt_ids=[3, 4], eos_ids=[0, 2], config={})
    assert "created" not in h.to_dict(created=False) and (h.prompt_length, h.length) == (2, 10)
    assert header(prompt_ids=[], blocks=[]).prompt_length == 0


def test_notes_are_pinned_inside_the_trace():
    trace = answer()
    assert trace.note(2, "why", 5) == {"pass": 2, "position": 5, "text": "why"}
    for passno, position in ((4, None), (0, 10), (-2, None)):
        with pytest.raises(TraceError, match="outside"):
            trace.note(passno, "x", position)
    assert len(trace.notes) == 1


# ------------------------------------------------------------------------------------------------------------- compare


def test_first_divergence_by_position_and_in_time():
    a, b = answer(), Trace(header())
    # b: position 4 differs (committed in its pass 3), position 8 differs (committed in its pass 0)
    ids = [5, 5, 9, 6, 5, 0, 7, 0]
    for i, ps in enumerate([(8, 9), (2, 3), (5, 6), (4, 7)]):
        b.append(step(i, commits=[Commit(p, ids[p - 2], 0.5 + i / 10, "drift") for p in ps], elapsed=0.1 * (i + 1), rows=8))
    first = first_divergence(a, b)
    assert {k: first[k] for k in ("index", "position_a", "position_b", "token_a", "token_b", "pass_a", "pass_b")} == {
        "index": 2, "position_a": 4, "position_b": 4, "token_a": 4, "token_b": 9, "pass_a": 1, "pass_b": 3}  # fmt: skip
    assert first["commit_b"].confidence == 0.8
    assert first_divergence(a, b, by="pass")["position_a"] == 8
    assert [d["position_a"] for d in differing(a, b)] == [4, 8]
    c = compare_traces(a, b)
    assert c["equal"] == 0.75 and c["first"]["position_a"] == 4 and c["first_in_time"]["position_a"] == 8 and c["warnings"] == []
    assert first_divergence(a, answer()) is None and compare_traces(a, answer())["first"] is None
    with pytest.raises(TraceError, match="'position' or 'pass'"):
        first_divergence(a, b, by="time")


def test_divergence_where_one_side_is_still_masked_or_shorter_or_after_another_prompt():
    a, b = answer(), Trace(header(prompt_ids=[7, 8, 9], gen_length=4, blocks=[[3, 7]]))
    b.append(step(block_start=3, block_end=7, commits=[Commit(3, 5, 1.0, "forced")]))
    first = first_divergence(a, b)
    assert (first["position_a"], first["position_b"], first["token_b"], first["pass_b"], first["commit_b"]) == (3, 4, 1, None, None)
    assert len(differing(a, b)) == 3
    text = " ".join(compare_traces(a, b)["warnings"])
    assert "prompts differ" in text and "lengths differ (8 and 4)" in text and "B stopped" in text


def test_a_comparison_does_not_hide_a_slowdown():
    fast, slow = answer(passes=4, seconds=2.0), answer(passes=2, seconds=3.0)
    c = compare_traces(slow, fast)
    rows = {r["name"]: r for r in c["table"]}
    assert rows["nfe"]["ratio"] == 0.5 and rows["nfe"]["better"] == "A"
    assert rows["positions"]["ratio"] == 0.5
    assert rows["seconds"]["ratio"] == 1.5 and rows["seconds"]["better"] == "B"
    assert rows["tps"]["better"] == "B" and rows["tpf"]["better"] == "A"
    assert [s.split(":")[0] for s in c["sentences"][:3]] == ["passes", "positions recomputed", "wall time"]
    assert c["sentences"][3] == "A saves passes and positions recomputed and is still slower: 1.50 x the wall time of B."
    other = compare_traces(fast, slow)
    assert "still faster: 0.67 x" in other["sentences"][3]
    assert len(compare_traces(fast, fast)["sentences"]) == 3 and all(r["better"] in ("equal", None) for r in compare_traces(fast, fast)["table"])


def test_a_comparison_without_times_or_tokens_has_no_ratios():
    c = compare_traces(Trace(header()), Trace(header()))
    assert all(r["ratio"] is None for r in c["table"]) and "no ratio" in c["sentences"][0]


def test_pairs_that_cannot_be_compared_are_named():
    a, b = answer(), answer(model="other", device="cuda", level="full", seed=9)
    text = " ".join(compare_traces(a, b)["warnings"])
    for words in ("models differ (scripted and other)", "devices differ", "seeds differ (3 and 9)", "log levels differ", "B was recorded at the level full"):
        assert words in text


def test_alignment_by_pass_time_and_tokens():
    a, b = answer(passes=4, seconds=2.0), answer(passes=2, seconds=3.0)
    by_pass = align(a, b)
    assert by_pass["x"].tolist() == [0, 1, 2, 3] and by_pass["a"].tolist() == [0, 1, 2, 3] and by_pass["b"].tolist() == [0, 1, 1, 1]
    by_time = align(a, b, "elapsed")
    assert by_time["x"].tolist() == [0.5, 1.0, 1.5, 2.0, 3.0] and by_time["a"].tolist() == [0, 1, 2, 3, 3] and by_time["b"].tolist() == [-1, -1, 0, 0, 1]
    by_tokens = align(a, b, "tokens")
    assert by_tokens["x"].tolist() == [2, 4, 6, 8] and by_tokens["a"].tolist() == [0, 1, 2, 3] and by_tokens["b"].tolist() == [-1, 0, 0, 1]
    assert align(Trace(header()), Trace(header()))["x"].tolist() == []
    with pytest.raises(TraceError, match="pass, elapsed, tokens"):
        align(a, b, "block")


# -------------------------------------------------------------------------------------------------------------- tables


def test_tables_hold_what_the_log_holds():
    trace = full_trace()
    t = trace.to_pandas()
    assert list(t) == ["steps", "commits", "drift", "clusters", "members"] and len(t["steps"]) == 70
    assert pd.isna(t["steps"].count_last[0]) and t["steps"].count_last[1] == 1 and t["steps"].committed.sum() == len(t["commits"])
    assert json.loads(t["steps"].changes[9]) == [["tau_upd", 3, "inf"]] and pd.isna(t["steps"].changes[0])
    assert t["steps"].phase_head[0] == 0.5 and pd.isna(t["steps"].phase_head[1])
    d = t["drift"]
    assert len(d) == sum(s.block_end - s.block_start for s in trace)
    row = d[(d["pass"] == 1) & (d.position == 6)].iloc[0]
    assert row.conf == trace[1].conf[1] and row.drift == trace[1].drift[1] and np.isnan(d[d["pass"] == 0].drift).all()
    assert pd.isna(d.argmax).sum() == sum((s.argmax < 0).sum() for s in trace)
    c = t["clusters"]
    assert set(c["pass"]) == {s.index for s in trace if s.clusters}
    assert c[(c["pass"] == 3) & (c.layer == 1)].score.tolist() == trace[3].clusters.scores[1].tolist()
    assert c[c["pass"] == 3]["count"].isna().all() and c[c["pass"] == 0].selected.isna().all()
    m = t["members"]
    assert m[(m["pass"] == 24) & (m.layer == 1)].cluster.tolist() == trace[24].clusters.labels[1].tolist()
    assert m[(m["pass"] == 24) & (m.layer == 1)].position.tolist() == trace[24].clusters.window.tolist()
    assert t["commits"].text[0] == "\ufffd" and pd.isna(t["commits"].delta[0])


def test_tables_of_a_trace_without_steps_have_their_columns():
    empty, some = Trace(header()).to_pandas(), full_trace(40).to_pandas()
    for name in some:
        assert len(empty[name]) == 0
        assert set(empty[name]) == {c for c in some[name] if not c.startswith("phase_")}


@pytest.mark.parametrize("fmt", ["csv", "parquet"])
def test_exported_tables_read_back_equal(fmt, tmp_path):
    trace = full_trace(40)
    paths = export_tables(trace, tmp_path / "out", fmt)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(p.name for p in paths)
    read = {"csv": lambda p: pd.read_csv(p, keep_default_na=True), "parquet": pd.read_parquet}[fmt]
    for name, table in trace.to_pandas().items():
        back = read(tmp_path / "out" / f"{name}.{fmt}")
        if fmt == "parquet":
            pd.testing.assert_frame_equal(back, table)
        else:
            pd.testing.assert_frame_equal(back.astype(table.dtypes.to_dict()), table, rtol=1e-6)
    about = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))
    assert about["header"]["method"] == "polestar" and about["header"]["config"]["tau_upd"] == "inf" and about["metrics"]["nfe"] == 40


def test_export_refuses_another_format_and_a_place_it_cannot_write(tmp_path):
    with pytest.raises(TraceError, match="csv, parquet"):
        export_tables(answer(), tmp_path / "x", "xlsx")
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot write the tables"):
        export_tables(answer(), tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_importing_the_log_is_light():
    code = "import sys, polestar.trace; heavy = {'torch', 'pandas', 'safetensors', 'gradio', 'pyarrow', 'plotly'} & set(sys.modules); assert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code], check=True)

"""Files of traces: every field comes back bit by bit, equal runs give equal files, and nothing unsound is opened."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from polestar.trace import (
    Commit,
    Header,
    Recorder,
    Step,
    Trace,
    TraceError,
    digest,
    load,
    save,
)
from polestar.trace.file import to_bytes
from polestar.trace.jsonx import decode, encode
from tests.trace_samples import answer, full_trace, header, same, same_trace, traces


def reload(trace, tmp_path, name="t.safetensors"):
    return load(save(trace, tmp_path / name))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], derandomize=True)
@given(trace=traces())
def test_any_trace_comes_back_bit_by_bit(trace, tmp_path):
    back = reload(trace, tmp_path)
    assert same_trace(trace, back)
    assert digest(back) == digest(trace)


def test_every_field_of_a_real_sized_trace_comes_back(tmp_path):
    trace = full_trace(200)
    trace.seconds = 12.5
    trace.note(3, "look here", 7)
    back = reload(trace, tmp_path)
    assert same_trace(trace, back)
    assert np.array_equal(back.canvas_at(150), trace.canvas_at(150))
    assert back[4].extra["pool"].dtype == np.int16
    assert back[9].changes[0].new == float("inf")


def test_none_nan_and_empty_stay_three_things(tmp_path):
    trace = Trace(header())
    arrays = [None, np.full(4, np.nan, np.float32), np.zeros(4, np.float32)]
    for i, a in enumerate(arrays):
        commits = [Commit(2, 5, float("nan"), "drift", None, float("nan")), Commit(3, 5, 1.0, "drift", 0.0, None)]
        trace.append(Step(index=i, block=0, block_start=2, block_end=6, kind="within", conf=a, commits=commits, candidate_ids=np.zeros((4, 0), np.int32)))
    back = reload(trace, tmp_path)
    assert back[0].conf is None and np.isnan(back[1].conf).all() and (back[2].conf == 0).all()
    assert back[0].commits[0].delta is None and np.isnan(back[0].commits[0].gate)
    assert back[0].commits[1].delta == 0.0 and back[0].commits[1].gate is None
    assert back[0].candidate_ids.shape == (4, 0)


def test_equal_runs_give_equal_files_apart_from_times(tmp_path):
    first, second = full_trace(40), full_trace(40)
    assert to_bytes(first) == to_bytes(second)
    for step in second:
        step.seconds, step.elapsed = step.seconds * 2, step.elapsed * 2
        step.phases = {k: v * 3 for k, v in step.phases.items()}
    later = Trace(Header(**(second.header.to_dict() | {"created": "2031-05-06T07:08:09"})), second.steps)
    later.vocab, later.status, later.seconds = second.vocab, second.status, 99.0
    assert digest(first) == digest(later)
    paths = [save(first, tmp_path / "a.safetensors"), save(later, tmp_path / "b.safetensors")]
    views = []
    for path in paths:
        with safe_open(str(path), framework="numpy") as f:
            meta = {k: v for k, v in f.metadata().items() if k not in ("created", "times")}
            views.append((meta, {k: f.get_tensor(k).tobytes() for k in list(f.keys()) if not k.startswith("times/")}))
    assert views[0] == views[1]
    assert load(paths[1]).header.created == "2031-05-06T07:08:09" and load(paths[0]).header.created is None
    assert load(paths[1]).seconds == 99.0


def test_files_are_equal_across_processes(tmp_path):
    code = "import sys; from tests.trace_samples import full_trace; from polestar.trace import save; save(full_trace(12), sys.argv[1])"
    root = os.path.dirname(os.path.dirname(__file__))
    blobs = []
    for i in range(2):
        env = os.environ | {"PYTHONPATH": root, "PYTHONHASHSEED": str(i)}
        path = tmp_path / f"{i}.safetensors"
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, env=env)
        blobs.append(path.read_bytes())
    assert blobs[0] == blobs[1]


@pytest.mark.parametrize("change", [
    lambda t: t.steps[3].commits.__setitem__(0, Commit(13, 8, 0.5, "drift")), lambda t: t.steps[5].conf.__setitem__(2, 9.0),
    lambda t: setattr(t.steps[2], "refresh_reason", "other"), lambda t: t.note(0, "n"), lambda t: t.steps[4].extra["pool"].__setitem__((0, 0), 99),
])  # fmt: skip
def test_digest_sees_every_change(change):
    trace = full_trace(12)
    before = digest(trace)
    change(trace)
    assert digest(trace) != before


def test_token_texts_are_kept_and_text_is_read_without_a_model(tmp_path):
    class Codec:
        def token_text(self, i):
            return {4: "\ufffd", 5: " é"}.get(i, f"w{i}")

        def token_bytes(self, i):
            return {4: b"\xc3", 6: b"\xa9"}.get(i, self.token_text(i).encode())

        def is_special(self, i):
            return i in (0, 1)

    back = load(save(answer(ids=(5, 4, 6, 5, 0, 0, 0, 0)), tmp_path / "t.safetensors", codec=Codec()))
    assert back.vocab[0] == {"t": "w0", "s": 1} and back.vocab[4] == {"t": "\ufffd", "b": "c3"} and set(back.vocab) == {0, 1, 4, 5, 6, 7, 8}
    assert back.metrics()["text"] == " éé é"


def test_a_failed_save_changes_nothing(tmp_path):
    path = save(answer(), tmp_path / "t.safetensors")
    before = path.read_bytes()
    bad = answer()
    bad.steps[1].extra["f"] = object()
    with pytest.raises(TraceError, match="type object"):
        save(bad, path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["t.safetensors"]
    with pytest.raises(TraceError, match="choose a folder"):
        save(answer(), tmp_path / "none" / "t.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(TraceError, match="cannot write"):
        save(answer(), tmp_path / "folder.safetensors")
    assert sorted(os.listdir(tmp_path)) == ["folder.safetensors", "t.safetensors"]


def test_values_that_do_not_fit_are_refused_when_saved(tmp_path):
    for name, value in (("argmax", np.array([2**31, 0, 0, 0])), ("conf", np.zeros(4, np.int32)), ("argmax", np.full(4, -2)), ("conf", np.zeros(4, bool))):
        trace = answer()
        setattr(trace.steps[0], name, value)
        with pytest.raises(TraceError, match=name):
            save(trace, tmp_path / "t.safetensors")
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------------------------------------- what must not be opened


class Bomb:
    def __reduce__(self):
        return (exec, ("import builtins; builtins.bomb_went_off = True",))


def test_files_that_would_run_code_are_refused_and_do_not_run(tmp_path):
    import builtins

    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / f"p{protocol}.safetensors").write_bytes(pickle.dumps(Bomb(), protocol))
    with zipfile.ZipFile(tmp_path / "archive.pt", "w") as z:
        z.writestr("archive/data.pkl", pickle.dumps(Bomb()))
    np.save(tmp_path / "array.npy", np.array([Bomb()], object), allow_pickle=True)
    for path in tmp_path.iterdir():
        with pytest.raises(TraceError, match=f"cannot open {path.name}: ") as e:
            load(path)
        assert "\n" not in str(e.value)
    assert not hasattr(builtins, "bomb_went_off")


def test_foreign_files_give_one_sentence(tmp_path):
    cases = {
        "empty.safetensors": (b"", "it is empty"),
        "page.html": (b"<!doctype html><html></html>", "no safetensors file"),
        "short": (b"abc", "no safetensors file"),
        "log.json": (b'{"steps": []}' + b" " * 99, "no safetensors file"),
        "huge-header.safetensors": (struct.pack("<Q", 2**62) + b"{}", "claims 4611686018427387904 bytes"),
        "cut-header.safetensors": (struct.pack("<Q", 500) + b'{"a"', "truncated"),
        "no-json.safetensors": (struct.pack("<Q", 8) + b"{nonsens", "damaged"),
        "nested.safetensors": (struct.pack("<Q", 200_000) + b'{"a":' + b"[" * 199_995, "damaged"),
    }
    for name, (blob, words) in cases.items():
        (tmp_path / name).write_bytes(blob)
        with pytest.raises(TraceError, match=words):
            load(tmp_path / name)
    save_file({"model.weight": np.zeros(3, np.float32)}, tmp_path / "weights.safetensors")
    with pytest.raises(TraceError, match="without a trace"):
        load(tmp_path / "weights.safetensors")
    with pytest.raises(TraceError, match="no such file"):
        load(tmp_path / "missing.safetensors")
    with pytest.raises(TraceError, match="folder"):
        load(tmp_path)


def test_a_file_beyond_the_size_limit_is_refused_unread(tmp_path, monkeypatch):
    path = save(answer(), tmp_path / "t.safetensors")
    monkeypatch.setattr("polestar.trace.file.MAX_BYTES", 1 << 10)
    with pytest.raises(TraceError, match="GiB"):
        load(path)


def rewrite(path, arrays=None, tables=None, drop=(), keep_checksum=False, **metadata):
    """Write a trace file again with changed arrays, JSON or metadata, without its checksum unless asked."""
    with safe_open(str(path), framework="numpy") as f:
        meta, data = f.metadata(), {k: f.get_tensor(k) for k in list(f.keys())}
    if not keep_checksum:
        del meta["checksum"]
    if tables:
        table = json.loads(meta["trace"])
        tables(table)
        meta["trace"] = json.dumps(table)
    for name, change in (arrays or {}).items():
        data[name] = change(data[name])
    save_file({k: v for k, v in data.items() if k not in drop}, path, metadata={k: v for k, v in (meta | metadata).items() if k not in drop})


def put(at, value):
    def change(a):
        a = a.copy()
        a[at] = value
        return a

    return change


ARRAY_FAULTS = {
    "commits/position": [put(0, 0), put(0, 25), put(0, -1)], "commits/token": [put(0, -1)], 
    "commits/offsets": [put(0, 1), put(1, 99), put(-1, 0), lambda a: a[:-1]],
    "commits/reason": [put(0, 77), put(0, -1)], "commits/confidence": [lambda a: a[:-1], lambda a: a.astype("f4")], "commits/has": [put(0, 4)],
    "edits/position": [put(0, 4), put(0, 25)], "edits/token": [put(0, -5)], "steps/kind": [put(0, 3)], "steps/start": [put(0, 0), put(0, 13)],
    "steps/end": [put(0, 26), put(0, 12)], "steps/block": [put(0, -1)], "steps/rows": [put(0, -1)], "steps/reason": [put(0, 99)],
    "conf": [lambda a: a[:-1], lambda a: a.reshape(1, -1), lambda a: a.astype("f8")], "conf.offsets": [put(1, -8), put(1, 2**62)],
    "conf.shape": [put((0, 0), 2**31 - 1), put((0, 0), -2), put((0, 0), -1)], "argmax": [put(0, -2)], "clusters.window": [put(0, -1), put(0, 25)],
    "clusters.labels.shape": [put((0, 0), 2**30), put((0, 1), 2**30)], "clusters.present": [lambda a: np.zeros_like(a)], "packet_rows": [put(0, -1)],
    "extra/int16": [lambda a: a[:3], lambda a: a.astype("i4")], "times/seconds": [put(0, -1.0), put(0, np.nan), lambda a: a[1:]],
    "times/elapsed": [put(0, np.inf)], "times/phases": [lambda a: a[:, :1]],
}  # fmt: skip


@pytest.mark.parametrize("name", list(ARRAY_FAULTS))
def test_unsound_arrays_are_refused(name, tmp_path):
    path = tmp_path / "t.safetensors"
    for fault in ARRAY_FAULTS[name]:
        save(full_trace(12), path)
        rewrite(path, {name: fault})
        with pytest.raises(TraceError, match=r"cannot open t\.safetensors: ") as e:
            load(path)
        assert "\n" not in str(e.value) and len(str(e.value)) < 400
        assert "damaged (" not in str(e.value), "the sentence must name the fault"


JSON_FAULTS = {
    "passes": [lambda t: t.update(passes=13), lambda t: t.update(passes=-1), lambda t: t.update(passes=10**30), lambda t: t.update(passes=True)],
    "strings": [lambda t: t.update(strings=[]), lambda t: t.update(strings=[1, 2]), lambda t: t.pop("strings")],
    "steps": [lambda t: t["steps"][0].__setitem__(0, 12), lambda t: t["steps"][0].__setitem__(1, [["a", 1]]), lambda t: t["steps"][0].__setitem__(2, 5),
              lambda t: t["steps"][0][2].update(pool={"$array": 5}), lambda t: t["steps"][0][2].update(pool={"$what": 5})],
    "arrays": [lambda t: t.update(arrays=[]), lambda t: t["arrays"][0].__setitem__(0, "object"), lambda t: t["arrays"][0].__setitem__(1, [2, -3]),
               lambda t: t["arrays"][0].__setitem__(2, 10**20), lambda t: t["arrays"][0].__setitem__(1, [2**20, 2**20])],
    "status": [lambda t: t.update(status="fine"), lambda t: t.update(error=3)],
    "notes": [lambda t: t.update(notes=[{"pass": 99, "text": ""}]), lambda t: t.update(notes=[{"pass": 0}]),
              lambda t: t.update(notes=[{"pass": 0, "text": "", "position": 25}])],
    "header": [lambda t: t.update(header=[]), lambda t: t["header"].update(prompt_ids=[-1]), lambda t: t["header"].update(prompt_ids="ab"),
               lambda t: t["header"].update(gen_length=0), lambda t: t["header"].update(gen_length=10**9), lambda t: t["header"].update(gen_length=2.5),
               lambda t: t["header"].update(mask_id=None), lambda t: t["header"].update(unheard=1), lambda t: t["header"].pop("method"),
               lambda t: t["header"].update(method=5), lambda t: t["header"].update(blocks=[[0, 4]]), lambda t: t["header"].update(blocks=[[5, 26]]),
               lambda t: t["header"].update(blocks=[[13, 21], [5, 13]]), lambda t: t["header"].update(level="loud"), lambda t: t["header"].update(n_layers=0),
               lambda t: t["header"].update(config=[]), lambda t: t["header"].update(seed="x"), lambda t: t["header"].update(shift=2)],
}  # fmt: skip


@pytest.mark.parametrize("name", list(JSON_FAULTS))
def test_unsound_tables_are_refused(name, tmp_path):
    path = tmp_path / "t.safetensors"
    for fault in JSON_FAULTS[name]:
        save(full_trace(12), path)
        rewrite(path, tables=fault)
        with pytest.raises(TraceError, match=r"cannot open t\.safetensors: ") as e:
            load(path)
        assert "\n" not in str(e.value) and len(str(e.value)) < 400


def test_unsound_metadata_is_refused(tmp_path):
    path = tmp_path / "t.safetensors"
    faults = [
        {"trace": "[]"}, {"trace": "{"}, {"trace": '{"a":' + "9" * 5000 + "}"}, {"times": "{}"}, {"times": '{"phases": ["a", "a"], "seconds": null}'},
        {"times": '{"phases": ["head", "attention"], "seconds": -1}'}, {"vocab": "[]"}, {"vocab": '{"x": {"t": ""}}'}, {"vocab": '{"1": {"t": 5}}'},
        {"vocab": '{"1": {"t": "", "b": "zz"}}'}, {"vocab": '{"1": {"t": "", "evil": 1}}'}, {"format_version": "2"}, {"format_version": "x"},
        {"format": "other"}, {"drop": ["trace"]}, {"drop": ["vocab"]}, {"drop": ["times/has"]}, {"drop": ["clusters.present"]},
    ]  # fmt: skip
    for fault in faults:
        save(full_trace(12), path)
        rewrite(path, **fault)
        with pytest.raises(TraceError, match="cannot open"):
            load(path)


def test_a_changed_file_fails_its_checksum_and_one_without_checksum_opens(tmp_path):
    path = save(full_trace(12), tmp_path / "t.safetensors")
    rewrite(path, {"conf": put(3, 0.5)}, keep_checksum=True)
    with pytest.raises(TraceError, match="checksum"):
        load(path)
    save(full_trace(12), path)
    rewrite(path)
    assert same_trace(load(path), full_trace(12))


def test_truncated_files_are_refused_at_any_length(tmp_path):
    blob = to_bytes(full_trace(6))
    path = tmp_path / "t.safetensors"
    cuts = {*range(40), *range(40, len(blob), 997), len(blob) - 1}
    for cut in sorted(cuts):
        path.write_bytes(blob[:cut])
        with pytest.raises(TraceError, match="cannot open"):
            load(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(data=st.data())
def test_flipped_bits_are_refused_or_touch_times_alone(data, tmp_path):
    blob = bytearray(to_bytes(FLIP))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(blob) - 1))
        blob[at] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "t.safetensors"
    path.write_bytes(bytes(blob))
    try:
        back = load(path)
    except TraceError as e:
        assert "\n" not in str(e)
    else:
        assert digest(back) == digest(FLIP)


FLIP = full_trace(6)


def test_recorder_keeps_the_file_up_to_date(tmp_path):
    source, path = full_trace(20), tmp_path / "t.safetensors"
    with Recorder(Trace(source.header), path, seconds=0) as r:
        for i, step in enumerate(source):
            r.append(step)
            if i == 0:
                assert len(load(path)) == 1
    assert same(load(path).steps, source.steps) and os.listdir(tmp_path) == ["t.safetensors"]


def test_values_beside_the_steps():
    for value in (float("nan"), {"$float": 1}, {1: 2, None: [3]}, {"$table": []}, [float("-inf")], "\ud800"):
        assert same(decode(json.loads(json.dumps(encode(value, []))), None), value)
    with pytest.raises(TraceError, match="type set"):
        encode({1, 2}, [])
    with pytest.raises(TraceError, match="object"):
        encode(np.array([object()]), [])

"""Recorded passes on the CPU, on tapes in place of CUDA graphs: the same decode to the bit, and nothing within a layer that a graph could not hold."""

from unittest import mock

import pytest
import torch

from polestar import graphs
from polestar.bench.engine import random_llada
from polestar.cache import refresh
from polestar.config import PARAMS, DecodeConfig
from polestar.driver import Decoder
from polestar.fork import fork
from polestar.state import DecodeError
from polestar.trace.trace import Trace
from tests.tape import NotRecordable, TapeRecorder

PROMPTS = {"llada": list(range(5, 75)), "dream": list(range(5, 60)), "demo": list(range(20, 90))}
# One token a pass: many passes, of which about half refresh, and pre-committed suffix tokens whose embedding a refresh feeds.
SETTLED = {"gen_length": 72, "tau_s": 2.0}
POLESTAR = SETTLED | {"tau_suf": 0.9, "offload": "off"}


def decoder_for(loaded, method="polestar", *, recorder=None, level="steps", fixed=True, **values) -> Decoder:
    name = loaded.config.family if loaded.name != "demo" else "demo"
    decoder = Decoder(loaded.model, PROMPTS[name], DecodeConfig.make(method=method, **values), level=level)
    if method == "polestar":
        decoder.cache.fixed = fixed
    return decoder if recorder is None else graphs.use(decoder, recorder)


def told(step) -> tuple:
    """A pass to the bit, without its times."""
    c = step.clusters
    clusters = None if c is None else tuple(None if a is None else a.tobytes() for a in (c.window, c.labels, c.counts, c.scores, c.selected, c.points))
    arrays = tuple(None if a is None else a.tobytes() for a in (step.conf, step.argmax, step.drift, step.delta, step.gate, step.packet_rows))
    return step.kind, step.refresh, step.rows, step.commits, arrays, clusters


@pytest.fixture(params=["llada", "dream", "demo"])
def loaded(request):
    """Each family, and the bundled model."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("level", ["steps", "full"])
@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("fast-dllm-dual", SETTLED), ("fast-dllm-prefix", SETTLED), ("vanilla", {"gen_length": 64}), ("dawn", {"gen_length": 64}),
        ("klass", {"gen_length": 64}), ("polestar", POLESTAR | {"tau_upd": 1.0}),
        ("polestar", POLESTAR | {"preset": "release", "tau_upd": 0.0, "residual_format": "int8", "refresh_embeddings": True}),
        ("polestar", POLESTAR | {"preset": "release"}),
    ],
    ids=["dual", "prefix", "vanilla", "dawn", "klass", "paper", "release int8", "release"],
)  # fmt: skip
def test_a_recorded_decode_is_the_same_to_the_bit(loaded, method, values, level):
    recorder = TapeRecorder()
    recorded, eager = decoder_for(loaded, method, recorder=recorder, level=level, **values), decoder_for(loaded, method, level=level, **values)
    refreshes, fed = 0, set()
    for ours in iter(recorded.step, None):
        theirs = eager.step()
        assert told(ours) == told(theirs), f"pass {ours.index}"
        if ours.refresh and "layers" in ours.phases:
            refreshes += 1
            fed.add(recorded.plan.hook.first is not None)
        assert ("layers" in ours.phases) != ("attention" in ours.phases or "mlp" in ours.phases) and "layers" not in theirs.phases
    assert eager.step() is None
    assert torch.equal(recorded.run.canvas.host, eager.run.canvas.host)
    for name in ("k", "v", "raw_k"):
        a, b = getattr(recorded.run.kv, name), getattr(eager.run.kv, name)
        assert (a is None) == (b is None) and (a is None or torch.equal(a, b)), name
    found = recorded.graphs
    assert found.recorded == len(recorder.tapes)
    if method == "dawn":  # attention of several layers
        assert found.recorded == found.replayed == 0
    else:
        assert found.replayed > found.recorded > 0
    if method == "polestar":
        assert refreshes > 5
        if "preset" not in values:
            assert fed == {False, True}, "changed embeddings that a replay is given, or not"
        w, v = recorded.cache.window, eager.cache.window
        assert torch.equal(w.centroids, v.centroids) and torch.equal(w.all_states(), v.all_states())
        assert all(torch.equal(a, b) for a, b in zip(w.proxy, v.proxy, strict=True))


def test_attention_that_a_policy_keeps_outlives_the_next_replay(demo):
    """Drift taken from two stored attentions, not by the pass that makes the second."""
    recorded, eager = decoder_for(demo, recorder=TapeRecorder(), **POLESTAR), decoder_for(demo, **POLESTAR)
    recorded.commit.fused = eager.commit.fused = False
    drifts = 0.0
    for ours in iter(recorded.step, None):
        assert told(ours) == told(eager.step())
        drifts += 0.0 if ours.drift is None or "layers" not in ours.phases else float(ours.drift.sum())
    assert drifts > 0


def test_each_kind_of_pass_runs_once_is_recorded_once_and_is_replayed_ever_after(demo):
    recorder = TapeRecorder()
    decoder = decoder_for(demo, recorder=recorder, **POLESTAR)
    met: dict = {}
    for step in iter(decoder.step, None):
        if step.kind != "within":
            met.clear()
            assert "layers" not in step.phases
            continue
        hook = decoder.plan.hook
        kind = (decoder.plan.rows, decoder.plan.attention_before is None, hook and (hook.sizes, None if hook.first is None else len(hook.first)))
        met[str(kind)] = seen = met.get(str(kind), 0) + 1
        assert ("layers" in step.phases) == (seen > 1), f"pass {step.index}"
    assert decoder.graphs.recorded < decoder.graphs.replayed
    assert max(met.values()) > 4


def test_recording_by_itself_changes_nothing(demo):
    decoder = decoder_for(demo, recorder=TapeRecorder(), **POLESTAR)
    seen = []

    class Before(TapeRecorder):
        def record(self, work):
            run, w = decoder.run, decoder.cache.window
            state = [run.kv.k, run.kv.v, run.kv.raw_k, w.centroids, *w.proxy, *w.states.place.parts]
            copies = [t.clone() for t in state]
            tape = super().record(work)
            assert all(torch.equal(a, b) for a, b in zip(state, copies, strict=True))
            tape.replay()
            seen.append(any(not torch.equal(a, b) for a, b in zip(state, copies, strict=True)))
            for a, b in zip(state, copies, strict=True):
                a.copy_(b)
            return tape

    decoder.graphs.recorder = Before()
    for _ in iter(decoder.step, None):
        pass
    assert seen and all(seen), "what a replay writes was written by it"


def until_recorded(decoder, passes: int = 3) -> None:
    """Go on until recordings of this block were replayed."""
    before = decoder.graphs.replayed
    while decoder.graphs.replayed < before + passes:
        assert decoder.step() is not None, "the decode ended before"


@pytest.mark.parametrize(("name", "value"), [("k", 1), ("tau_s", 1.5), ("alpha", 3.0), ("last_layer_k", 2), ("tau_upd", 5)])
def test_a_change_drops_recordings(demo, name, value):
    recorded, eager = decoder_for(demo, recorder=TapeRecorder(), **POLESTAR), decoder_for(demo, **POLESTAR)
    until_recorded(recorded)
    while eager.run.index < recorded.run.index:
        eager.step()
    assert any(recorded.graphs.kept.values())
    for decoder in (recorded, eager):
        assert decoder.set(name, value) == "pass"
    step = recorded.step()
    assert step.kind == "within" and "layers" not in step.phases, "the pass after a change is the first of its kind again"
    assert not any(recorded.graphs.kept.values())
    assert told(step) == told(eager.step())
    for ours in iter(recorded.step, None):
        assert told(ours) == told(eager.step())


@pytest.mark.parametrize("values", [{"K": 5}, {"window_prefix": 1}, {"residual_format": "fp16"}, {"block_length": 16}])
def test_changes_at_the_next_block_are_followed(demo, values):
    recorded, eager = decoder_for(demo, recorder=TapeRecorder(), **POLESTAR), decoder_for(demo, **POLESTAR)
    until_recorded(recorded)
    while eager.run.index < recorded.run.index:
        eager.step()
    for decoder in (recorded, eager):
        for name, value in values.items():
            assert decoder.set(name, value) == "block"
    count = recorded.graphs.recorded
    for ours in iter(recorded.step, None):
        assert told(ours) == told(eager.step())
    assert recorded.graphs.recorded > count


@pytest.mark.parametrize("method", ["fast-dllm-dual", "polestar"])
def test_an_edit_drops_recordings(demo, method):
    values = POLESTAR if method == "polestar" else SETTLED
    recorded, eager = decoder_for(demo, method, recorder=TapeRecorder(), **values), decoder_for(demo, method, **values)
    until_recorded(recorded)
    while eager.run.index < recorded.run.index:
        eager.step()
    at = recorded.run.block_start
    for decoder in (recorded, eager):
        decoder.edit({at: None if int(decoder.run.canvas.host[at]) != decoder.run.canvas.mask_id else 33})
    step, count = recorded.step(), recorded.graphs.recorded
    assert step.edits and step.kind == "entry-full" and not recorded.graphs.kept
    assert told(step) == told(eager.step())
    for ours in iter(recorded.step, None):
        assert told(ours) == told(eager.step())
    assert recorded.graphs.recorded > count


def test_a_fork_has_no_recordings(demo):
    decoder = decoder_for(demo, "fast-dllm-dual", recorder=TapeRecorder(), **SETTLED)
    trace = Trace(decoder.header)
    for step in iter(decoder.step, None):
        trace.append(step)
    trace.status = "done"
    session = fork(demo, trace, 40)
    assert session.decoder.graphs is None, "nor does it begin to record by itself"
    again = graphs.use(session.decoder, TapeRecorder())
    for _ in iter(again.step, None):
        pass
    assert again.graphs.recorded and torch.equal(again.run.canvas.host, decoder.run.canvas.host)


@pytest.mark.parametrize("residual_format", [f for f in PARAMS["residual_format"].choices if f not in ("nvfp4", "none", "int8")])
def test_every_format_of_the_window_can_be_recorded(llada, residual_format):
    values = POLESTAR | {"gen_length": 64, "tau_upd": 0, "residual_format": residual_format}
    recorded, eager = decoder_for(llada, recorder=TapeRecorder(), **values), decoder_for(llada, **values)
    refreshes = 0
    for ours in iter(recorded.step, None):
        assert told(ours) == told(eager.step())
        refreshes += ours.refresh and "layers" in ours.phases
    assert refreshes > 5


@pytest.mark.parametrize("values", [{"offload": "on"}, {"fixed": False}, {"preset": "release", "offload": "on"}])
def test_refresh_passes_that_a_graph_could_not_hold_run_as_ever(demo, values):
    decoder = decoder_for(demo, recorder=TapeRecorder(), **POLESTAR | {"tau_upd": 1} | values)
    kinds = {(step.refresh, "layers" in step.phases) for step in iter(decoder.step, None) if step.kind == "within"}
    assert kinds == {(True, False), (False, False), (False, True)}


def test_observed_runs_are_not_recorded(demo):
    decoder = Decoder(demo.model, PROMPTS["demo"], DecodeConfig.make(method="fast-dllm-dual", gen_length=32), level="full", observe=True)
    assert graphs.use(decoder, TapeRecorder()).graphs is None


def test_released_decoders_hold_no_recordings(demo):
    decoder = decoder_for(demo, recorder=TapeRecorder(), **POLESTAR)
    until_recorded(decoder)
    decoder.release()
    assert decoder.graphs is None


ASKS = {
    "item": lambda x: int((x > 0).sum()), "bool": lambda x: bool(x.sum() > 0), "nonzero": lambda x: x.nonzero(), "a mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0), "unique": lambda x: x.unique(), "cpu": lambda x: x.cpu(), "tolist": lambda x: x.tolist(),
    "equal": lambda x: torch.equal(x, x),
}  # fmt: skip


@pytest.mark.parametrize("what", ASKS)
def test_an_operation_that_waits_within_a_layer_is_refused(demo, what, monkeypatch):
    layer = refresh.RefreshHook.layer

    def asking(self, call, i, x, rows):
        ASKS[what](x)
        return layer(self, call, i, x, rows)

    monkeypatch.setattr(refresh.RefreshHook, "layer", asking)
    decoder = decoder_for(demo, recorder=TapeRecorder(), **POLESTAR)
    with pytest.raises(DecodeError, match=r"cannot be recorded .*waits for the device.*; decode without graphs"):
        for _ in iter(decoder.step, None):
            pass
    assert decoder.graphs.replayed, "plain passes ask nothing"


def test_numbers_from_the_host_within_a_layer_are_refused():
    with pytest.raises(NotRecordable, match="from the host"):
        TapeRecorder().record(lambda: torch.tensor([1.0, 2.0]) + 1)


def test_a_refused_recording_leaves_memory_as_it_was():
    x = torch.ones(3)
    with pytest.raises(NotRecordable):
        TapeRecorder().record(lambda: x.add_(1).nonzero())
    assert x.tolist() == [1, 1, 1]


def test_packets_of_no_fixed_size_would_be_refused(demo, monkeypatch):
    monkeypatch.setattr(refresh.RefreshHook, "recording", lambda self: "any")
    decoder = decoder_for(demo, recorder=TapeRecorder(), fixed=False, **POLESTAR)
    with pytest.raises(DecodeError, match=r"lift_fresh|nonzero"):
        for _ in iter(decoder.step, None):
            pass


def test_a_tape_runs_its_operations_again_on_the_same_memory():
    x, total, out = torch.arange(4.0), torch.zeros(()), []

    def work():
        y = (x * 2).view(2, 2)
        total.add_(y.t()[0].sum())
        torch.add(y, 1, out=y)
        out.append(y)

    with torch.inference_mode():
        tape = TapeRecorder().record(work)
        assert total == 0 and bool(out[0].isnan().all()), "recorded, not run"
        tape.replay()
        assert total == 4 and out[0].tolist() == [[1, 3], [5, 7]]
        x.fill_(1)
        tape.replay()
        assert total == 8 and out[0].tolist() == [[3, 3], [3, 3]]


def test_a_device_that_cannot_record_says_so():
    decoder = Decoder(random_llada(d=32, layers=2, heads=2, mlp=32, vocab=32, length=32), list(range(6)), DecodeConfig.make(gen_length=8))
    with pytest.raises(ValueError, match="CUDA graphs need a model on a CUDA GPU, and this one is on cpu"):
        graphs.use(decoder)
    assert decoder.graphs is None


class FakeGraph:
    """Stands for torch.cuda.CUDAGraph: what was asked of it, in order."""

    made: list = []

    def __init__(self):
        self.calls = []
        FakeGraph.made.append(self)

    def capture_begin(self, **how):
        self.calls.append(("begin", how))

    def capture_end(self):
        self.calls.append("end")
        if "spoilt" in self.calls:
            raise RuntimeError("the capture is spoilt")

    def replay(self):
        self.calls.append("replay")


def test_cuda_recordings_share_a_pool_that_stays_and_end_their_capture(monkeypatch):
    """The order of calls, with torch.cuda stood in for; nothing here runs CUDA."""
    zeros = torch.zeros
    monkeypatch.setattr(FakeGraph, "made", [])
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: mock.MagicMock())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    for name in ("current_stream", "stream", "device"):
        monkeypatch.setattr(torch.cuda, name, mock.MagicMock())
    monkeypatch.setattr(torch, "zeros", lambda n, device: zeros(n))
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda pool: [{"total_size": 2 << 20}, {"total_size": 5}] if pool == (0, 7) else [])
    recorder = graphs.CudaRecorder(torch.device("cuda"))
    assert recorder.nbytes() == (2 << 20) + 5
    began = ("begin", {"pool": (0, 7), "capture_error_mode": "thread_local"})
    assert recorder.anchor is FakeGraph.made[0] and recorder.anchor.calls == [began, "end"]
    handle = recorder.record(lambda: FakeGraph.made[-1].calls.append("work"))
    handle.replay()
    assert handle.calls == [began, "work", "end", "replay"] and len(FakeGraph.made) == 2

    def fails():
        FakeGraph.made[-1].calls.append("spoilt")
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        recorder.record(fails)
    assert FakeGraph.made[-1].calls == [began, "spoilt", "end"]


def test_memory_counts_recordings(demo):
    recorder = TapeRecorder()
    decoder, plain = decoder_for(demo, recorder=recorder, **POLESTAR), decoder_for(demo, **POLESTAR)
    seen, entries = [], 0
    for step in iter(decoder.step, None):
        own, found = plain.step().extra.get("memory"), step.extra.get("memory")
        if own is not None:
            entries += 1
            assert found["parts"] == own["parts"] | {"graphs": found["parts"]["graphs"]} and found["host"] == own["host"]
            assert found["device"] == own["device"] + found["parts"]["graphs"]
        if found is not None:
            seen.append(found["parts"]["graphs"])
    assert seen == sorted(seen) and seen[0] == 0 and seen[-1] == recorder.nbytes() > 0
    assert len(seen) > entries, "told after a recording, too"

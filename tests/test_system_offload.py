"""Packed hidden states in host memory or on the device: the same decode; rows move in order; the log tells the memory."""

import contextlib

import pytest
import torch

from polestar.cache.offload import DeviceRows, HostRows, Pick, SideStream
from polestar.clock import PhaseClock
from polestar.config import DecodeConfig
from polestar.driver import Decoder, decode
from polestar.trace import Trace, load

CPU = torch.device("cpu")
FORMATS = ("nvfp4", "nvfp4-direct", "none", "fp32", "fp16", "fp8", "int8", "mxfp4", "int2")


def polestar(**values) -> DecodeConfig:
    return DecodeConfig.make(method="polestar", **({"gen_length": 64, "tau_upd": 0, "tau_s": 2.0} | values))


def log_of(trace: Trace) -> list:
    """Everything but times and memory."""
    return [
        (s.kind, s.commits, None if s.packet_rows is None else s.packet_rows.tolist(), s.conf.tolist() if s.drift is None else s.drift.tolist())
        for s in trace
    ]  # fmt: skip


@pytest.mark.parametrize("residual_format", FORMATS)
def test_offload_on_and_off_give_the_same_decode(demo, residual_format):
    prompt = list(range(20, 90))
    off = decode(demo.model, prompt, polestar(offload="off", residual_format=residual_format))
    on = decode(demo.model, prompt, polestar(offload="on", residual_format=residual_format))
    assert str(log_of(on)) == str(log_of(off))  # as text: NaN equals NaN there
    assert any(s.packet_rows is not None and s.packet_rows.any() for s in on)
    entries = [s for s in on if s.kind != "within"]
    assert all(s.extra["memory"]["host"] > 0 and s.extra["memory"]["parts"]["states"] == 0 for s in entries)


def test_auto_offloads_only_from_a_gpu(demo):
    trace = decode(demo.model, list(range(20, 60)), polestar(gen_length=32))
    assert trace[0].extra["memory"]["host"] == 0 and trace[0].extra["memory"]["parts"]["states"] > 0
    with pytest.raises(ValueError, match="offload takes one of auto, on, off"):
        polestar(offload="sometimes")


# -- rows


def parts(n=2, W=6):
    generator = torch.Generator().manual_seed(0)
    return (torch.randint(0, 256, (n, W, 8), dtype=torch.uint8, generator=generator), torch.randn(n, W, 3, generator=generator).half())


def places(values):
    return [DeviceRows(values), HostRows(values, SideStream(CPU), PhaseClock(enabled=False))]


@pytest.mark.parametrize("place", [0, 1])
def test_rows_come_back_as_they_were_put(place):
    values = parts()
    rows, pick = places(values)[place], Pick.of(torch.tensor([4, 0, 2]))
    for layer in (0, 1):
        for got, whole in zip(rows.take(layer, pick), values, strict=True):
            assert got.dtype == whole.dtype and torch.equal(got, whole[layer, [4, 0, 2]])
    new = tuple(part[1, :3].clone() for part in values)
    rows.put(0, pick, new)
    every = rows.take(0, Pick.of(torch.arange(6)))
    for got, whole, fresh in zip(every, values, new, strict=True):
        assert torch.equal(got[[4, 0, 2]], fresh) and torch.equal(got[[1, 3, 5]], whole[0, [1, 3, 5]])
    assert torch.equal(rows.take(1, pick)[1], values[1][1, [4, 0, 2]])  # the other layer is as it was


@pytest.mark.parametrize("place", [0, 1])
def test_padding_is_neither_read_nor_written(place):
    values = parts()
    rows, pick = places(values)[place], Pick.of(torch.tensor([3, 5, -1, -1]), padded=True)
    assert pick.slots.tolist() == [0, 1, -1, -1] and (pick.safe >= 0).all()
    for got, whole in zip(rows.take(0, pick), values, strict=True):
        assert got.shape[0] == 4 and torch.equal(got[:2], whole[0, [3, 5]])
    rows.put(0, pick, tuple(torch.full_like(part[0, :4], 7) for part in values))
    after = rows.take(0, Pick.of(torch.arange(6)))
    for got, whole in zip(after, values, strict=True):
        assert (got[[3, 5]] == 7).all() and torch.equal(got[[0, 1, 2, 4]], whole[0, [0, 1, 2, 4]])


def test_what_was_prefetched_is_used_once_and_not_after_a_put():
    values = parts()
    rows, pick = HostRows(values, SideStream(CPU), PhaseClock(enabled=False)), Pick.of(torch.tensor([1, 2]))
    rows.prefetch(0, pick)
    arrived = rows.staged[0].parts[0]
    assert rows.take(0, pick)[0].data_ptr() == arrived.data_ptr() and not rows.staged
    rows.prefetch(0, pick)
    other = Pick.of(torch.tensor([5]))
    assert torch.equal(rows.take(0, other)[0], values[0][0, [5]])  # other rows than those on their way
    rows.prefetch(0, pick)
    rows.put(0, pick, tuple(part[1, :2].clone() for part in values))
    assert torch.equal(rows.take(0, pick)[1], values[1][1, :2])


def test_bytes_count_what_is_held():
    values = parts()
    device, host = places(values)
    size = sum(part.numel() * part.element_size() for part in values)
    assert device.nbytes == host.nbytes == host.host_bytes == size
    assert device.host_bytes == 0 and host.pinned_bytes == 0  # nothing is pinned without a GPU


# -- order on a device that has streams


class Queue:
    """Stands for a stream; `log` is the order in which work and waits were given to all of them."""

    def __init__(self, name, log):
        self.name, self.log, self.device = name, log, CPU

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")

    def record_event(self):
        self.log.append(f"{self.name} marks")
        return f"mark {self.log.count(f'{self.name} marks')}"

    def wait_event(self, mark):
        self.log.append(f"{self.name} waits for {mark}")


def test_the_side_waits_for_the_main_stream_and_the_main_stream_only_for_what_it_takes(monkeypatch):
    log, used = [], []
    main, side = Queue("main", log), SideStream(CPU)
    side.stream = Queue("side", log)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: used.append((tensor.data_ptr(), stream.name)), raising=False)
    rows, pick = HostRows(parts(), side, PhaseClock(enabled=False)), Pick.of(torch.tensor([1, 2]))
    rows.prefetch(0, pick)
    rows.prefetch(1, pick)
    rows.take(0, pick)
    assert log == ["side waits for main", "side marks", "side waits for main", "side marks", "main waits for mark 1"]
    assert (pick.rows.data_ptr(), "side") in used  # the side reads it: its memory must not be given away
    log.clear()
    new = tuple(part[0, :2].clone() for part in parts())
    rows.take(1, pick)
    rows.put(1, pick, new)
    assert log == ["main waits for mark 2", "side waits for main"]
    assert {(part.data_ptr(), "side") for part in new} <= set(used)


# -- the log


def test_memory_is_told_at_block_entries(demo):
    model, prompt = demo.model, list(range(20, 90))
    trace = decode(model, prompt, polestar(gen_length=96, offload="on"))
    cfg, length = model.cfg, len(prompt) + 96
    kv = 3 * cfg.n_layers * cfg.n_kv_heads * length * cfg.head_dim * 4  # keys, values, un-rotated keys
    for step in trace:
        assert ("memory" in step.extra) == (step.kind != "within")
        if step.kind == "within":
            continue
        memory, W, K = step.extra["memory"], len(step.clusters.window), step.clusters.counts.shape[1]
        assert memory["parts"]["kv"] == kv
        assert memory["parts"]["proxy"] == cfg.n_layers * cfg.n_heads * K * length * 4
        assert memory["parts"]["centroids"] == 2 * cfg.n_layers * K * cfg.d_model * 4  # as they move, and as they were
        assert memory["host"] == cfg.n_layers * W * (cfg.d_model // 2 + cfg.d_model // 16)  # half a byte a value, a byte for 16
        assert memory["device"] == sum(memory["parts"].values())
    assert all("memory" not in s.extra for s in decode(model, prompt, polestar(gen_length=32), level="off"))
    dual = decode(model, prompt, DecodeConfig.make(method="fast-dllm-dual", gen_length=96))
    assert dual[0].extra["memory"] == {"device": kv * 2 // 3, "host": 0, "parts": {"kv": kv * 2 // 3}}


def test_memory_survives_a_trace_file(demo, tmp_path):
    trace = decode(demo.model, list(range(20, 60)), polestar(gen_length=32))
    trace.save(tmp_path / "a.safetensors")
    assert load(tmp_path / "a.safetensors")[0].extra["memory"] == trace[0].extra["memory"]


def test_moving_rows_has_a_phase_of_its_own(demo):
    prompt = list(range(20, 90))
    for offload in ("on", "off"):
        steps = list(decode(demo.model, prompt, polestar(offload=offload)))
        assert all(("offload" in s.phases) == (offload == "on") for s in steps if s.refresh or s.kind != "within")
        assert all({"proxy", "packets", "attention", "mlp"} <= set(s.phases) for s in steps if s.refresh)
        assert all({"clustering", "proxy"} <= set(s.phases) for s in steps if s.kind != "within")


def test_time_aside_is_not_charged_twice(monkeypatch):
    now = iter((10.0, 11.0, 13.0, 18.0, 20.0))
    monkeypatch.setattr("polestar.clock.perf_counter", lambda: next(now))
    clock = PhaseClock(CPU)
    clock.start()  # 10
    clock.lap("main")  # 11
    with clock.aside("side"):  # 13 to 18
        pass
    clock.lap("main")  # 20
    assert clock.close() == {"main": 1.0 + 4.0, "side": 5.0}
    silent = PhaseClock(CPU, enabled=False)
    with silent.aside("side"):
        pass
    assert silent.close() == {}


def test_a_decoder_lets_go_of_everything(demo):
    decoder = Decoder(demo.model, list(range(20, 60)), polestar(gen_length=32, offload="on"))
    decoder.step()
    assert decoder.cache.window.states.host_bytes
    decoder.release()
    assert decoder.cache is None and decoder.run.kv is None

"""What this machine has, what a model needs, and the device and dtype that follow.

Contract: `choose(...)` gives a device, a dtype and one sentence for the page, or raises `NotEnoughMemory` (what is needed, what there is, the ways
out) before anything is read. Sizes are bytes; GB in messages is 10^9 bytes. Machines are plain data, so that tests can invent them.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import torch

QUANTIZE = ("8bit", "4bit")
# Working room beside the weights: K/V, activations, logits.
ROOM = 1.1
# bitsandbytes NF4 with nested scales: 4 bits and about 0.13 of scales for each weight.
_BYTES = {"8bit": 1.0, "4bit": 4.13 / 8}


class NotEnoughMemory(ValueError):
    """The model does not fit. The message says what it needs, what the machine has, and what to do instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A CUDA device: bytes free and in all; `native_bf16` is False before Ampere (T4, V100), where bfloat16 is only emulated."""

    index: int
    name: str
    free: int
    total: int
    native_bf16: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a model can be put on. `ram` is what is available now, in bytes."""

    gpus: tuple[Gpu, ...] = ()
    mps: bool = False
    ram: int = 0

    def sentence(self) -> str:
        """ "this machine has ..." """
        gpus = ", ".join(f"{g.name} with {gb(g.free)} free" for g in self.gpus)
        return f"this machine has {gb(self.ram)} of memory available and {gpus or ('an Apple GPU' if self.mps else 'no GPU')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Parameters of a model: `linear` ones sit in the layers' projections and can be quantised, `other` ones cannot."""

    linear: int
    other: int

    def bytes(self, dtype: torch.dtype, quantize: str | None = None) -> int:
        """Bytes of the weights."""
        per_linear = _BYTES[quantize] if quantize else dtype.itemsize
        return int(self.linear * per_linear + self.other * dtype.itemsize)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Where a model goes. `spread`: over all GPUs. `note`: one sentence for the page."""

    device: torch.device
    dtype: torch.dtype
    quantize: str | None = None
    spread: bool = False
    note: str = ""


def gb(count: float) -> str:
    """Bytes as text: "16.0 GB", "3.8 MB"."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def plain(dtype: torch.dtype) -> str:
    """ "bfloat16" for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def size_of(model: torch.nn.Module) -> Size:
    """`Size` of a transformer, on the meta device too."""
    linear = sum(m.weight.numel() for m in model.layers.modules() if isinstance(m, torch.nn.Linear))
    return Size(linear=linear, other=sum(p.numel() for p in model.parameters()) - linear)


def this_machine() -> Machine:
    """The machine as it is now. Starts CUDA where there is one."""
    gpus = []
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(i)
        native = bool(torch.version.hip) or torch.cuda.get_device_capability(i) >= (8, 0)
        gpus.append(Gpu(index=i, name=torch.cuda.get_device_name(i), free=free, total=total, native_bf16=native))
    return Machine(gpus=tuple(gpus), mps=torch.backends.mps.is_available(), ram=_ram())


def _ram() -> int:
    """Bytes of memory available to this process, the limit of its container included."""
    found = []
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
        limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
        if limit.is_file() and used.is_file() and (text := limit.read_text().strip()) != "max":
            found.append(max(0, int(text) - int(used.read_text())))
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    else:  # Windows
        import ctypes

        class Status(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong)] + [(n, ctypes.c_ulonglong) for n in ("total", "available", *"abcde")]

        status = Status(length=ctypes.sizeof(Status))
        ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        found.append(int(status.available))
    return min(found)


def needs(size: Size) -> str:
    """ "16.0 GB in bfloat16 (8.0 GB in 8-bit, 5.1 GB in 4-bit)" """
    eight, four = (gb(size.bytes(torch.bfloat16, q)) for q in QUANTIZE)
    return f"{gb(size.bytes(torch.bfloat16))} in bfloat16 ({eight} in 8-bit, {four} in 4-bit)"


def options(size: Size, machine: Machine) -> list[str]:
    """Ways to run a model that does not fit as asked, the ones that this machine can do first."""
    ways = []
    room = max([g.free for g in machine.gpus], default=0)
    for quantize in QUANTIZE:
        if size.bytes(torch.float16, quantize) * ROOM <= max(room, machine.ram):
            ways.append(f"load it in {quantize[0]}-bit (--quantize {quantize}, needs the bitsandbytes extra)")
    if machine.gpus and size.bytes(torch.bfloat16) * ROOM <= machine.ram:
        ways.append("run it on the CPU, slowly (--device cpu)")
    ways.append("choose a smaller model (Qwen3-0.6B-diffusion-mdlm-v0.1) or the bundled one (demo)")
    return ways


def choose(
    size: Size,
    machine: Machine,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    quantize: str | None = None,
    name: str = "the model",
) -> Choice:
    """Device and dtype for a model of `size`; what is given is kept.

    Raises ValueError for a combination that cannot work, NotEnoughMemory when the weights do not fit.
    """
    if quantize is not None and quantize not in QUANTIZE:
        raise ValueError(f"quantize is {quantize!r}; use one of {', '.join(QUANTIZE)} or leave it out")
    given = _dtype(dtype)
    gpu = max(machine.gpus, key=lambda g: g.free, default=None)
    if device is None:
        device = f"cuda:{gpu.index}" if gpu else "mps" if machine.mps and quantize is None else "cpu"
    device = torch.device(device)
    if device.type == "cuda":
        if not machine.gpus:
            raise ValueError(f"device {device} was asked for, but no CUDA GPU is in sight; use --device cpu")
        gpu = next((g for g in machine.gpus if g.index == device.index), gpu) if device.index is not None else gpu
        chosen = _on_gpu(size, machine, gpu, given, quantize)
    elif device.type == "mps":
        chosen = _on_mps(size, machine, given, quantize)
    else:
        chosen = _on_cpu(size, machine, device, given, quantize)
    if chosen is None:
        dtype = given or torch.bfloat16
        raise NotEnoughMemory(
            f"{name} needs {gb(size.bytes(dtype, quantize) * ROOM)} with working room in {quantize or plain(dtype)} on {device}, and {machine.sentence()}; "
            + "; or ".join(options(size, machine))
        )
    return chosen


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if isinstance(dtype, str):
        short = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "half": "float16"}.get(dtype, dtype)
        found = getattr(torch, short, None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"dtype {dtype!r} is unknown; use bfloat16, float16 or float32")
        dtype = found
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"dtype {plain(dtype)} is no floating point type; use bfloat16, float16 or float32")
    return dtype


def _on_gpu(size: Size, machine: Machine, gpu: Gpu, given: torch.dtype | None, quantize: str | None) -> Choice | None:
    if given == torch.bfloat16 and not gpu.native_bf16:
        raise ValueError(f"{gpu.name} has no bfloat16 of its own (it would be emulated, slowly); use float16 or float32")
    dtype = given or (torch.bfloat16 if gpu.native_bf16 else torch.float16)
    why = "" if given or gpu.native_bf16 else ", because it has no bfloat16"
    need = size.bytes(dtype, quantize) * ROOM
    kind = f"{quantize[0]}-bit weights, {plain(dtype)} arithmetic" if quantize else plain(dtype)
    if need <= gpu.free:
        return Choice(device=torch.device("cuda", gpu.index), dtype=dtype, quantize=quantize, note=f"{kind} on {gpu.name}{why}")
    alike = [g for g in machine.gpus if g.native_bf16 or dtype != torch.bfloat16]
    if quantize is None and len(alike) > 1 and need <= sum(g.free for g in alike) and importlib.util.find_spec("accelerate"):
        note = f"{kind}, layers spread over {len(alike)} GPUs"
        return Choice(device=torch.device("cuda", gpu.index), dtype=dtype, spread=True, note=note)
    return None


def _on_mps(size: Size, machine: Machine, given: torch.dtype | None, quantize: str | None) -> Choice | None:
    if quantize:
        raise ValueError("bitsandbytes does not run on Apple GPUs; leave --quantize out or use --device cpu")
    if given == torch.float64:
        raise ValueError("Apple GPUs have no float64; use float32 or float16")
    dtype = given or (torch.float32 if size.bytes(torch.float32) * ROOM <= machine.ram / 2 else torch.float16)
    if size.bytes(dtype) * ROOM > machine.ram:
        return None
    return Choice(device=torch.device("mps"), dtype=dtype, note=f"{plain(dtype)} on the Apple GPU")


def _on_cpu(size: Size, machine: Machine, device: torch.device, given: torch.dtype | None, quantize: str | None) -> Choice | None:
    fits = size.bytes(torch.float32, quantize) * ROOM <= machine.ram
    dtype = given or (torch.float32 if fits else torch.bfloat16)
    if size.bytes(dtype, quantize) * ROOM > machine.ram:
        return None
    kind = f"{quantize[0]}-bit weights, {plain(dtype)} arithmetic" if quantize else plain(dtype)
    why = "" if given or fits else f", because float32 would need {gb(size.bytes(torch.float32, quantize) * ROOM)}"
    return Choice(device=device, dtype=dtype, quantize=quantize, note=f"{kind} on the {device.type.upper()}{why}")


SMALL_MODEL = 30_000_000  # parameters


def cpu_threads(model: torch.nn.Module) -> int:
    """CPU threads for the passes of a model: one below SMALL_MODEL parameters, where a second one gains nothing and its waiting loops take a core
    from the page; else one for each core."""
    return 1 if sum(p.numel() for p in model.parameters()) < SMALL_MODEL else os.cpu_count() or 1

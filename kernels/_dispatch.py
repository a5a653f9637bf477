"""Which path runs: Triton for CUDA tensors when Triton can be imported, PyTorch for everything else.

Exports ``triton`` and ``tl`` (None without Triton), ``constexpr``, ``jit`` (``triton.jit``, or the plain function without Triton, so that
kernels can be defined unconditionally) and the checks that the dispatching functions share. With ``TRITON_INTERPRET=1`` in the environment
before the first import, kernels run on the CPU in Triton's interpreter when a caller asks for them with ``path="triton"``.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except (ImportError, OSError, RuntimeError, AttributeError):  # absent, or present and broken on this platform: the PyTorch path serves
    triton = None
    tl = None

constexpr = tl.constexpr if triton is not None else Any
INTERPRET = triton is not None and os.environ.get("TRITON_INTERPRET", "0") == "1"
ROUND_BY_HAND = tl.constexpr(INTERPRET) if triton is not None else False


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch as a dispatching function asked for it: arguments in order, compile-time constants by name."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Any]
    num_warps: int


class _Recorder:
    """Collects launches in place of running them, as a GPU of ``capability`` would get them."""

    def __init__(self, capability: tuple[int, int]):
        self.capability = capability
        self.launches: list[Launch] = []


_recorder: _Recorder | None = None


@contextmanager
def record_launches(capability: tuple[int, int]) -> Iterator[list[Launch]]:
    """Within: ``path="triton"`` works on CPU tensors, runs nothing, and every launch is listed (results hold arbitrary numbers).

    What is compiled ahead of time is thereby exactly what the dispatching functions launch.
    """
    global _recorder
    if triton is None or INTERPRET:
        raise RuntimeError("recording launches needs Triton, with TRITON_INTERPRET unset; install it or unset the variable.")
    outer, _recorder = _recorder, _Recorder(capability)
    try:
        yield _recorder.launches
    finally:
        _recorder = outer


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, num_warps: int = 4, **constants: Any) -> None:
    """Run ``kernel`` over ``grid`` on the GPU that holds its tensors (or in the interpreter; or record the launch)."""
    if _recorder is not None:
        _recorder.launches.append(Launch(kernel, grid, args, constants, num_warps))
        return
    on_gpu = next((a for a in args if isinstance(a, torch.Tensor) and a.is_cuda), None)
    if on_gpu is None:
        kernel[grid](*args, **constants)
    else:
        with torch.cuda.device_of(on_gpu):
            kernel[grid](*args, num_warps=num_warps, **constants)


def jit(function: Callable) -> Callable:
    """``triton.jit`` where Triton exists, else the undecorated function (which is then never called)."""
    return triton.jit(function) if triton is not None else function


@jit
def narrow(x, dtype: constexpr):
    """fp32 x in the given dtype, rounded to nearest even: the hardware's cast, by hand in the interpreter, which truncates to bfloat16."""
    if ROUND_BY_HAND and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    return x.to(dtype)


_forced: str | None = None


@contextmanager
def force_path(path: str | None) -> Iterator[None]:
    """Within: calls that leave ``path`` open take this one ("torch" or "triton"), so that the two can be compared on one device."""
    global _forced
    outer, _forced = _forced, path
    try:
        yield
    finally:
        _forced = outer


def use_triton(path: str | None, *tensors: torch.Tensor | None, pinned_ok: bool = False) -> bool:
    """Whether to run the Triton kernel on ``tensors``.

    ``path`` None decides by device; "torch" and "triton" insist. All tensors must live on one device (with ``pinned_ok`` some may be in pinned host
    memory, which a kernel reads across the bus): ValueError otherwise.
    RuntimeError when "triton" is asked for and cannot run.
    """
    devices = {t.device for t in tensors if t is not None}
    if len(devices) == 2 and pinned_ok:
        devices -= {t.device for t in tensors if t is not None and t.device.type == "cpu" and t.is_pinned()}
    if len(devices) != 1:
        raise ValueError(f"all tensors of a kernel must be on one device, but these are on {sorted(map(str, devices))}; move them first.")
    path = _forced if path is None else path
    if path not in (None, "torch", "triton"):
        raise ValueError(f"path is {path!r}; it must be None, 'torch' or 'triton'.")
    cuda = next(iter(devices)).type == "cuda"
    if path == "triton":
        if triton is None:
            raise RuntimeError("the Triton path was asked for, but Triton cannot be imported here; install it or use path='torch'.")
        if not (cuda or INTERPRET or _recorder is not None):
            raise RuntimeError("the Triton path was asked for on CPU tensors; it runs there only with TRITON_INTERPRET=1 set before the import.")
        return True
    return path is None and cuda and triton is not None


def native_fp8(tensor: torch.Tensor) -> bool:
    """Whether this tensor's device converts E4M3 in hardware (compute capability 8.9 and above); elsewhere integers do it, bit for bit."""
    if _recorder is not None:
        return _recorder.capability >= (8, 9)
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (8, 9)


def next_pow2(n: int) -> int:
    """The smallest power of two >= n (n >= 1)."""
    return 1 << max(0, n - 1).bit_length()


def status() -> str:
    """One sentence for a status line: which path kernels take on this machine."""
    if torch.cuda.is_available():
        return "Kernels: Triton." if triton is not None else "Kernels: PyTorch (Triton is not installed)."
    return "Kernels: PyTorch (no GPU)."

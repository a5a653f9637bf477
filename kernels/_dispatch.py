"""Which path runs: Triton for CUDA tensors when Triton can be imported, PyTorch for everything else.

Exports ``triton`` and ``tl`` (None without Triton), ``jit`` (``triton.jit``, or the plain function without Triton, so that kernels can be
defined unconditionally) and the checks that the dispatching functions share. With ``TRITON_INTERPRET=1`` in the environment before the
first import, kernels run on the CPU in Triton's interpreter when a caller asks for them with ``path="triton"``.
"""

import os

import torch

try:
    import triton
    import triton.language as tl
except (ImportError, OSError, RuntimeError, AttributeError):  # absent, or present and broken on this platform: the PyTorch path serves
    triton = None
    tl = None

INTERPRET = triton is not None and os.environ.get("TRITON_INTERPRET", "0") == "1"


def jit(function):
    """``triton.jit`` where Triton exists, else the undecorated function (which is then never called)."""
    return triton.jit(function) if triton is not None else function


def use_triton(path: str | None, *tensors: torch.Tensor | None) -> bool:
    """Whether to run the Triton kernel on ``tensors``.

    ``path`` None decides by device; "torch" and "triton" insist. All tensors must live on one device: ValueError otherwise.
    RuntimeError when "triton" is asked for and cannot run.
    """
    devices = {t.device for t in tensors if t is not None}
    if len(devices) != 1:
        raise ValueError(f"all tensors of a kernel must be on one device, but these are on {sorted(map(str, devices))}; move them first.")
    if path not in (None, "torch", "triton"):
        raise ValueError(f"path is {path!r}; it must be None, 'torch' or 'triton'.")
    cuda = next(iter(devices)).type == "cuda"
    if path == "triton":
        if triton is None:
            raise RuntimeError("the Triton path was asked for, but Triton cannot be imported here; install it or use path='torch'.")
        if not cuda and not INTERPRET:
            raise RuntimeError("the Triton path was asked for on CPU tensors; it runs there only with TRITON_INTERPRET=1 set before the import.")
        return True
    return path is None and cuda and triton is not None


def native_fp8(tensor: torch.Tensor) -> bool:
    """Whether this tensor's device converts E4M3 in hardware (compute capability 8.9 and above); elsewhere integers do it, bit for bit."""
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (8, 9)


def next_pow2(n: int) -> int:
    """The smallest power of two >= n (n >= 1)."""
    return 1 << max(0, n - 1).bit_length()


def status() -> str:
    """One sentence for a status line: which path kernels take on this machine."""
    if torch.cuda.is_available():
        return "Kernels: Triton." if triton is not None else "Kernels: PyTorch (Triton is not installed)."
    return "Kernels: PyTorch (no GPU)."

"""Kernels on a GPU: are they right, and how near the floor of their bytes are they? Part of `bench gpu`.

Contract: every number comes out of a measurement on the device given. Without CUDA the same code runs on PyTorch with the wall clock (for its tests);
`bench gpu` itself refuses to.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from kernels import nvfp4
from kernels._dispatch import launch, native_fp8, triton
from polestar.bench.kernel_cases import Shape, cases

FLUSH_BYTES = 256 << 20  # more than any L2 cache


class Stopwatch:
    """Seconds of work on a device. `cold`: one call, its inputs out of the cache; `warm`: calls in a row, captured in a CUDA graph."""

    def __init__(self, device: torch.device):
        self.device = device
        self.cuda = self.device.type == "cuda"
        self.flush = torch.empty(FLUSH_BYTES if self.cuda else 1, dtype=torch.uint8, device=self.device)

    def graph(self, run: Callable[[], object], calls: int) -> Callable[[], object]:
        """`calls` runs as one replayable graph (on the CPU: as they are)."""
        if not self.cuda:
            return lambda: [run() for _ in range(calls)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compiles, and settles the allocator, before the capture
            for _ in range(3):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                run()
        return graph.replay

    def times(self, run: Callable[[], object], repeats: int, *, cold: bool) -> list[float]:
        """Seconds of each of `repeats` runs; nothing is waited for between them."""
        if not self.cuda:
            out = []
            for _ in range(repeats):
                started = perf_counter()
                run()
                out.append(perf_counter() - started)
            return out
        marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
        for begin, end in marks:
            if cold:
                self.flush.zero_()
            begin.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in marks]

    def cold(self, run: Callable[[], object], repeats: int = 20) -> float:
        """Median of single calls whose inputs come from memory."""
        return median(self.times(self.graph(run, 1), repeats, cold=True))

    def warm(self, run: Callable[[], object], calls: int = 20, repeats: int = 5) -> float:
        """Median time of one call among `calls` in a row."""
        return median(self.times(self.graph(run, calls), repeats, cold=False)) / calls


def bandwidth(watch: Stopwatch, size: int = 1 << 30) -> float:
    """Bytes a second of a device-to-device copy of `size` bytes, read and written: what "floor" means in these tables."""
    size = size if watch.cuda else 1 << 24
    source = torch.empty(size, dtype=torch.uint8, device=watch.device).zero_()
    target = torch.empty_like(source)
    return 2 * size / median(watch.times(lambda: target.copy_(source), 5, cold=False))


def difference(got: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float) -> dict:
    """How far the tensors are apart. Integers must agree but for one in a thousand (a label may sit on a tie); floats within `tolerance`."""
    worst, unequal, ok = 0.0, 0.0, True
    for a, b in zip(got, expected, strict=True):
        if a.is_floating_point():
            gap = (a.double() - b.double()).abs() / b.double().abs().clamp(min=1.0)
            here = float(gap.max()) if gap.numel() else 0.0
            worst, ok = max(worst, here), ok and here <= tolerance
        else:
            share = float((a != b).double().mean()) if a.numel() else 0.0
            unequal, ok = max(unequal, share), ok and share <= 1e-3
    return {"ok": bool(ok), "max_error": worst, "unequal": unequal}


def correctness(shape: Shape, device: torch.device) -> list[dict]:
    """Each kernel against its PyTorch reference on the device, in bf16 and fp32."""
    out = []
    for dtype in (torch.bfloat16, torch.float32):
        for case in cases(shape, device=device, dtype=dtype, layers=min(4, shape.n_layers)):
            expected = tuple(t.clone() for t in case.run("torch"))
            got = case.run("triton" if device.type == "cuda" else None)
            if device.type == "cuda":
                torch.cuda.synchronize()  # some results lie in host memory
            found = difference(got, expected, 2e-2 if dtype == torch.bfloat16 else 1e-4)
            out.append({"model": shape.name, "kernel": case.name, "dtype": str(dtype).removeprefix("torch."), **found})
    return out


def fp8_same_bits(device: torch.device) -> dict | None:
    """Quantised bits with the hardware's E4M3 and with its integer emulation, over every scale and its ties. None where the GPU has no E4M3."""
    if triton is None or device.type != "cuda":
        return None
    every = torch.arange(1, 127, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn).float()
    ties = (every[1:] + every[:-1]) / 2
    points = torch.cat([every, ties, torch.nextafter(ties, ties * 2), torch.nextafter(ties, ties * 0)])
    x = torch.randn(len(points), nvfp4.GROUP, device=device).clamp(-6, 6) * points[:, None]
    x[:, 3] = 6 * points
    if not native_fp8(x):
        return None
    results = []
    for native in (True, False):
        packed, scales = (torch.empty(len(x), n, dtype=torch.uint8, device=device) for n in (8, 1))
        launch(nvfp4.quantize_kernel, (len(x), 1), x, x, x, packed, scales, 16, 1, 16, 16, HAS_BASE=False, NATIVE=native, BLOCK_G=64)
        results.append((packed, scales))
    reference = nvfp4.quantize_nvfp4(x, path="torch", check=False)
    same = [bool(torch.equal(a, b)) for a, b in zip(*results, strict=True)]
    against = [bool(torch.equal(a, b)) for a, b in zip(results[0], reference, strict=True)]
    return {"ok": all(same) and all(against), "rows": len(x)}


def speed(shape: Shape, watch: Stopwatch, bytes_per_second: float) -> list[dict]:
    """Each kernel's time, cold and warm, the PyTorch path's (as it runs, launches included), and the share of the floor that the kernel reaches."""
    out = []
    for case in cases(shape, device=watch.device, dtype=torch.bfloat16):
        cold = watch.cold(lambda case=case: case.run(None))
        warm = watch.warm(lambda case=case: case.run(None))
        case.run("torch")
        plain = median(watch.times(lambda case=case: case.run("torch"), 5, cold=True))
        floor = case.bytes / bytes_per_second
        out.append(
            {
                "model": shape.name, "kernel": case.name, "part": case.part, "layers": shape.n_layers if case.entry else 1, "bytes": case.bytes,
                "floor_us": floor * 1e6, "cold_us": cold * 1e6, "warm_us": warm * 1e6, "torch_us": plain * 1e6, "of_floor": floor / cold,
            }
        )  # fmt: skip
    return out

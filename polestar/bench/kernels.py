"""`python -m polestar bench kernels [--aot]`: how long each kernel takes on this machine, or what its compiled form needs.

Without `--aot`, every dispatching function is timed at the shapes of LLaDA-8B and Dream-7B on the path this machine takes (Triton on a
GPU, PyTorch elsewhere). With it, every kernel is compiled for sm_80, sm_90 and sm_100, without a GPU, and registers, shared memory and
spills are printed.
"""

from __future__ import annotations

import sys
from time import perf_counter

import torch

from kernels._dispatch import record_launches, status
from polestar.arguments import Parser
from polestar.bench.kernel_cases import SHAPES, cases


def compile_all(archs: tuple[int, ...], dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float32)) -> list:
    """`Compiled` of every launch of every case, at all shapes and dtypes, for each architecture. RuntimeError when one does not compile."""
    from kernels.aot import compile_launches

    out = []
    for arch in archs:
        with record_launches((arch // 10, arch % 10)) as launches:
            for shape in SHAPES:
                for dtype in dtypes:
                    for case in cases(shape, device="cpu", dtype=dtype, layers=2):
                        case.run("triton")
        out += compile_launches(launches, arch)
    return out


def seconds(run, *, repeats: int = 5, budget: float = 1.0) -> float:
    """Best wall time of `run()` in up to `repeats` tries within `budget` seconds, after one warm-up; the device is waited for."""
    cuda = torch.cuda.is_available()
    best, start = float("inf"), None
    for i in range(repeats + 1):
        if cuda:
            torch.cuda.synchronize()
        begin = perf_counter()
        run()
        if cuda:
            torch.cuda.synchronize()
        now = perf_counter()
        if i:
            best = min(best, now - begin)
        start = start or now
        if i and now - start > budget:
            break
    return best


def _print_aot(archs: tuple[int, ...]) -> int:
    compiled = compile_all(archs)
    print(f"{'kernel':22} {'arch':>7} {'warps':>5} {'regs':>5} {'shared':>7} {'spills':>7}  arguments")
    for c in compiled:
        print(f"{c.kernel:22} {'sm_' + str(c.arch):>7} {c.num_warps:>5} {c.registers:>5} {c.shared_bytes:>7} {c.spill_bytes:>7}  {c.signature}")
    spilling = sum(c.spill_bytes > 0 for c in compiled)
    print(f"{len(compiled)} variants compiled, {spilling} of them spill registers.")
    return 1 if spilling else 0


def _print_times(dtype: torch.dtype) -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(status(), f"{device}, {str(dtype).removeprefix('torch.')}; entry kernels cover every layer at once, the others one layer.")
    for shape in SHAPES:
        print(f"{shape.name}: {shape.n_layers} layers, d {shape.d_model}, window {shape.W}, packet {shape.m}, L {shape.L}")
        for case in cases(shape, device=device, dtype=dtype):
            took = seconds(lambda case=case: case.run(None))
            print(f"  {case.name:32} {'all layers' if case.entry else 'one layer':10} {took * 1e3:9.3f} ms {case.bytes / took / 1e9:9.2f} GB/s")
    return 0


def main(argv: list[str]) -> int:
    """Run the command; 0 on success, 1 when a kernel does not compile or spills."""
    parser = Parser(prog="polestar bench kernels", description="Time the kernels here, or compile them ahead of time.")
    parser.add_argument("--aot", action="store_true", help="compile for sm_80, sm_90 and sm_100 without a GPU; print registers, shared memory, spills")
    parser.add_argument("--arch", type=int, nargs="*", default=[80, 90, 100], help="architectures for --aot (default: 80 90 100)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16" if torch.cuda.is_available() else "float32", help="dtype of the timing")
    args = parser.parse_args(argv)
    if not args.aot:
        return _print_times(getattr(torch, args.dtype))
    try:
        return _print_aot(tuple(args.arch))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1

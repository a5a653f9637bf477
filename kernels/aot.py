"""Ahead-of-time compilation without a GPU: every launch of a call, for a list of GPU architectures.

``compile_launches`` takes launches recorded from the dispatching functions (``record_launches``), so what is compiled is what runs: same
argument types, same compile-time constants, same divisibility hints. Registers, shared memory and spills are read off the cubin by the
``cuobjdump`` that comes with Triton.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from ._dispatch import Launch, triton

ARCHITECTURES = (80, 90, 100)
_POINTERS = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.uint8: "*u8", torch.int64: "*i64", torch.int32: "*i32",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel variant on one architecture. ``spill_bytes``: local memory a thread needs beyond registers (0: no spills)."""

    kernel: str
    arch: int
    signature: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    num_warps: int


def variant(launch: Launch) -> tuple[dict[str, str], dict[tuple[int, ...], object], dict[tuple[int, ...], list]]:
    """(signature, constants, hints) of a launch, as Triton specialises it at run time: 1 is a constant, multiples of 16 are marked."""
    signature, constants, hints = {}, {}, {}
    values = dict(zip(launch.kernel.arg_names, launch.args, strict=False)) | launch.constants
    for i, name in enumerate(launch.kernel.arg_names):
        value = values[name]
        if name in launch.constants or (isinstance(value, int) and value == 1):
            signature[name], constants[(i,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = _POINTERS[value.dtype]
            if value.data_ptr() % 16 == 0:
                hints[(i,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0:
                hints[(i,)] = [["tt.divisibility", 16]]
    return signature, constants, hints


def compile_launches(launches: Iterable[Launch], arch: int) -> list[Compiled]:
    """Compile each distinct variant among ``launches`` for sm_``arch``. RuntimeError that names the kernel when one does not compile."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    done, out = set(), []
    for launch in launches:
        signature, constants, hints = variant(launch)
        key = (launch.kernel.__name__, tuple(signature.items()), tuple(constants.items()), tuple(hints), launch.num_warps)
        if key in done:
            continue
        done.add(key)
        name = launch.kernel.__name__
        source = ASTSource(launch.kernel, signature, constants, hints)
        try:
            compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": launch.num_warps})
        except Exception as error:
            raise RuntimeError(f"{name} does not compile for sm_{arch} with {signature}: {error}") from error
        registers, spills = _resources(compiled.asm["cubin"])
        types = " ".join(t for t in signature.values() if t != "constexpr")
        out.append(Compiled(name, arch, types, registers, compiled.metadata.shared, spills, launch.num_warps))
    return out


def _resources(cubin: bytes) -> tuple[int, int]:
    """(registers a thread, bytes of stack and local memory a thread) of the one kernel in a cubin."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        text = subprocess.run([tool, "--dump-resource-usage", str(path)], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+).*? LOCAL:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump printed no resource usage for a cubin of {len(cubin)} bytes: {text[:200]!r}; check the Triton installation.")
    registers, stack, local = map(int, found.groups())
    return registers, stack + local

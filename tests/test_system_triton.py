"""A whole decode through the Triton kernels, interpreted: what a GPU is given to run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels._dispatch import force_path, record_launches
from kernels.aot import ARCHITECTURES, compile_launches
from polestar.cache.offload import Pick
from polestar.cache.residual import ResidualStore

ROOT = Path(__file__).resolve().parent.parent


def test_a_decode_through_the_interpreted_kernels_equals_pytorch():
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "tests.system_interpreted"], env=env, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert done.stdout.strip() == "equal"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_reading_rows_to_be_patched_compiles_without_spills(arch):
    """The store reads a packet's old states in float32 out of 16-bit centroids, a variant that no other call has."""
    W, d, K = 96, 4096, 8
    labels = torch.zeros(1, W, dtype=torch.int64)
    store = ResidualStore("nvfp4", torch.zeros(1, W, d), torch.zeros(1, K, d, dtype=torch.bfloat16), labels)
    pick = Pick.of(torch.tensor([*range(48), *(-1 for _ in range(16))]), padded=True)
    with record_launches((arch // 10, arch % 10)) as launches, force_path("triton"):
        store.read(0, pick)
    done = compile_launches(launches, arch)
    assert {c.kernel for c in done} == {"dequant_norm_kernel"} and all(c.spill_bytes == 0 for c in done)

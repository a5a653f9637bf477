"""The Triton kernels without a GPU: interpreted against the PyTorch references, and compiled for the GPUs they are meant for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import nvfp4
from kernels._dispatch import record_launches
from kernels.aot import ARCHITECTURES
from polestar.bench import kernels as bench

ROOT = Path(__file__).resolve().parent.parent


def test_interpreted_kernels_equal_their_references():
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(ROOT / "tests" / "kernels_interpreted.py")]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Every kernel at every shape, compiled from nothing."""
    folder = os.environ.get("TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    try:
        yield bench.compile_all(ARCHITECTURES, dtypes=(torch.bfloat16,))
    finally:
        if folder is None:
            del os.environ["TRITON_CACHE_DIR"]
        else:
            os.environ["TRITON_CACHE_DIR"] = folder


def test_every_kernel_compiles_for_every_architecture(compiled):
    defined = {
        line.split("(")[0].removeprefix("def ")
        for file in (ROOT / "kernels").glob("*.py")
        for line in file.read_text().splitlines()
        if line.startswith("def ") and line.split("(")[0].endswith("_kernel")
    }
    assert len(defined) >= 12
    for arch in ARCHITECTURES:
        assert {c.kernel for c in compiled if c.arch == arch} == defined


def test_no_kernel_spills_registers(compiled):
    assert [c for c in compiled if c.spill_bytes] == []
    assert all(0 < c.registers <= 255 for c in compiled)
    assert all(c.shared_bytes <= 99 * 1024 for c in compiled), "must fit the smallest of the architectures"


def test_spills_are_seen(monkeypatch, tmp_path):
    """A kernel that cannot keep its state in registers is reported as spilling."""
    from kernels import kmeans
    from kernels._dispatch import launch
    from kernels.aot import compile_launches

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x, labels = torch.zeros(8, 4096), torch.zeros(8, dtype=torch.int64)
    with record_launches((9, 0)) as launches:
        launch(kmeans.update_kernel, (1, 1), x, labels, labels, x, labels, 4096, 8, 8, HAS_SPARE=True, BLOCK_K=8, BLOCK_D=1024, num_warps=1)
    assert compile_launches(launches, 90)[0].spill_bytes > 0


def test_emulated_fp8_is_chosen_by_the_device():
    x = torch.zeros(2, 32)
    chosen = {}
    for capability in ((8, 0), (8, 9), (9, 0), (10, 0)):
        with record_launches(capability) as launches:
            nvfp4.quantize_nvfp4(x, path="triton", check=False)
        chosen[capability] = launches[0].constants["NATIVE"]
    assert chosen == {(8, 0): False, (8, 9): True, (9, 0): True, (10, 0): True}


def test_triton_on_cpu_tensors_is_refused_in_words():
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        nvfp4.quantize_nvfp4(torch.zeros(2, 32), path="triton")


def test_bench_prints_what_was_compiled(compiled, monkeypatch, capsys):
    monkeypatch.setattr(bench, "compile_all", lambda archs: [c for c in compiled if c.arch in archs])
    assert bench.main(["--aot", "--arch", "90"]) == 0
    out = capsys.readouterr().out
    assert "quantize_kernel" in out
    assert "sm_90" in out
    assert "sm_80" not in out
    assert "0 of them spill" in out


def test_bench_times_every_kernel(monkeypatch, capsys):
    small = bench.SHAPES[1].__class__(
        name="small", n_layers=2, d_model=64, n_heads=4, n_kv_heads=2, head_dim=16, W=12, K=3, m=5, B=4, L=40
    )
    monkeypatch.setattr(bench, "SHAPES", (small,))
    assert bench.main([]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " ms " in line]
    assert len(lines) == 13

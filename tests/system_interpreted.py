"""Run by test_system_triton.py with TRITON_INTERPRET=1: a decode as a GPU runs it, through Triton's interpreter, against the PyTorch path."""

import sys

import numpy as np
import torch

from kernels._dispatch import INTERPRET, force_path
from polestar.bench.engine import random_llada
from polestar.config import DecodeConfig
from polestar.driver import Decoder


def passes(path: str, dtype: torch.dtype, **values) -> tuple[list, list]:
    """Commits, packet rows and clusters of each pass, and its drifts; kernels on `path`, packets of a fixed size."""
    model = random_llada(d=32, layers=2, heads=2, mlp=32, vocab=32, length=32).to(dtype)
    config = DecodeConfig.make(gen_length=8, block_length=4, K=3, k=2, tau_upd=0, tau_s=2.0, tau_suf=0.2, **values)
    decoder, out, drifts = Decoder(model, list(range(6)), config), [], []
    decoder.cache.fixed = True
    with force_path(path):
        for step in iter(decoder.step, None):
            chosen = None if step.packet_rows is None else (step.packet_rows.tolist(), step.clusters.selected.tolist())
            out.append((step.kind, [(c.position, c.token, c.reason) for c in step.commits], chosen))
            drifts.append(step.drift)
    return out, drifts


def main() -> None:
    assert INTERPRET
    torch.set_num_threads(1)
    cases = ((torch.float32, {"offload": "on"}), (torch.bfloat16, {"offload": "off"}), (torch.float32, {"offload": "on", "residual_format": "int8"}))
    for dtype, values in cases:
        (triton, drifts), (reference, expected) = passes("triton", dtype, **values), passes("torch", dtype, **values)
        assert triton == reference, f"{dtype} {values}:\n{triton}\n{reference}"
        assert [d is None for d in drifts] == [d is None for d in expected]
        for a, b in zip(drifts, expected, strict=True):
            if a is not None:
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)
        assert any(chosen is not None and sum(chosen[0]) for _, _, chosen in triton), "no packet was ever sent"
    print("equal")


if __name__ == "__main__":
    sys.exit(main())

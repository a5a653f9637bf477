"""One call of every dispatching kernel at a model's shapes, with the bytes it must move: what `bench kernels` and `bench gpu` run and
compile.

Contract: a `Case` owns its inputs (random, seeded); `run(path)` calls the dispatching function and returns its tensors; `bytes` counts
what has to be read and written once, so that bytes over bandwidth is the floor of its time. Inputs are fixed between calls, in-place
outputs are overwritten alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import dequant_norm, drift, kmeans, nvfp4, packet, proxy, rope_scatter


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model as kernels see it, and the window of a decode: `W` window rows in `K` clusters, `m` packet rows, `B` block rows, `L` keys."""

    name: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    W: int = 96
    K: int = 8
    m: int = 48
    B: int = 32
    L: int = 1024


LLADA_8B = Shape(name="LLaDA-8B", n_layers=32, d_model=4096, n_heads=32, n_kv_heads=32, head_dim=128)
DREAM_7B = Shape(name="Dream-7B", n_layers=28, d_model=3584, n_heads=28, n_kv_heads=4, head_dim=128)
SHAPES = (LLADA_8B, DREAM_7B)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`entry`: the work is done for all layers at once at block entry; otherwise it is one layer's in a within-block pass."""

    name: str
    part: str  # the bar of Figure 12 that it belongs to
    bytes: int
    run: Callable[[str | None], tuple[Tensor, ...]]
    entry: bool = False


def _size(*tensors: Tensor | None) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def cases(shape: Shape, *, device: torch.device | str, dtype: torch.dtype, layers: int | None = None) -> Iterator[Case]:
    """Every kernel at `shape`; entry work covers `layers` layers (default: all of the model)."""
    n = shape.n_layers if layers is None else layers
    s = shape
    g = torch.Generator(device=device).manual_seed(0)

    def rand(*size: int, as_dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(size, generator=g, device=device, dtype=torch.float32).to(as_dtype)

    def whole(high: int, *size: int) -> Tensor:
        return torch.randint(0, high, size, generator=g, device=device)

    hidden, centroids = rand(n, s.W, s.d_model), rand(n, s.K, s.d_model, as_dtype=torch.float32)
    labels, spare = whole(s.K, n, s.W), whole(s.W, n, s.K)
    packed, scales = nvfp4.quantize_residual(hidden, centroids, labels, path="torch", check=False)
    yield Case(
        name="k-means assign", part="clustering", entry=True, bytes=_size(hidden, centroids, labels),
        run=lambda path: (kmeans.assign(hidden, centroids, path=path),)
    )
    yield Case(
        name="k-means update", part="clustering", entry=True, bytes=_size(hidden, centroids, labels),
        run=lambda path: kmeans.update(hidden, labels, s.K, spare=spare, path=path),
    )
    yield Case(
        name="quantise residuals", part="quantisation", entry=True, bytes=_size(hidden, centroids, labels, packed, scales),
        run=lambda path: nvfp4.quantize_residual(hidden, centroids, labels, path=path, check=False),
    )
    yield Case(
        name="dequantise", part="quantisation", entry=True, bytes=_size(packed, scales) + 4 * hidden.numel(),
        run=lambda path: (nvfp4.dequantize_nvfp4(packed, scales, s.d_model, path=path),),
    )

    rows = torch.randperm(s.W, generator=g, device=device)[: s.m]
    weight = rand(s.d_model)
    one = (packed[0].contiguous(), scales[0].contiguous(), centroids[0].contiguous(), labels[0].contiguous())
    yield Case(
        name="dequantise + centroid + norm", part="update packet",
        bytes=s.m * (one[0].shape[1] + one[1].shape[1]) + _size(one[2], weight) + 2 * s.m * s.d_model * dtype.itemsize,
        run=lambda path: dequant_norm.dequant_norm(*one, weight, 1e-5, rows=rows, path=path),
    )
    scores = rand(s.K, as_dtype=torch.float32)
    yield Case(
        name="select packet", part="selection", bytes=_size(scores, one[3], one[3]) + s.K,
        run=lambda path: packet.select_packet(scores, one[3], s.K // 2, path=path),
    )
    host = one[0].cpu().pin_memory() if torch.device(device).type == "cuda" else one[0].clone()
    staging, kept = torch.zeros_like(one[0][: s.m]), host.clone() if torch.device(device).type == "cpu" else host.clone().pin_memory()
    yield Case(
        name="fetch rows from host", part="offload", bytes=2 * _size(staging) + _size(rows),
        run=lambda path: (packet.fetch_rows(host, rows, staging, path=path),),
    )

    def write_back(path: str | None) -> tuple[Tensor, ...]:
        packet.store_rows(kept, rows, staging, path=path)
        return (kept,)

    yield Case(name="store rows to host", part="offload", bytes=2 * _size(staging) + _size(rows), run=write_back)
    keys = rand(s.n_kv_heads, s.L, s.head_dim)
    for name, part, function, r in (
        ("proxy attention + drift", "proxy attention", proxy.proxy_drift, s.K),
        ("block attention + drift", "commit drift", drift.attention_drift, s.B),
    ):
        q = rand(r, s.n_heads, s.head_dim).transpose(0, 1)
        before = torch.softmax(rand(s.n_heads, r, s.L, as_dtype=torch.float32), -1)
        yield Case(
            name=name, part=part, bytes=_size(q, keys, before) + _size(before),
            run=lambda path, f=function, q=q, before=before: f(q, keys, before, path=path),
        )
    before = torch.softmax(rand(s.n_heads, s.B, s.L, as_dtype=torch.float32), -1)
    now = torch.softmax(rand(s.n_heads, s.B, s.L, as_dtype=torch.float32), -1)
    yield Case(name="drift of stored attention", part="commit drift", bytes=_size(now, before), run=lambda path: (drift.mean_kl(now, before, path=path),))

    caches = [rand(s.n_kv_heads, s.L, s.head_dim) for _ in range(3)]
    new_k, new_v = (rand(s.m, s.n_kv_heads, s.head_dim).transpose(0, 1) for _ in range(2))
    positions = torch.randperm(s.L, generator=g, device=device)[: s.m]
    cos, sin = rand(s.m, s.head_dim, as_dtype=torch.float32), rand(s.m, s.head_dim, as_dtype=torch.float32)

    def scatter(path: str | None) -> tuple[Tensor, ...]:
        rope_scatter.scatter_kv(*caches[:2], new_k, new_v, positions, cos, sin, raw_cache=caches[2], path=path)
        return tuple(caches)

    yield Case(name="rotary scatter", part="update packet", bytes=_size(new_k, new_v, cos, sin) + 3 * _size(new_k), run=scatter)
    yield Case(
        name="gather K/V", part="update packet", bytes=4 * _size(new_k), run=lambda path: rope_scatter.gather_kv(caches[0], caches[1], positions, path=path)
    )

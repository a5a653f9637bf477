"""The Triton kernels against their PyTorch references, in Triton's CPU interpreter.

Not collected by the ordinary run (Triton reads TRITON_INTERPRET when it is first imported): ``test_kernels_triton.py`` runs this file in a
process of its own, with the variable set.
"""

import ml_dtypes
import numpy as np
import pytest
import torch

from kernels import _dispatch, dequant_norm, drift, kmeans, nvfp4, packet, proxy, rope_scatter
from kernels._dispatch import constexpr, jit, launch, tl

DTYPES = [torch.float32, torch.bfloat16]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def corner_rows(d: int) -> torch.Tensor:
    """Rows [6, d]: plain, all zero, tiny (below the smallest scale), saturating, one value in a group, alternating huge and small."""
    generator = torch.Generator().manual_seed(d)
    x = torch.randn(6, d, generator=generator)
    x[1] = 0.0
    x[2] *= 1e-4
    x[3] *= 1e5
    x[4] = 0.0
    x[4, 0] = -3.0
    x[5, ::2] *= 1e3
    return x


def test_interpreter_is_what_runs():
    assert _dispatch.INTERPRET


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 15, 16, 37, 128, 1040])
def test_quantise_has_the_reference_bits(d, dtype):
    x = corner_rows(d).to(dtype)
    packed, scales = nvfp4.quantize_nvfp4(x, path="triton")
    expected = nvfp4.quantize_nvfp4(x, path="torch")
    assert torch.equal(packed, expected[0])
    assert torch.equal(scales, expected[1])
    back = nvfp4.dequantize_nvfp4(packed, scales, d, path="triton")
    assert torch.equal(back, nvfp4.dequantize_nvfp4(packed, scales, d, path="torch"))
    assert not back[1].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantise_residuals_of_two_layers(dtype):
    h = torch.stack([corner_rows(48), corner_rows(48).flip(0)]).to(dtype)
    centroids = torch.randn(2, 3, 48, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[0, 1, 2, 0, 1, 2], [2, 2, 1, 1, 0, 0]])
    got = nvfp4.quantize_residual(h, centroids, labels, path="triton")
    expected = nvfp4.quantize_residual(h, centroids, labels, path="torch")
    assert got[0].shape == (2, 6, 24)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_not_finite_is_named_or_carried(bad):
    x = torch.ones(3, 40)
    x[2, 17] = bad
    with pytest.raises(ValueError, match=r"(NaN|infinity).*row \[2\], channel group 1"):
        nvfp4.quantize_nvfp4(x, path="triton", check=True)
    packed, scales = nvfp4.quantize_nvfp4(x, path="triton", check=False)
    back = nvfp4.dequantize_nvfp4(packed, scales, 40, path="triton")
    assert torch.isnan(back[2, 16:32]).all()
    assert torch.isfinite(back[:2]).all()


@jit
def _bits_kernel(x_ptr, e4m3_ptr, value_ptr, n, NATIVE: constexpr, BLOCK: constexpr):
    at = tl.arange(0, BLOCK)
    bits = nvfp4.e4m3_bits(tl.load(x_ptr + at, mask=at < n, other=0.0), NATIVE)
    tl.store(e4m3_ptr + at, bits.to(tl.uint8), mask=at < n)
    tl.store(value_ptr + at, nvfp4.e4m3_value(bits, NATIVE), mask=at < n)


@pytest.mark.parametrize("native", [False, True])
def test_e4m3_bits_against_ml_dtypes(native):
    every = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    middles = (every[1:] + every[:-1]) / 2  # ties, and their neighbours on both sides
    x = every  # the interpreter's own cast truncates, so the hardware path is held to exact numbers here and to the rest by `bench gpu`
    if not native:
        x = np.concatenate([every, middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(500))]).astype(np.float32)
    bits = torch.empty(len(x), dtype=torch.uint8)
    values = torch.empty(len(x))
    launch(_bits_kernel, (1,), torch.from_numpy(x), bits, values, len(x), NATIVE=native, BLOCK=512)
    expected = x.astype(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(bits.numpy(), expected.view(np.uint8))
    assert np.array_equal(values.numpy(), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("W", "d", "m"), [(7, 37, 3), (12, 64, 5), (5, 256, 0)])
def test_dequant_norm(W, d, m, dtype):
    generator = torch.Generator().manual_seed(W)
    h = torch.randn(W, d, generator=generator)
    centroids, labels = torch.randn(3, d, generator=generator), torch.randint(0, 3, (W,), generator=generator)
    weight = torch.rand(d, generator=generator).to(dtype)
    packed, scales = nvfp4.quantize_residual(h, centroids, labels)
    rows = torch.randperm(W, generator=generator)[:m]
    rows = torch.cat([rows, torch.tensor([-1])])
    cases = [(centroids, labels, rows), (centroids, labels, None), (None, None, rows)]
    for z, lab, picked in cases:
        got = dequant_norm.dequant_norm(packed, scales, z, lab, weight, 1e-5, rows=picked, path="triton")
        expected = dequant_norm.dequant_norm(packed, scales, z, lab, weight, 1e-5, rows=picked, path="torch")
        for a, b in zip(got, expected, strict=True):
            assert a.dtype == dtype
            torch.testing.assert_close(a, b, **(CLOSE if dtype == torch.float32 else {"rtol": 2**-7, "atol": 1e-6}))
        if picked is not None:
            assert not got[0][-1].any()
            assert not got[1][-1].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv", "rows", "length", "size"), [(4, 4, 8, 130, 16), (6, 2, 5, 257, 24), (3, 1, 1, 7, 80), (2, 2, 33, 128, 64)])
def test_attention_and_drift(heads, kv, rows, length, size, dtype):
    generator = torch.Generator().manual_seed(length)
    q = torch.randn(rows, heads, size, generator=generator).to(dtype).transpose(0, 1)  # as projections give it: rows outermost in memory
    k = torch.randn(kv, length, size, generator=generator).to(dtype)
    before = torch.softmax(torch.randn(heads, rows, length, generator=generator) * 3, -1)
    before[0, 0] = 0.0
    before[0, 0, 0] = 1.0  # everything else is below the clamp
    for function in (proxy.proxy_drift, drift.attention_drift):
        p, d = function(q, k, before, path="triton")
        p_ref, d_ref = function(q, k, before, path="torch")
        torch.testing.assert_close(p, p_ref, **CLOSE)
        torch.testing.assert_close(d, d_ref, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(p.sum(-1), torch.ones(heads, rows), rtol=0, atol=1e-5)
        out = torch.empty_like(p)
        again, same = function(q, k, p, out=out, path="triton")
        assert again is out
        assert torch.equal(again, p)
        assert torch.equal(same, torch.zeros(rows)), "KL(p, p) must be exactly 0"
        assert function(q, k, path="triton")[1] is None
    torch.testing.assert_close(drift.mean_kl(p, before, path="triton"), d_ref, rtol=1e-4, atol=1e-5)
    assert torch.equal(drift.mean_kl(p, p, path="triton"), torch.zeros(rows))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "W", "d", "K"), [(2, 9, 40, 3), (1, 16, 64, 8), (3, 1, 33, 1), (1, 5, 2050, 5)])
def test_kmeans(n, W, d, K, dtype):
    generator = torch.Generator().manual_seed(W)
    x = torch.randn(n, W, d, generator=generator).to(dtype)
    start = torch.stack([torch.randperm(W, generator=generator)[:K] for _ in range(n)])
    spare = torch.randint(0, W, (4, n, K), generator=generator)
    for got, expected in zip(kmeans.spherical_kmeans(x, start, spare, path="triton"), kmeans.spherical_kmeans(x, start, spare, path="torch"), strict=True):
        torch.testing.assert_close(got, expected, **CLOSE)
    # All rows equal, as in layer 0: every row goes to the lowest index, the other clusters stay empty and take their spare rows.
    same = torch.ones(n, W, d, dtype=dtype)
    labels = kmeans.assign(same, torch.ones(n, K, d), path="triton")
    assert not labels.any()
    means, counts = kmeans.update(same * torch.arange(1, W + 1)[:, None], labels, K, spare=spare[0], path="triton")
    assert counts[:, 0].eq(W).all()
    assert not counts[:, 1:].any()
    assert torch.equal(means[:, 1:, 0], spare[0][:, 1:].float() + 1)
    means, _ = kmeans.update(same, labels, K, path="triton")
    assert not means[:, 1:].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kv", "length", "size", "m"), [(2, 11, 8, 4), (3, 20, 24, 7), (1, 4, 64, 1)])
@pytest.mark.parametrize("raw", [False, True])
def test_scatter_and_gather(kv, length, size, m, raw, dtype):
    generator = torch.Generator().manual_seed(length)
    k_cache, v_cache, raw_cache = torch.randn(3, kv, length, size, generator=generator).to(dtype)
    new_k, new_v = torch.randn(2, m, kv, size, generator=generator).to(dtype).transpose(1, 2)
    positions = torch.randperm(length, generator=generator)[:m]
    if m > 1:
        positions[1] = -1
    angle = torch.outer(positions.clamp(min=0).float(), 1.0 / 100.0 ** (torch.arange(0, size, 2) / size))
    angle = torch.cat((angle, angle), -1)
    results = []
    for path in ("triton", "torch"):
        caches = [c.clone() for c in (k_cache, v_cache, raw_cache)]
        rope_scatter.scatter_kv(
            *caches[:2], new_k, new_v, positions, angle.cos(), angle.sin(), raw_cache=caches[2] if raw else None, padded=True, path=path
        )
        results.append([*caches, *rope_scatter.gather_kv(caches[0], caches[1], positions, path=path)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, **(CLOSE if dtype == torch.float32 else {"rtol": 2**-7, "atol": 1e-5}))
    assert torch.equal(results[0][2], raw_cache) != raw
    if m > 1:
        assert not results[0][3][:, 1].any()


@pytest.mark.parametrize(("W", "K", "k"), [(12, 3, 2), (96, 8, 4), (1, 1, 1), (7, 8, 0), (33, 5, 5)])
def test_select_packet(W, K, k):
    generator = torch.Generator().manual_seed(W)
    labels = torch.randint(0, K, (W,), generator=generator)
    scores = torch.randint(0, 3, (K,), generator=generator).float()  # with ties
    rows, selected = packet.select_packet(scores, labels, k, path="triton")
    rows_ref, selected_ref = packet.select_packet(scores, labels, k, path="torch")
    assert torch.equal(rows, rows_ref)
    assert torch.equal(selected, selected_ref)


@pytest.mark.parametrize("n", [8, 24, 37, 4104])
def test_fetch_and_store_rows(n):
    generator = torch.Generator().manual_seed(n)
    store = torch.randint(0, 256, (9, n), generator=generator, dtype=torch.uint8)
    rows = torch.tensor([7, 0, 3, -1, -1])
    out = torch.full((5, n), 9, dtype=torch.uint8)
    assert torch.equal(packet.fetch_rows(store, rows, out.clone(), path="triton"), packet.fetch_rows(store, rows, out.clone(), path="torch"))
    new = torch.randint(0, 256, (5, n), generator=generator, dtype=torch.uint8)
    results = []
    for path in ("triton", "torch"):
        kept = store.clone()
        packet.store_rows(kept, rows, new, path=path)
        results.append(kept)
    assert torch.equal(*results)

"""The PyTorch paths of the kernels against their definitions, written out plainly."""

import math

import pytest
import torch

from kernels import dequant_norm, drift, kmeans, nvfp4, packet, proxy, rope_scatter


def kl(p, q) -> float:
    """KL by definition, in double precision, clamped below at 1e-12."""
    return math.fsum(max(a, 1e-12) * (math.log(max(a, 1e-12)) - math.log(max(b, 1e-12))) for a, b in zip(p.tolist(), q.tolist(), strict=True))


@pytest.fixture
def random():
    return torch.Generator().manual_seed(7)


@pytest.mark.parametrize("function", [proxy.proxy_drift, drift.attention_drift])
@pytest.mark.parametrize(("heads", "kv"), [(4, 4), (6, 2)])
def test_attention_and_divergence_by_definition(function, heads, kv, random):
    rows, length, size = 3, 29, 8
    q, k = torch.randn(heads, rows, size, generator=random), torch.randn(kv, length, size, generator=random)
    before = torch.softmax(torch.randn(heads, rows, length, generator=random) * 4, -1)
    before[1, 2] = 0.0
    before[1, 2, 5] = 1.0
    p, d = function(q, k, before)
    for h in range(heads):
        expected = torch.softmax(q[h] @ k[h // (heads // kv)].T / size**0.5, -1)
        torch.testing.assert_close(p[h], expected)
    for r in range(rows):
        assert d[r].item() == pytest.approx(sum(kl(p[h, r], before[h, r]) for h in range(heads)) / heads, rel=1e-5)
    torch.testing.assert_close(drift.mean_kl(p, before), d)


def test_divergence_of_equals_is_exactly_zero_and_never_negative(random):
    p = torch.softmax(torch.randn(4, 6, 50, generator=random) * 20, -1)  # most of it far below the clamp
    assert torch.equal(drift.mean_kl(p, p), torch.zeros(6))
    nearly = (p * (1 + 1e-7 * torch.randn(p.shape, generator=random))).clamp(min=0)
    d = drift.mean_kl(p, nearly)
    assert (d >= 0).all()
    assert torch.isfinite(drift.mean_kl(torch.zeros(1, 1, 3), torch.tensor([[[0.0, 0.0, 1.0]]]))).all()
    q, k = torch.randn(2, 3, 8, generator=random), torch.randn(2, 9, 8, generator=random)
    p, none = proxy.proxy_drift(q, k)
    assert none is None, "nothing to compare with: no drift, not 0"
    assert torch.equal(proxy.proxy_drift(q, k, p)[1], torch.zeros(3))


def test_out_receives_the_distribution(random):
    q, k = torch.randn(2, 3, 8, generator=random), torch.randn(2, 9, 8, generator=random)
    before, out = proxy.proxy_drift(q, k)[0], torch.empty(2, 3, 9)
    p, _ = proxy.proxy_drift(q, k, before, out=out)
    assert p is out
    assert torch.equal(out, before)
    with pytest.raises(ValueError, match="second buffer"):
        proxy.proxy_drift(q, k, before, out=before)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.ones(3, 2, 8), torch.ones(2, 5, 8)), r"\(3, 2, 8\).*\(2, 5, 8\)"),
        ((torch.ones(2, 2, 8), torch.ones(2, 5, 4)), r"\(2, 5, 4\)"),
        ((torch.ones(2, 2, 8), torch.ones(2, 5, 8), torch.ones(2, 2, 6)), r"before is .*\(2, 2, 6\).*\(2, 2, 5\)"),
        ((torch.ones(2, 2, 8), torch.ones(2, 5, 8), torch.ones(2, 2, 5).double()), "float64"),
    ],
)
def test_attention_errors(args, message):
    with pytest.raises(ValueError, match=message):
        proxy.proxy_drift(*args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packet_start_is_dequantise_then_centroid_then_norm(dtype, random):
    h, z = torch.randn(6, 40, generator=random), torch.randn(2, 40, generator=random)
    labels = torch.tensor([0, 1, 0, 1, 1, 0])
    weight = torch.rand(40, generator=random).to(dtype)
    packed, scales = nvfp4.quantize_residual(h, z, labels)
    rows = torch.tensor([4, -1, 0])
    got, normed = dequant_norm.dequant_norm(packed, scales, z, labels, weight, 1e-6, rows=rows)
    assert got.dtype == normed.dtype == dtype
    for i, w in ((0, 4), (2, 0)):
        expected = (nvfp4.dequantize_nvfp4(packed[w], scales[w], 40) + z[labels[w]]).to(dtype)
        assert torch.equal(got[i], expected)
        x = expected.double()
        exact = x / (x.square().mean() + 1e-6).sqrt() * weight.double()
        torch.testing.assert_close(normed[i].double(), exact, rtol=2**-7 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)
    assert not got[1].any()
    assert not normed[1].any()
    everything, _ = dequant_norm.dequant_norm(packed, scales, z, labels, weight, 1e-6)
    assert torch.equal(everything[rows[[0, 2]]], got[[0, 2]])
    with pytest.raises(ValueError, match=r"labels \(5,\)"):
        dequant_norm.dequant_norm(packed, scales, z, labels[:5], weight, 1e-6)


def test_kmeans_against_loops(random):
    x = torch.randn(2, 11, 6, generator=random)
    start = torch.tensor([[0, 3, 7], [2, 1, 10]])
    spare = torch.randint(0, 11, (5, 2, 3), generator=random)
    labels, centroids, counts = kmeans.spherical_kmeans(x, start, spare)
    for n in range(2):
        z = x[n, start[n]].clone()
        for it in range(5):
            mine = [max(range(3), key=lambda c: torch.cosine_similarity(row, z[c], dim=0).item()) for row in x[n]]
            for c in range(3):
                members = [x[n, w] for w in range(11) if mine[w] == c]
                z[c] = torch.stack(members).mean(0) if members else x[n, spare[it, n, c]]
        assert labels[n].tolist() == mine
        torch.testing.assert_close(centroids[n], z)
        assert counts[n].tolist() == [mine.count(c) for c in range(3)]


def test_kmeans_of_identical_rows_and_of_one():
    x = torch.ones(1, 4, 3)
    labels, centroids, counts = kmeans.spherical_kmeans(x, torch.tensor([[0, 1]]), torch.tensor([[[2, 3]]]))
    assert labels.tolist() == [[0, 0, 0, 0]]
    assert counts.tolist() == [[4, 0]]
    assert torch.equal(centroids, torch.ones(1, 2, 3))
    assert kmeans.assign(torch.ones(1, 3), torch.zeros(1, 3)).tolist() == [0]
    with pytest.raises(ValueError, match="number of iterations"):
        kmeans.spherical_kmeans(x, torch.tensor([[0]]), torch.empty(0, 1, 1, dtype=torch.long))


def test_centroids_move_by_their_members_change(random):
    x = torch.randn(7, 5, generator=random)
    labels = torch.tensor([0, 1, 1, 0, 2, 1, 1])
    z, counts = kmeans.update(x, labels, 4)
    new = x.clone()
    rows = torch.tensor([1, 2, 4])
    new[rows] = torch.randn(3, 5, generator=random)
    moved = kmeans.move_centroids(z, new[rows] - x[rows], labels[rows], counts)
    expected, _ = kmeans.update(new, labels, 4)
    torch.testing.assert_close(moved[:3], expected[:3])
    assert torch.equal(moved[3], z[3])


def rotate(x, position: int, theta: float = 100.0):
    """One head vector at one position, pair by pair."""
    half = len(x) // 2
    out = x.clone()
    for i in range(half):
        angle = position / theta ** (i / half)
        a, b = x[i].item(), x[i + half].item()
        out[i], out[i + half] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
    return out


@pytest.mark.parametrize("raw", [False, True])
def test_scatter_rotates_writes_and_leaves_the_rest(raw, random):
    caches = torch.randn(3, 2, 9, 6, generator=random)
    before = caches.clone()
    new_k, new_v = torch.randn(2, 4, 2, 6, generator=random).transpose(1, 2)
    positions = torch.tensor([5, -1, 0, 8])
    angle = torch.outer(positions.float(), 1.0 / 100.0 ** (torch.arange(3) / 3))
    angle = torch.cat((angle, angle), -1)
    rope_scatter.scatter_kv(caches[0], caches[1], new_k, new_v, positions, angle.cos(), angle.sin(), raw_cache=caches[2] if raw else None, padded=True)
    for i, p in enumerate(positions.tolist()):
        if p >= 0:
            for head in range(2):
                torch.testing.assert_close(caches[0, head, p], rotate(new_k[head, i], p))
                assert torch.equal(caches[1, head, p], new_v[head, i])
                assert torch.equal(caches[2, head, p], new_k[head, i] if raw else before[2, head, p])
    rest = [p for p in range(9) if p not in positions.tolist()]
    assert torch.equal(caches[:, :, rest], before[:, :, rest])
    k, v = rope_scatter.gather_kv(caches[0], caches[1], positions)
    assert torch.equal(k[:, 0], caches[0][:, 5])
    assert torch.equal(v[:, 3], caches[1][:, 8])
    assert not k[:, 1].any()
    with pytest.raises(ValueError, match=r"positions \(3,\)"):
        rope_scatter.scatter_kv(caches[0], caches[1], new_k, new_v, positions[:3], angle.cos(), angle.sin())


def test_same_inputs_same_bits(random):
    q, k = torch.randn(4, 8, 32, generator=random), torch.randn(4, 300, 32, generator=random)
    before = torch.softmax(torch.randn(4, 8, 300, generator=random), -1)
    first, again = proxy.proxy_drift(q, k, before), proxy.proxy_drift(q, k, before)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_path_must_be_one_that_runs(random):
    with pytest.raises(ValueError, match="'fast'"):
        nvfp4.quantize_nvfp4(torch.ones(2, 16), path="fast")
    with pytest.raises(ValueError, match="meta"):
        kmeans.assign(torch.ones(2, 16), torch.ones(2, 16, device="meta"))


def test_packets_hold_the_members_of_the_most_drifting_clusters():
    labels = torch.tensor([2, 0, 1, 1, 3, 0, 2])
    rows, selected = packet.select_packet(torch.tensor([0.5, 0.1, 0.9, 0.5]), labels, 2)
    assert selected.tolist() == [True, False, True, False], "the lower cluster first among equals"
    assert rows.tolist() == [0, 1, 5, 6, -1, -1, -1]
    assert packet.select_packet(torch.rand(4), labels, 0)[0].tolist() == [-1] * 7
    assert packet.select_packet(torch.rand(4), labels, 4)[0].tolist() == list(range(7))
    with pytest.raises(ValueError, match="k 5"):
        packet.select_packet(torch.rand(4), labels, 5)


def test_rows_go_out_of_the_store_and_back(random):
    store = torch.randint(0, 256, (6, 10), generator=random, dtype=torch.uint8)
    before = store.clone()
    rows = torch.tensor([4, 1, -1])
    out = packet.fetch_rows(store, rows, torch.zeros(3, 10, dtype=torch.uint8))
    assert torch.equal(out, torch.stack([store[4], store[1], torch.zeros(10, dtype=torch.uint8)]))
    packet.store_rows(store, rows, out + 1)
    assert torch.equal(store[[4, 1]], before[[4, 1]] + 1)
    assert torch.equal(store[[0, 2, 3, 5]], before[[0, 2, 3, 5]])
    with pytest.raises(ValueError, match=r"\(3, 9\)"):
        packet.store_rows(store, rows, torch.zeros(3, 9, dtype=torch.uint8))

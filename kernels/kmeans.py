"""Spherical k-means of the local window, assign and update (paper section 4.1; ALGORITHM, *Clustering*), for all layers in one launch.

Assignment is by cosine, the lowest index first among equals; a centroid is the plain mean of its members (float32), not normalised; a
cluster without members takes a given spare row. Nothing asks the device a question: random rows are drawn by the caller beforehand.
"""

import torch

from ._dispatch import constexpr, jit, launch, next_pow2, tl, use_triton


def assign_torch(x: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
    """The PyTorch reference of ``assign``; a row's own length does not change which cosine is largest."""
    z = torch.nn.functional.normalize(centroids.to(torch.float32), dim=-1)
    return torch.matmul(x.to(torch.float32), z.transpose(-1, -2)).argmax(-1)


def update_torch(x: torch.Tensor, labels: torch.Tensor, K: int, spare: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The PyTorch reference of ``update``."""
    x = x.to(torch.float32)
    member = torch.nn.functional.one_hot(labels, K).to(torch.float32)
    counts = member.sum(-2)
    means = torch.matmul(member.transpose(-1, -2), x).div_(counts.clamp(min=1.0).unsqueeze(-1))
    if spare is not None:
        rows = x.gather(-2, spare.to(torch.int64).unsqueeze(-1).expand(*spare.shape, x.shape[-1]))
        means = torch.where((counts > 0).unsqueeze(-1), means, rows)
    return means, counts.to(torch.int64)


@jit
def assign_kernel(x_ptr, z_ptr, label_ptr, d, K, W, BLOCK_K: constexpr, BLOCK_D: constexpr):
    """One program: one window row of one layer against all K centroids."""
    w = tl.program_id(0)
    n = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    dots = tl.zeros((BLOCK_K,), dtype=tl.float32)
    squares = tl.zeros((BLOCK_K,), dtype=tl.float32)
    for start in range(0, d, BLOCK_D):
        channel = start + tl.arange(0, BLOCK_D)
        x = tl.load(x_ptr + (n * W + w) * d + channel, mask=channel < d, other=0.0).to(tl.float32)
        z = tl.load(z_ptr + (n * K + k)[:, None] * d + channel[None, :], mask=(k < K)[:, None] & (channel < d)[None, :], other=0.0).to(tl.float32)
        dots += tl.sum(z * x[None, :], axis=1)
        squares += tl.sum(z * z, axis=1)
    cosine = tl.where(k < K, dots / tl.maximum(tl.sqrt(squares), 1e-12), float("-inf"))
    # argmax with the lowest index among equals
    best = tl.max(cosine, axis=0)
    tl.store(label_ptr + n * W + w, tl.min(tl.where(cosine == best, k, BLOCK_K - 1), axis=0).to(tl.int64))


@jit
def update_kernel(x_ptr, label_ptr, spare_ptr, z_ptr, count_ptr, d, K, W, HAS_SPARE: constexpr, BLOCK_K: constexpr, BLOCK_D: constexpr):
    """One program: BLOCK_D channels of all centroids of one layer; members are added in window order."""
    n = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = channel < d
    k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_K, BLOCK_D), dtype=tl.float32)
    count = tl.zeros((BLOCK_K,), dtype=tl.float32)
    for w in range(W):
        mine = tl.where(k == tl.load(label_ptr + n * W + w), 1.0, 0.0)
        x = tl.load(x_ptr + (n * W + w) * d + channel, mask=inside, other=0.0).to(tl.float32)
        acc += mine[:, None] * x[None, :]
        count += mine
    z = acc / tl.maximum(count, 1.0)[:, None]
    if HAS_SPARE:
        row = tl.load(spare_ptr + n * K + k, mask=k < K, other=0).to(tl.int64)
        other = tl.load(x_ptr + (n * W + row)[:, None] * d + channel[None, :], mask=(k < K)[:, None] & inside[None, :], other=0.0).to(tl.float32)
        z = tl.where((count > 0.0)[:, None], z, other)
    tl.store(z_ptr + (n * K + k)[:, None] * d + channel[None, :], z, mask=(k < K)[:, None] & inside[None, :])
    if tl.program_id(0) == 0:
        tl.store(count_ptr + n * K + k, count.to(tl.int64), mask=k < K)


def assign(x: torch.Tensor, centroids: torch.Tensor, *, path: str | None = None) -> torch.Tensor:
    """Labels int64 [n, W] of rows x [n, W, d] by cosine to centroids [n, K, d] (or without the layer dimension n, all of them)."""
    if x.ndim != centroids.ndim or x.ndim not in (2, 3) or x.shape[-1] != centroids.shape[-1] or x.shape[:-2] != centroids.shape[:-2]:
        raise ValueError(f"assign: x is {tuple(x.shape)}, centroids {tuple(centroids.shape)}; they must be [n, W, d] and [n, K, d].")
    if not use_triton(path, x, centroids):
        return assign_torch(x, centroids)
    *lead, W, d = x.shape
    K = centroids.shape[-2]
    labels = torch.empty(*lead, W, dtype=torch.int64, device=x.device)
    if labels.numel():
        block_k = next_pow2(K)
        launch(
            assign_kernel, (W, labels.numel() // W),
            x.contiguous(), centroids.contiguous(), labels, d, K, W, BLOCK_K=block_k, BLOCK_D=min(next_pow2(d), max(32, 4096 // block_k))
        )
    return labels


def update(
    x: torch.Tensor, labels: torch.Tensor, K: int, *, spare: torch.Tensor | None = None, path: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Means float32 [n, K, d] and member counts int64 [n, K] of rows x [n, W, d] with labels int64 [n, W] (n optional, in all).

    A cluster without members becomes row ``spare`` [n, K] (int, in [0, W)) of x, or zero without ``spare``; its count stays 0.
    """
    if x.ndim not in (2, 3) or labels.shape != x.shape[:-1] or labels.dtype != torch.int64:
        raise ValueError(f"update: x is {tuple(x.shape)}, labels {labels.dtype} {tuple(labels.shape)}; they must be [n, W, d] and int64 [n, W].")
    if spare is not None and spare.shape != (*x.shape[:-2], K):
        raise ValueError(f"update: spare is {tuple(spare.shape)}; for K = {K} it must be {(*x.shape[:-2], K)}.")
    if not use_triton(path, x, labels, spare):
        return update_torch(x, labels, K, spare)
    *lead, W, d = x.shape
    means = torch.empty(*lead, K, d, dtype=torch.float32, device=x.device)
    counts = torch.empty(*lead, K, dtype=torch.int64, device=x.device)
    layers = max(1, counts.numel() // K)
    block_k = next_pow2(K)
    block_d = min(next_pow2(d), max(32, 1024 // block_k))
    launch(
        update_kernel, (-(-d // block_d), layers),
        x.contiguous(), labels.contiguous(), labels if spare is None else spare.contiguous(), means, counts, d, K, W,
        HAS_SPARE=spare is not None, BLOCK_K=block_k, BLOCK_D=block_d, num_warps=1,
    )
    return means, counts


def spherical_kmeans(
    x: torch.Tensor, start: torch.Tensor, spare: torch.Tensor, *, path: str | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All iterations for all layers: x [n, W, d], first centroids = rows ``start`` [n, K], ``spare`` [iterations, n, K] rows for empty
    clusters.

    -> (labels int64 [n, W], centroids float32 [n, K, d], counts int64 [n, K]) as the last iteration left them.
    """
    centroids = x.gather(-2, start.unsqueeze(-1).expand(*start.shape, x.shape[-1])).to(torch.float32)
    labels = counts = None
    for rows in spare:
        labels = assign(x, centroids, path=path)
        centroids, counts = update(x, labels, start.shape[-1], spare=rows, path=path)
    if labels is None:
        raise ValueError(f"spherical_kmeans: spare is {tuple(spare.shape)}; its first dimension is the number of iterations, at least 1.")
    return labels, centroids, counts


def move_centroids(
    centroids: torch.Tensor, change: torch.Tensor, labels: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """Centroids [K, d] after members changed by ``change`` [m, d] (new - old hidden states; ``labels`` int64 [m], their clusters).

    Each moves by the summed change of its members over its size ``counts`` [K] (ALGORITHM step 3a). One small matrix product on any device.
    """
    member = torch.nn.functional.one_hot(labels, centroids.shape[0]).to(torch.float32)
    return centroids + torch.matmul(member.t(), change.to(torch.float32)).div_(counts.clamp(min=1).unsqueeze(-1)).to(centroids.dtype)

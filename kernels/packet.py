"""Which window rows an update packet holds, decided on the device, and their way between device and host (paper section 4.3; ALGORITHM step 3e).

A packet has a fixed size, the window's: ``select_packet`` puts the rows of the k most drifting clusters first and -1 behind them, so that nothing
waits for the device to tell a count. ``fetch_rows`` and ``store_rows`` move the packed residuals of those rows
out of and into pinned host memory, which the kernel addresses itself: the host need not know which rows. On the CPU the same calls index tensors.
"""

import torch

from ._dispatch import constexpr, jit, launch, next_pow2, tl, use_triton


def select_torch(scores: torch.Tensor, labels: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The PyTorch reference of ``select_packet``."""
    order = torch.argsort(scores, descending=True, stable=True)
    selected = torch.zeros_like(scores, dtype=torch.bool).index_fill_(0, order[:k], True)
    member = selected.index_select(0, labels)
    rows = torch.argsort(member.logical_not().to(torch.uint8), stable=True)
    return torch.where(torch.arange(len(labels), device=labels.device) < member.sum(), rows, -1), selected


@jit
def select_kernel(score_ptr, label_ptr, row_ptr, selected_ptr, K, W, k, BLOCK_K: constexpr, BLOCK_W: constexpr):
    """One program: rank the clusters (lowest index first among equals), mark the first k, compact their members."""
    c = tl.arange(0, BLOCK_K)
    score = tl.load(score_ptr + c, mask=c < K, other=float("-inf"))
    ahead = (score[None, :] > score[:, None]) | ((score[None, :] == score[:, None]) & (c[None, :] < c[:, None]))
    chosen = (tl.sum(ahead.to(tl.int32), axis=1) < k) & (c < K)
    tl.store(selected_ptr + c, chosen.to(tl.uint8), mask=c < K)
    w = tl.arange(0, BLOCK_W)
    label = tl.load(label_ptr + w, mask=w < W, other=-1)
    member = tl.sum(((label[:, None] == c[None, :]) & chosen[None, :]).to(tl.int32), axis=1)
    before = tl.cumsum(member, axis=0) - member
    total = tl.sum(member, axis=0)
    # Every slot is written once: members at their rank, the others behind them as padding.
    slot = tl.where(member > 0, before, total + w - before)
    tl.store(row_ptr + slot, tl.where(member > 0, w, -1).to(tl.int64), mask=w < W)


@jit
def move_kernel(from_ptr, to_ptr, row_ptr, N, STORE: constexpr, BLOCK_N: constexpr):
    """One program: one packet row of N bytes, from store row to packet row, or (STORE) back; padding is not moved."""
    m = tl.program_id(0).to(tl.int64)
    row = tl.load(row_ptr + m).to(tl.int64)
    if row >= 0:
        at = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        source = row
        target = m
        if STORE:
            source = m
            target = row
        tl.store(to_ptr + target * N + at, tl.load(from_ptr + source * N + at, mask=at < N, other=0), mask=at < N)


def select_packet(scores: torch.Tensor, labels: torch.Tensor, k: int, *, path: str | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the k clusters of highest score: scores float [K], labels int64 [W] -> (rows int64 [W], selected bool [K]).

    ``rows``: window rows whose cluster is selected, ascending, then -1. Equal scores: the lower cluster first. NaN scores are not allowed.
    """
    if scores.ndim != 1 or labels.ndim != 1 or not 0 <= k <= scores.shape[0]:
        raise ValueError(f"select_packet: scores are {tuple(scores.shape)}, labels {tuple(labels.shape)}, k {k}; they must be [K], [W], 0 <= k <= K.")
    if not use_triton(path, scores, labels):
        return select_torch(scores, labels, k)
    rows = torch.empty_like(labels, dtype=torch.int64)
    selected = torch.empty(scores.shape, dtype=torch.uint8, device=scores.device)
    launch(
        select_kernel, (1,), scores.contiguous(), labels.contiguous(), rows, selected, scores.shape[0], labels.shape[0], k,
        BLOCK_K=next_pow2(scores.shape[0]), BLOCK_W=next_pow2(labels.shape[0]),
    )
    return rows, selected.view(torch.bool)


def fetch_rows(store: torch.Tensor, rows: torch.Tensor, out: torch.Tensor, *, path: str | None = None) -> torch.Tensor:
    """Packet rows out of a store: ``out``[i] = ``store``[rows[i]] (uint8 [W, n], pinned host memory or the device) where rows[i] >= 0; returns ``out`` [m, n].

    Rows of ``out`` behind a negative row keep what they held.
    """
    _check(store, rows, out, "fetch_rows")
    if use_triton(path, store, rows, out, pinned_ok=True):
        _move(store, out, rows, False)
    else:
        keep = rows >= 0
        out[keep] = store.index_select(0, rows[keep].to(store.device)).to(out.device)
    return out


def store_rows(store: torch.Tensor, rows: torch.Tensor, packet: torch.Tensor, *, path: str | None = None) -> None:
    """The way back: ``store``[rows[i]] = ``packet``[i] where rows[i] >= 0, in place."""
    _check(store, rows, packet, "store_rows")
    if use_triton(path, packet, rows, store, pinned_ok=True):
        _move(packet, store, rows, True)
    else:
        keep = rows >= 0
        store.index_copy_(0, rows[keep].to(store.device), packet[keep].to(store.device))


def _check(store, rows, packet, what: str) -> None:
    fits = store.ndim == packet.ndim == 2 and rows.shape == packet.shape[:1] and store.shape[1] == packet.shape[1]
    if not fits or store.dtype != torch.uint8 or packet.dtype != torch.uint8 or not (store.is_contiguous() and packet.is_contiguous()):
        raise ValueError(
            f"{what}: store is {store.dtype} {tuple(store.shape)}, rows {tuple(rows.shape)}, packet {packet.dtype} {tuple(packet.shape)}; "
            "they must be contiguous uint8 [W, n], [m] and [m, n]."
        )


def _move(source, target, rows, store: bool) -> None:
    n, m = source.shape[1], rows.shape[0]
    if m and n:
        # Eight bytes a lane where the rows allow it, so that reads across the bus are wide.
        if n % 8 == 0:
            source, target, n = source.view(torch.int64), target.view(torch.int64), n // 8
        block = min(512, next_pow2(n))
        launch(move_kernel, (m, -(-n // block)), source, target, rows, n, STORE=store, BLOCK_N=block)

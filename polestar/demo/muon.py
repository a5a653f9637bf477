"""Muon for the matrices of the layers, Adam for embedding, head and norms.

Contract: `Muon.step` moves every matrix along its momentum made nearly orthogonal by a few Newton-Schulz steps (Jordan et al., 2024). Matrices of
one shape are handled as one batch. State is saved and loaded by `state_dict`.
"""

from __future__ import annotations

from concurrent.futures import Executor

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # quintic iteration of the Muon paper


def orthogonalise(g: Tensor, steps: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    """Matrices [n, r, c] -> nearly orthogonal ones with the same row and column spaces; products in `dtype`, result float32."""
    a, b, c = COEFFICIENTS
    tall = g.shape[-2] > g.shape[-1]
    x = g.mT if tall else g
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(dtype)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon:
    """Keyword-only; `matrices` are 2-d parameters, `others` go to Adam, `dtype` is that of the Newton-Schulz products."""

    def __init__(
        self, *, matrices: list[nn.Parameter], others: list[nn.Parameter], lr: float = 0.01, adam_lr: float = 3e-3, dtype: torch.dtype = torch.float32
    ):
        self.matrices, self.others, self.lr, self.adam_lr, self.dtype = matrices, others, lr, adam_lr, dtype
        self.momentum = [torch.zeros_like(p) for p in matrices]
        self.adam = torch.optim.Adam(others, lr=adam_lr, betas=(0.9, 0.98), eps=1e-9)
        self.groups: dict[torch.Size, list[int]] = {}
        for i, p in enumerate(matrices):
            self.groups.setdefault(p.shape, []).append(i)

    @torch.no_grad()
    def step(self, grads: list[Tensor], *, scale: float, beta: float, pool: Executor | None = None) -> None:
        """One update with the gradients of `matrices`, then of `others`; `scale` multiplies both learning rates, `beta` is Muon's momentum (Nesterov)."""
        mine, rest = grads[: len(self.matrices)], grads[len(self.matrices) :]

        def move(item: tuple[torch.Size, list[int]]) -> None:
            shape, members = item
            grad = torch.stack([mine[i] for i in members])
            moments = torch.stack([self.momentum[i] for i in members]).mul_(beta).add_(grad, alpha=1 - beta)
            update = orthogonalise(grad.mul_(1 - beta).add_(moments, alpha=beta), dtype=self.dtype)
            rate = self.lr * scale * max(1.0, shape[0] / shape[1]) ** 0.5
            for j, i in enumerate(members):
                self.momentum[i].copy_(moments[j])
                self.matrices[i].data.sub_(update[j], alpha=rate)

        list((pool.map if pool else map)(move, self.groups.items()))
        for parameter, grad in zip(self.others, rest, strict=True):
            parameter.grad = grad
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * scale
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)

    def state_dict(self) -> dict:
        return {"momentum": self.momentum, "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        for mine, theirs in zip(self.momentum, state["momentum"], strict=True):
            mine.copy_(theirs)
        self.adam.load_state_dict(state["adam"])

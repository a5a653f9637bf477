"""The canvas: token ids of prompt and generation, some of them [MASK].

Contract: tokens are kept on the model's device for the passes, and mirrored on the host for every decision, so that asking what is masked never
waits for a device. Only `put` changes it (and `edit`, for a person's changes before a run).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor


class Canvas:
    """Token ids of L = prompt + generation positions; the generation starts as [MASK]."""

    def __init__(self, prompt_ids: Sequence[int], gen_length: int, mask_id: int, device: torch.device | str):
        self.mask_id = mask_id
        self.prompt_length = len(prompt_ids)
        self.host = torch.full((len(prompt_ids) + gen_length,), mask_id, dtype=torch.int64)
        self.host[: len(prompt_ids)] = torch.tensor(list(prompt_ids), dtype=torch.int64)
        self.device = torch.device(device)
        self.tokens: Int[Tensor, "L"] = self.host if self.device.type == "cpu" else self.host.to(device)

    def __len__(self) -> int:
        return self.host.shape[0]

    def masked(self, start: int, end: int) -> Int[Tensor, "m"]:
        """Generated positions in [start, end) that hold [MASK], on the host. Prompt positions never count."""
        start = max(start, self.prompt_length)
        return (self.host[start:end] == self.mask_id).nonzero()[:, 0] + start

    def put(self, positions: Int[Tensor, "m"], tokens: Int[Tensor, "m"]) -> None:
        """Commit `tokens` at `positions` (host tensors)."""
        self.host[positions] = tokens
        if self.tokens is not self.host:
            self.tokens[positions.to(self.device)] = tokens.to(self.device)

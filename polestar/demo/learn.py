"""Loss and gradient of a batch, fast on small models: joined projections, bfloat16 products, the last layer's MLP only where something is learnt.

Contract: `hidden_states` is the arithmetic of `Transformer.forward` up to the final norm, at chosen positions; weights and residual stream stay float32.
`gradients` works on several batches at once, one a worker thread; its result does not depend on how many workers there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polestar.demo.batches import Batch
from polestar.models.transformer import Transformer


def product_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the machine multiplies it natively (about 2.4 times as fast as float32 on such CPUs), else float32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    native = device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported() and torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def hidden_states(model: Transformer, tokens: Tensor, at: Tensor, dtype: torch.dtype) -> Tensor:
    """Residual stream [m, d] after the last layer at the m positions where `at` [n, L] is true, for `tokens` [n, L]."""
    cos, sin = (x.to(dtype) for x in model.rope(tokens.shape[-1]))
    x = model.embed(tokens)
    for index, layer in enumerate(model.layers):
        heads, size = layer.n_heads, layer.head_dim
        weight = torch.cat((layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight)).to(dtype)
        qkv = F.linear(layer.attn_norm(x).to(dtype), weight).unflatten(-1, (-1, size)).transpose(1, 2)
        qk, v = qkv[:, : heads + layer.n_kv_heads], qkv[:, heads + layer.n_kv_heads :]
        a, b = qk.chunk(2, -1)
        qk = qk * cos + torch.cat((-b, a), -1) * sin
        q, k = qk[:, :heads], qk[:, heads:]
        # Written out: at these sizes the fused attention of the CPU is slower, forward and back.
        out = torch.softmax((q * size**-0.5) @ k.mT, -1) @ v
        mixed = out.transpose(1, 2).flatten(-2)
        if index == len(model.layers) - 1:
            x, mixed = x[at], mixed[at]
        x = x + F.linear(mixed, layer.o_proj.weight.to(dtype))
        weight = torch.cat((layer.gate_proj.weight, layer.up_proj.weight)).to(dtype)
        gate, up = F.linear(layer.mlp_norm(x).to(dtype), weight).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, layer.down_proj.weight.to(dtype))
    return x


def loss_of(model: Transformer, batch: Batch, dtype: torch.dtype = torch.float32) -> Tensor:
    """Weighted mean cross-entropy over the masked positions. The model has as many key heads as query heads and no biases."""
    weights = torch.from_numpy(batch.weights).to(model.device)
    at = weights > 0
    x = hidden_states(model, torch.from_numpy(batch.inputs).to(model.device), at, dtype)
    logits = F.linear(model.norm(x).to(dtype), model.head.weight.to(dtype))
    losses = F.cross_entropy(logits.float(), torch.from_numpy(batch.targets).to(model.device)[at], reduction="none")
    return (losses * weights[at]).sum() / weights[at].sum()


def gradients(
    model: Transformer, parameters: Sequence[nn.Parameter], batches: Sequence[Batch], dtype: torch.dtype, pool: Executor | None = None
) -> tuple[float, list[Tensor]]:
    """Mean loss of the batches and its gradient for each parameter."""

    def one(batch: Batch) -> tuple[float, tuple[Tensor, ...]]:
        loss = loss_of(model, batch, dtype)
        return loss.item(), torch.autograd.grad(loss, parameters)

    found = list((pool.map if pool else map)(one, batches))
    total = list(found[0][1])
    for _, more in found[1:]:
        torch._foreach_add_(total, list(more))
    torch._foreach_div_(total, len(found))
    return sum(loss for loss, _ in found) / len(found), total

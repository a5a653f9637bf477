"""One bidirectional transformer for every family of masked diffusion LLM.

Contract: `Transformer.run(plan, tokens, kv)` runs a `ForwardPlan`; it knows no decoding method, no tokenizer and no file. Pre-norm RMSNorm, rotary
positions in float32, SwiGLU; optional grouped-query attention, QKV bias, q/k norm and tied head. Families (LLaDA, Dream, ...)
are a config translation and a weight-name map onto this class (`polestar.models.families`).
`Transformer.forward(tokens)` is the plain batched pass, used for training and as the oracle of tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from polestar.cache.kv import KVStore
from polestar.clock import PhaseClock
from polestar.plan import ForwardPlan, LayerCall, LayerHook, LayersResult, PassResult, Rows


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape and special ids of a checkpoint. `shift`: logits of row i - 1 predict position i (Dream)."""

    family: str
    vocab_size: int  # rows of the embedding and of the head
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    mlp_hidden: int
    max_length: int
    rope_theta: float
    norm_eps: float
    mask_id: int
    eos_id: int
    pad_id: int
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()  # every id that counts as [EOS] in the metrics; (eos_id,) when empty
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_head: bool = False
    shift: bool = False

    def __post_init__(self):
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}; correct the model's config")
        if not self.eos_ids:
            object.__setattr__(self, "eos_ids", (self.eos_id,))


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the division in float32 whatever the dtype of x."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        if x.dtype == torch.float32:
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return self.weight * F.rms_norm(x.float(), x.shape[-1:], None, self.eps).to(x.dtype)


def rotate(x: Float[Tensor, "*n h r hd"], cos: Float[Tensor, "r hd"], sin: Float[Tensor, "r hd"]) -> Float[Tensor, "*n h r hd"]:
    """Rotary positions (half-split convention), computed in float32, returned in the dtype of `x`."""
    y = x.float()
    a, b = y.chunk(2, -1)
    return torch.addcmul(y * cos, torch.cat((-b, a), -1), sin).to(x.dtype)


class Layer(nn.Module):
    """Attention and MLP weights of one layer, and the arithmetic on rows."""

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        d, q, kv = cfg.d_model, cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim
        self.n_heads, self.n_kv_heads, self.head_dim = cfg.n_heads, cfg.n_kv_heads, cfg.head_dim
        self.attn_norm = RMSNorm(d, cfg.norm_eps)
        self.q_proj = nn.Linear(d, q, bias=cfg.qkv_bias)
        self.k_proj = nn.Linear(d, kv, bias=cfg.qkv_bias)
        self.v_proj = nn.Linear(d, kv, bias=cfg.qkv_bias)
        self.o_proj = nn.Linear(q, d, bias=False)
        self.q_norm = RMSNorm(cfg.head_dim, cfg.norm_eps) if cfg.qk_norm else None
        self.k_norm = RMSNorm(cfg.head_dim, cfg.norm_eps) if cfg.qk_norm else None
        self.mlp_norm = RMSNorm(d, cfg.norm_eps)
        self.gate_proj = nn.Linear(d, cfg.mlp_hidden, bias=False)
        self.up_proj = nn.Linear(d, cfg.mlp_hidden, bias=False)
        self.down_proj = nn.Linear(cfg.mlp_hidden, d, bias=False)

    def queries(self, normed: Float[Tensor, "*n r d"]) -> Float[Tensor, "*n h r hd"]:
        """Un-rotated queries of rows that went through `attn_norm`."""
        q = self.q_proj(normed).unflatten(-1, (self.n_heads, self.head_dim))
        return (q if self.q_norm is None else self.q_norm(q)).transpose(-3, -2)

    def keys(self, normed: Float[Tensor, "*n r d"]) -> Float[Tensor, "*n kv r hd"]:
        """Un-rotated keys of rows that went through `attn_norm`."""
        k = self.k_proj(normed).unflatten(-1, (self.n_kv_heads, self.head_dim))
        return (k if self.k_norm is None else self.k_norm(k)).transpose(-3, -2)

    def values(self, normed: Float[Tensor, "*n r d"]) -> Float[Tensor, "*n kv r hd"]:
        """Values of rows that went through `attn_norm`."""
        return self.v_proj(normed).unflatten(-1, (self.n_kv_heads, self.head_dim)).transpose(-3, -2)

    def scores(self, q: Float[Tensor, "h r hd"], k: Float[Tensor, "kv L hd"]) -> Float[Tensor, "h r L"]:
        """Attention probabilities in float32: softmax of q k^T / sqrt(head_dim), keys shared within a group of heads."""
        group = self.n_heads // self.n_kv_heads
        grouped = q.reshape(self.n_kv_heads, group * q.shape[-2], self.head_dim)
        logits = torch.matmul(grouped, k.transpose(-1, -2)).float().mul_(self.head_dim**-0.5)
        return torch.softmax(logits, -1).view(self.n_heads, q.shape[-2], k.shape[-2])

    def attend(self, q: Float[Tensor, "*n h r hd"], k: Float[Tensor, "*n kv L hd"], v: Float[Tensor, "*n kv L hd"]) -> Float[Tensor, "*n r q"]:
        """Attention output of rotated queries over all keys, heads joined, before `o_proj`."""
        batched = q if q.dim() == 4 else q[None]
        keys, values = (k, v) if k.dim() == 4 else (k[None], v[None])
        out = F.scaled_dot_product_attention(batched, keys, values, enable_gqa=self.n_kv_heads != self.n_heads)
        out = out.transpose(1, 2).flatten(-2)
        return out if q.dim() == 4 else out[0]

    def weigh(self, probs: Float[Tensor, "h r L"], v: Float[Tensor, "kv L hd"]) -> Float[Tensor, "r q"]:
        """Attention output from probabilities already computed, heads joined, before `o_proj`."""
        grouped = probs.to(v.dtype).view(self.n_kv_heads, -1, probs.shape[-1])
        out = torch.matmul(grouped, v).view(self.n_heads, probs.shape[1], self.head_dim)
        return out.transpose(0, 1).flatten(-2)

    def mlp(self, x: Float[Tensor, "*n r d"]) -> Float[Tensor, "*n r d"]:
        """SwiGLU of the normed rows, without the residual."""
        y = self.mlp_norm(x)
        return self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class Transformer(nn.Module):
    """The mask predictor. Parameters: `embed`, `layers`, `norm`, `head` (tied to `embed` when the config says so)."""

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(cfg.vocab_size, cfg.d_model)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.n_layers))
        self.norm = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.head = nn.Linear(cfg.d_model, cfg.vocab_size, bias=False)
        if cfg.tied_head:
            self.head.weight = self.embed.weight
        self._rope: tuple[Tensor, Tensor] | None = None

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    # -- positions

    def rope(self, length: int) -> tuple[Float[Tensor, "L hd"], Float[Tensor, "L hd"]]:
        """cos and sin of the first `length` positions, float32, built once and grown when needed."""
        if self._rope is None or self._rope[0].shape[0] < length or self._rope[0].device != self.device:
            half = torch.arange(0, self.cfg.head_dim, 2, dtype=torch.float32, device=self.device) / self.cfg.head_dim
            angle = torch.outer(torch.arange(length, dtype=torch.float32, device=self.device), 1.0 / self.cfg.rope_theta**half)
            angle = torch.cat((angle, angle), -1)
            self._rope = (angle.cos(), angle.sin())
        return self._rope[0][:length], self._rope[1][:length]

    def rows(self, which: tuple[int, int] | Int[Tensor, "r"], length: int) -> Rows:
        """`Rows` for (start, end) or for sorted positions, of a canvas of `length`."""
        cos, sin = self.rope(length)
        if isinstance(which, tuple):
            start, end = which
            return Rows(index=torch.arange(start, end, device=self.device), cos=cos[start:end], sin=sin[start:end], span=(start, end))
        return Rows(index=which, cos=cos[which], sin=sin[which])

    def row_for(self, positions: Int[Tensor, "m"]) -> Int[Tensor, "m"]:
        """The row whose logits predict each position: itself, or the one before (`shift`; position 0 predicts itself)."""
        return (positions - 1).clamp(min=0) if self.cfg.shift else positions

    def span_for(self, start: int, end: int) -> tuple[int, int]:
        """Rows to feed so that every position of [start, end) gets its K/V and its logits."""
        return (max(0, start - 1), end) if self.cfg.shift else (start, end)

    # -- a pass by plan

    def new_store(self, length: int, *, raw_keys: bool = False) -> KVStore:
        """An empty K/V store for a canvas of `length` positions."""
        c = self.cfg
        return KVStore(
            n_layers=c.n_layers, n_kv_heads=c.n_kv_heads, length=length, head_dim=c.head_dim, dtype=self.dtype, device=self.device, raw_keys=raw_keys
        )

    @torch.inference_mode()
    def run(self, plan: ForwardPlan, tokens: Int[Tensor, "L"], kv: KVStore, clock: PhaseClock) -> PassResult:
        """Run one plan: K/V of the fed rows are replaced in `kv`, logits come back for `plan.logits_for` only."""
        return self.answer(plan, self.run_layers(plan, self.rows(plan.rows, kv.length), tokens, kv, clock), clock)

    @torch.inference_mode()
    def run_layers(self, plan: ForwardPlan, rows: Rows, tokens: Int[Tensor, "L"], kv: KVStore, clock: PhaseClock) -> LayersResult:
        """The part of a plan that does not depend on which positions want logits: from the embedding of `rows`, the plan's, through the last layer."""
        x = self.embed(tokens[rows.span[0] : rows.span[1]] if rows.span else tokens[rows.index])
        layers = plan.attention_layers if plan.attention_layers is not None else frozenset((self.cfg.n_layers - 1,))
        call = LayerCall(self, kv, clock, tokens, plan.attention_for, layers, {}, before=plan.attention_before)
        hook = plan.hook or LayerHook()
        hook.begin(call)
        for layer in range(self.cfg.n_layers):
            last_input = x
            call.fed.append(len(rows))
            x, rows = hook.layer(call, layer, x, rows)
        return LayersResult(call=call, rows=rows, hidden=x, last_input=last_input)

    @torch.inference_mode()
    def answer(self, plan: ForwardPlan, layers: LayersResult, clock: PhaseClock) -> PassResult:
        """The head, on the rows that predict the positions of `plan.logits_for`."""
        call, rows = layers.call, layers.rows
        logits = self.logits(layers.hidden[rows.locate(self.row_for(plan.logits_for))])
        clock.lap("head")
        return PassResult(
            hidden=layers.hidden, rows=rows, logits=logits, attentions=call.attentions, attention_for=plan.attention_for, last_input=layers.last_input,
            layer_rows=call.fed, reason=call.reason, drift=call.drift,
        )

    def write_kv(self, layer: int, normed: Float[Tensor, "r d"], rows: Rows, kv: KVStore) -> None:
        """K,V of rows that went through the layer's input norm, written in place."""
        block = self.layers[layer]
        raw = block.keys(normed)
        kv.write(layer, rows, raw, rotate(raw, rows.cos, rows.sin), block.values(normed))

    def run_layer(self, layer: int, x: Float[Tensor, "r d"], rows: Rows, kv: KVStore, *, clock: PhaseClock) -> Float[Tensor, "r d"]:
        """One layer on `rows`: their K/V are written, their queries attend to every key of the store."""
        block = self.layers[layer]
        normed = block.attn_norm(x)
        self.write_kv(layer, normed, rows, kv)
        q = rotate(block.queries(normed), rows.cos, rows.sin)
        x = x + block.o_proj(block.attend(q, kv.k[layer], kv.v[layer]))
        clock.lap("attention")
        x = x + block.mlp(x)
        clock.lap("mlp")
        return x

    def run_layer_keeping(
        self, layer: int, x: Float[Tensor, "r d"], rows: Rows, kv: KVStore, keep: tuple[int, int] | None, *, clock: PhaseClock,
        attention: Callable[[int, Tensor], Tensor] | None = None,
    ) -> tuple[Float[Tensor, "r d"], Float[Tensor, "h b L"]]:
        """`run_layer`, also returning the attention probabilities (float32) of the positions [keep[0], keep[1]), or of all rows (None).

        Only those rows pay for materialised probabilities where rows are contiguous; the rest go through fused attention. `attention(layer, queries)`
        may supply the probabilities of rotated queries [h, b, hd] in place of the layer's `scores`.
        """
        block = self.layers[layer]
        normed = block.attn_norm(x)
        self.write_kv(layer, normed, rows, kv)
        q = rotate(block.queries(normed), rows.cos, rows.sin)
        if keep is None or rows.span is None:
            every = block.scores(q, kv.k[layer])
            mixed = block.weigh(every, kv.v[layer])
            probs = every if keep is None else every[:, rows.locate(torch.arange(*keep, device=x.device))]
        else:
            a, b = keep[0] - rows.span[0], keep[1] - rows.span[0]
            probs = block.scores(q[:, a:b], kv.k[layer]) if attention is None else attention(layer, q[:, a:b])
            parts = [block.weigh(probs, kv.v[layer])]
            if a > 0:
                parts.insert(0, block.attend(q[:, :a], kv.k[layer], kv.v[layer]))
            if b < len(rows):
                parts.append(block.attend(q[:, b:], kv.k[layer], kv.v[layer]))
            mixed = torch.cat(parts) if len(parts) > 1 else parts[0]
        x = x + block.o_proj(mixed)
        clock.lap("attention")
        x = x + block.mlp(x)
        clock.lap("mlp")
        return x, probs

    def query_layer(self, layer: int, x: Float[Tensor, "r d"], rows: Rows, kv: KVStore) -> Float[Tensor, "r d"]:
        """One layer on `rows` as queries only: the store is read, not written (an update packet's layer)."""
        block = self.layers[layer]
        q = rotate(block.queries(block.attn_norm(x)), rows.cos, rows.sin)
        x = x + block.o_proj(block.attend(q, kv.k[layer], kv.v[layer]))
        return x + block.mlp(x)

    def logits(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n V"]:
        """Final norm and head."""
        return self.head(self.norm(hidden))

    # -- the plain pass

    def forward(self, tokens: Int[Tensor, "N L"]) -> Float[Tensor, "N L V"]:
        """Logits of whole sequences, full bidirectional attention, no cache; differentiable."""
        cos, sin = self.rope(tokens.shape[-1])
        x = self.embed(tokens)
        for block in self.layers:
            normed = block.attn_norm(x)
            q, k = rotate(block.queries(normed), cos, sin), rotate(block.keys(normed), cos, sin)
            x = x + block.o_proj(block.attend(q, k, block.values(normed)))
            x = x + block.mlp(x)
        return self.logits(x)

"""Decodes on a GPU: time per layer and step (Figure 12), memory over a decode (Figure 13), tokens per second at equal NFE. Part of `bench gpu`.

Contract: models have random weights in a checkpoint's shape; one token is committed per pass (tau_s above 1), so every method runs the same number of
passes and Polestar refreshes as often as tau_upd makes it. Numbers that this device or engine cannot give are None, never estimates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import median

import torch

from kernels._dispatch import force_path
from polestar import graphs
from polestar.bench import straight
from polestar.config import DecodeConfig
from polestar.driver import Decoder
from polestar.models.transformer import ModelConfig, Transformer

# Published shapes; ids at the end of the vocabulary stand in for the real ones.
LLADA_8B = ModelConfig(
    family="llada", vocab_size=126464, d_model=4096, n_layers=32, n_heads=32, n_kv_heads=32, head_dim=128, mlp_hidden=12288, max_length=4096,
    rope_theta=500000.0, norm_eps=1e-5, mask_id=126336, eos_id=126081, pad_id=126081,
)  # fmt: skip
DREAM_7B = ModelConfig(
    family="dream", vocab_size=152064, d_model=3584, n_layers=28, n_heads=28, n_kv_heads=4, head_dim=128, mlp_hidden=18944, max_length=4096,
    rope_theta=1000000.0, norm_eps=1e-6, mask_id=151666, eos_id=151643, pad_id=151643, qkv_bias=True, shift=True,
)  # fmt: skip
SHAPES = {"LLaDA-8B": LLADA_8B, "Dream-7B": DREAM_7B}
METHODS = ("vanilla", "fast-dllm-dual", "polestar")
ARMS = {  # of Figure 12
    "unoptimised": "unfused and synchronous: PyTorch in place of every kernel, packet rows as a layer of their own, the device asked how many rows a packet "
    "has, one stream (clustering, proxy attention and offload in turn with the passes), packed states fetched when a layer needs them",
    "optimised": "what a decode does by itself on this device: kernels, main and packet rows in one batch, packets of a fixed size, a side stream, packed "
    "states fetched a layer ahead",
}
RECORDED = {  # where CUDA graphs can be; whole passes only, since a recorded pass has no parts to tell apart
    "on the device": "as optimised, but with packed states on the device: what the next arm is to be compared with",
    "graphs": "as on the device, with plain and refresh passes recorded as CUDA graphs and replayed; the first passes of a kind in a block, run and recorded, "
    "count too",
}
PARTS = ("clustering", "proxy", "packets", "offload")  # phases that only Polestar has


def parameters(cfg: ModelConfig) -> int:
    """Weights of a model of this shape."""
    q, kv = cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim
    layer = cfg.d_model * (2 * q + 2 * kv + 3 * cfg.mlp_hidden + 2) + (q + 2 * kv if cfg.qkv_bias else 0)
    return cfg.n_layers * layer + cfg.d_model * (cfg.vocab_size * (1 if cfg.tied_head else 2) + 1)


def random_model(cfg: ModelConfig, device: torch.device, dtype: torch.dtype) -> Transformer:
    """Random weights made on the device: nothing is downloaded, and the host never holds the model."""
    with torch.device("meta"):
        model = Transformer(cfg)
    model = model.to(dtype).to_empty(device=device).eval().requires_grad_(False)
    generator = torch.Generator(device=device).manual_seed(0)
    for name, tensor in model.named_parameters():
        if tensor.dim() == 1:
            tensor.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            tensor.normal_(std=1.0 if name.startswith("embed") else tensor.shape[1] ** -0.5, generator=generator)
    return model


def config_for(method: str, gen_length: int, block_length: int) -> DecodeConfig:
    """One token per pass, whatever the method."""
    values = {"gen_length": gen_length, "block_length": block_length}
    if method != "vanilla":
        values["tau_s"] = 2.0
    if method == "polestar":
        values |= {"tau_suf": 2.0, "alpha": 1e6}
    return DecodeConfig.make(method=method, **values)


def prompt_for(cfg: ModelConfig, length: int) -> list[int]:
    """Random ordinary tokens."""
    return torch.randint(0, min(cfg.mask_id, cfg.eos_id), (length,), generator=torch.Generator().manual_seed(1)).tolist()


def _memory(device: torch.device, *, peak: bool = False) -> int | None:
    if device.type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(device) if peak else torch.cuda.memory_allocated(device)


def decode(model: Transformer, prompt: list[int], config: DecodeConfig, *, level: str, prepare: Callable[[Decoder], Decoder] | None = None) -> dict:
    """One whole decode after a warm-up pass: the steps' times and phases, the memory after each, and the tokens. `prepare`: done to the decoder before."""
    device = model.device
    decoder = Decoder(model, prompt, config, level=level)
    if prepare is not None:
        prepare(decoder)
    decoder.warm_up()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    steps, memory, pinned = [], [], 0
    while (step := decoder.step()) is not None:
        steps.append(step)
        memory.append(_memory(device))
        states = getattr(getattr(decoder.cache, "window", None), "states", None)
        pinned = max(pinned, getattr(states, "pinned_bytes", 0))
    ids = decoder.run.canvas.host[len(prompt) :].tolist()
    out = {
        "method": config.method, "nfe": len(steps), "seconds": sum(s.seconds for s in steps), "tokens": ids, "steps": steps,
        "memory": memory, "peak_bytes": _memory(device, peak=True), "pinned_bytes": pinned,
    }  # fmt: skip
    decoder.release()
    return out


def passes_by_kind(steps: list) -> dict[str, list]:
    """Steps as Figure 12 groups them: block entries by kind, plain and refresh passes within a block. The first entry, still warming up, is left out."""
    groups = defaultdict(list)
    for step in steps[1:]:
        groups["refresh" if step.refresh else "plain" if step.kind == "within" else step.kind].append(step)
    return groups


def recorder(model: Transformer) -> Callable[[Decoder], Decoder] | None:
    """What makes a decoder record its passes; None where this device cannot."""
    return None if graphs.why_not(model) else graphs.use


def figure_12(
    model: Transformer, prompt: list[int], gen_length: int, block_length: int, record: Callable[[Decoder], Decoder] | None = None
) -> dict:
    """Milliseconds per layer and step of every part, in both `ARMS`, which commit the same tokens up to rounding; with `record` in those `RECORDED` too.
    `added_ms` is what Polestar adds on the critical path: a refresh pass minus a plain pass, and a full entry minus Fast-dLLM's, per layer; it is
    taken from whole passes without phase marks, so overlapped work counts only where it delays the pass.
    """
    n = model.cfg.n_layers
    dual = passes_by_kind(decode(model, prompt, config_for("fast-dllm-dual", gen_length, block_length), level="off")["steps"])
    out = {}
    config = config_for("polestar", gen_length, block_length)
    arms = list(zip(ARMS, ("torch", None), (config, config), (straight.use, None), strict=True))
    if record is not None:
        arms += zip(RECORDED, (None, None), 2 * (config.replace(offload="off"),), (None, record), strict=True)
    for name, path, config, prepare in arms:
        with force_path(path):
            marked = passes_by_kind(decode(model, prompt, config, level="steps", prepare=prepare)["steps"]) if name in ARMS else {}
            timed = passes_by_kind(decode(model, prompt, config, level="off", prepare=prepare)["steps"])
        parts = {kind: {} for kind in marked}
        for kind, steps in marked.items():
            for part in sorted({p for s in steps for p in s.phases} - {"log"}):
                parts[kind][part] = 1e3 * median([s.phases.get(part, 0.0) for s in steps]) / n
        whole = {kind: 1e3 * median([s.seconds for s in steps]) / n for kind, steps in timed.items()}
        parts = parts or {kind: {} for kind in whole}

        def added(kind: str, base: float | None, whole: dict = whole) -> float | None:
            return whole[kind] - base if kind in whole and base is not None else None

        entry = 1e3 * median([s.seconds for s in dual["entry-full"]]) / n if dual.get("entry-full") else None
        out[name] = {"parts_ms": parts, "pass_ms": whole, "added_within_ms": added("refresh", whole.get("plain")), "added_entry_ms": added("entry-full", entry)}
    return out


def figure_13_and_speed(
    model: Transformer, prompt: list[int], gen_length: int, block_length: int, record: Callable[[Decoder], Decoder] | None = None
) -> list[dict]:
    """Each method once at equal NFE: tokens a second over all positions, peak memory, the memory curve (bytes after each pass).

    With `record` also those with a cache, their passes recorded; Polestar's packed states are then on the device, in a row without recordings as well.
    """
    configs = {method: config_for(method, gen_length, block_length) for method in METHODS}
    rows = [(method, config, None) for method, config in configs.items()]
    if record is not None:
        resident = configs["polestar"].replace(offload="off")
        rows += [("fast-dllm-dual, graphs", configs["fast-dllm-dual"], record)]
        rows += [("polestar, on the device", resident, None), ("polestar, graphs", resident, record)]
    out = []
    for name, config, prepare in rows:
        run = decode(model, prompt, config, level="off", prepare=prepare)
        groups = passes_by_kind(run["steps"])
        out.append(
            {
                "method": name, "nfe": run["nfe"], "seconds": run["seconds"], "tps_all": gen_length / run["seconds"], "peak_bytes": run["peak_bytes"],
                "pinned_bytes": run["pinned_bytes"], "memory": run["memory"], "refreshes": len(groups["refresh"]),
            }
        )  # fmt: skip
    return out

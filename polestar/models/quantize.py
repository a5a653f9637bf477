"""8-bit and 4-bit weights through bitsandbytes, an optional extra.

Contract: `put_quantized(...)` is a way to place tensors (`polestar.models.weights.fill`): projections of the layers are quantised as they
arrive, everything else stays in the arithmetic dtype. Nothing is imported before it is asked for. Raises ValueError in one sentence
when bitsandbytes is absent or cannot run on the device.
"""

from __future__ import annotations

import logging
from types import ModuleType

import torch
from torch import Tensor, nn

from polestar.models.transformer import Transformer
from polestar.models.weights import Put, put_plain

BLOCK = 64  # weights that share a scale in NF4


def library(quantize: str) -> ModuleType:
    """bitsandbytes, or ValueError saying how to get it."""
    try:
        import bitsandbytes
    except Exception as error:
        raise ValueError(
            f"{quantize[0]}-bit weights need bitsandbytes, which cannot be imported here ({error}); pip install bitsandbytes or leave --quantize out"
        ) from None
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of every cast of every pass
    return bitsandbytes


def put_quantized(quantize: str, device: torch.device, dtype: torch.dtype) -> Put:
    """Places tensors: projections of the layers as 8-bit or 4-bit (NF4, nested scales), the rest as `dtype`."""
    bnb = library(quantize)
    plain = put_plain(lambda _: device, dtype)

    def put(model: Transformer, parameter: str, tensor: Tensor) -> None:
        owner, leaf = parameter.rpartition(".")[::2]
        module = model.get_submodule(owner)
        if leaf != "weight" or not isinstance(module, nn.Linear) or not owner.startswith("layers."):
            plain(model, parameter, tensor)
            return
        parent, name = owner.rpartition(".")[::2]
        try:
            setattr(model.get_submodule(parent), name, _replace(bnb, module, tensor, quantize, device, dtype))
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            raise ValueError(f"bitsandbytes cannot hold {quantize[0]}-bit weights on {device} ({error}); leave --quantize out") from None

    return put


def _replace(bnb: ModuleType, old: nn.Linear, weight: Tensor, quantize: str, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The quantised stand-in of a linear layer; its bias is carried over whether it has arrived or not."""
    out, into = weight.shape
    if quantize == "4bit":
        if device.type == "cpu" and into % BLOCK:
            raise ValueError(f"4-bit weights on the CPU need rows of a multiple of {BLOCK}, and this model has rows of {into}; use 8bit or leave it out")
        new = bnb.nn.Linear4bit(into, out, bias=old.bias is not None, compute_dtype=dtype, quant_type="nf4", device="meta")
        new.weight = bnb.nn.Params4bit(weight.to(dtype), requires_grad=False, quant_type="nf4", compress_statistics=True).to(device)
    else:
        new = bnb.nn.Linear8bitLt(into, out, bias=old.bias is not None, has_fp16_weights=False, device="meta")
        new.weight = bnb.nn.Int8Params(weight.to(torch.float16), requires_grad=False, has_fp16_weights=False).to(device)
    new.bias = old.bias
    return new.eval()

"""The formats of Table 11 behind one interface: fp32, fp16, fp8, int8, mxfp4, int2, nvfp4 (on residuals) and nvfp4-direct (without them).

``get_format(name)`` gives a ``Format``: ``encode(x) -> tuple of tensors`` whose leading dimensions are x's (so rows of each can be indexed,
moved and scattered alike), ``decode(tuple) -> fp32``, ``bytes_per_value``, and ``residual``: whether the paper applies it to the residual
against the centroid. Group formats keep the largest magnitude of a group exactly representable; all-zero groups stay zero.

* fp8: E4M3 values, int8 and int2: signed integers (127 and 1 steps each way), all with one fp16 scale per 32 channels.
* mxfp4: E2M1 values with one power-of-two scale (E8M0, exponent byte, bias 127) per 32 channels, as in the OCP MX specification.
* nvfp4: see ``nvfp4.py``.

Channels that do not fill the last group are padded with zeros; ``decode(..., d=d)`` cuts the padding off. A NaN or infinity is a
ValueError on the CPU. These run on PyTorch everywhere (a table of formats is not a hot path), except nvfp4, which dispatches to its kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import nvfp4

Encoded = tuple[torch.Tensor, ...]
GROUP = 32
_FP16_TINY = 2.0**-24
_FP16_MAX = 65504.0


@dataclass(frozen=True)
class Format:
    """One way to store hidden states: see the module's docstring. ``bytes_per_value`` counts scales (padding excluded)."""

    name: str
    title: str
    residual: bool
    bytes_per_value: float
    _encode: Callable[[torch.Tensor], Encoded]
    _decode: Callable[[Encoded], torch.Tensor]

    def encode(self, x: torch.Tensor) -> Encoded:
        """Float x [..., d] -> tensors whose leading dimensions are x's."""
        if not x.is_floating_point() or x.ndim < 1 or x.shape[-1] < 1:
            raise ValueError(f"{self.name}: x is {x.dtype} {tuple(x.shape)}; it must be floating point with at least one channel.")
        return self._encode(x)

    def decode(self, encoded: Encoded, d: int | None = None) -> torch.Tensor:
        """The tensors of ``encode`` (or rows of them) -> fp32 [..., d]; without d, padding channels stay on."""
        out = self._decode(encoded)
        return out if d is None or d == out.shape[-1] else out[..., :d]

    def nbytes(self, encoded: Encoded) -> int:
        """Bytes that these tensors hold."""
        return sum(t.numel() * t.element_size() for t in encoded)


def _grouped(x: torch.Tensor, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 groups [..., g, 32] and their largest magnitudes [..., g]."""
    d = x.shape[-1]
    g = -(-d // GROUP)
    x = x.to(torch.float32)
    if d != g * GROUP:
        x = torch.nn.functional.pad(x, (0, g * GROUP - d))
    x = x.reshape(*x.shape[:-1], g, GROUP)
    amax = x.abs().amax(-1)
    if x.device.type == "cpu":
        nvfp4.require_finite(~torch.isfinite(amax), x, name)
    return x, amax


def _fp16_scale(amax: torch.Tensor, steps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(scale as fp16 [..., g], fp32 divisor that is never 0): amax / steps, at least the smallest fp16 number unless the group is zero."""
    scale = (amax / steps).clamp(max=_FP16_MAX).to(torch.float16).to(torch.float32)
    scale = torch.where(amax > 0, scale.clamp(min=_FP16_TINY), scale)
    return scale.to(torch.float16), torch.where(amax > 0, scale, torch.ones_like(scale)).unsqueeze(-1)


def _encode_fp8(x: torch.Tensor) -> Encoded:
    groups, amax = _grouped(x, "fp8")
    scale, divisor = _fp16_scale(amax, nvfp4.E4M3_MAX)
    values = groups.div(divisor).clamp_(-nvfp4.E4M3_MAX, nvfp4.E4M3_MAX).to(torch.float8_e4m3fn)
    return values.view(torch.uint8).flatten(-2), scale


def _decode_fp8(encoded: Encoded) -> torch.Tensor:
    values, scale = encoded
    return _scaled(values.view(torch.float8_e4m3fn).to(torch.float32), scale.to(torch.float32))


def _encode_int8(x: torch.Tensor) -> Encoded:
    groups, amax = _grouped(x, "int8")
    scale, divisor = _fp16_scale(amax, 127.0)
    return groups.div(divisor).round_().clamp_(-127, 127).to(torch.int8).flatten(-2), scale


def _decode_int8(encoded: Encoded) -> torch.Tensor:
    values, scale = encoded
    return _scaled(values.to(torch.float32), scale.to(torch.float32))


def _encode_int2(x: torch.Tensor) -> Encoded:
    groups, amax = _grouped(x, "int2")
    scale, divisor = _fp16_scale(amax, 1.0)
    codes = groups.div(divisor).round_().clamp_(-1, 1).to(torch.int8).bitwise_and_(3).view(torch.uint8).flatten(-2)
    quads = codes.view(torch.int32)  # channel 4i in the low two bits of byte i
    packed = quads | (quads >> 6) | (quads >> 12) | (quads >> 18)
    return (packed & 0xFF).to(torch.uint8), scale


def _decode_int2(encoded: Encoded) -> torch.Tensor:
    packed, scale = encoded
    shifts = torch.arange(6, -1, -2, dtype=torch.uint8, device=packed.device)  # made there: numbers from the host would be waited for
    # Shifting the two bits to the top of a signed byte and back down restores the sign.
    codes = torch.bitwise_left_shift(packed.unsqueeze(-1), shifts).view(torch.int8) >> 6
    return _scaled(codes.flatten(-2).to(torch.float32), scale.to(torch.float32))


def _encode_mxfp4(x: torch.Tensor) -> Encoded:
    groups, amax = _grouped(x, "mxfp4")
    # The MX rule: 2^(floor(log2 amax) - 2), the exponent of E2M1's largest number being 2; the exponent is read off fp32's bits.
    biased = ((amax.view(torch.int32) >> 23) - 2).clamp_(0, 254)
    scale = biased.clamp(min=1).bitwise_left_shift(23).view(torch.float32)
    pairs = nvfp4.e2m1_codes(groups.div(scale.unsqueeze(-1))).view(torch.int64).flatten(-2)
    return (pairs | (pairs >> 28)).to(torch.uint8), biased.clamp_(min=1).to(torch.uint8)


def _decode_mxfp4(encoded: Encoded) -> torch.Tensor:
    packed, exponent = encoded
    scale = exponent.to(torch.int32).bitwise_left_shift(23).view(torch.float32)
    return _scaled(nvfp4.unpack_e2m1(packed), scale)


def _scaled(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """values [..., g*32] * scale [..., g] -> fp32 [..., g*32]."""
    return values.unflatten(-1, (scale.shape[-1], GROUP)).mul(scale.unsqueeze(-1)).flatten(-2)


def _plain(name: str, title: str, dtype: torch.dtype, limit: float | None) -> Format:
    def encode(x: torch.Tensor) -> Encoded:
        if x.device.type == "cpu":
            nvfp4.require_finite(~torch.isfinite(x.abs().amax(-1, keepdim=True)), x.unsqueeze(-2), name)
        return ((x if limit is None else x.clamp(-limit, limit)).to(dtype),)

    return Format(name, title, False, dtype.itemsize, encode, lambda encoded: encoded[0].to(torch.float32))


_NVFP4 = (nvfp4.quantize_nvfp4, lambda encoded: nvfp4.dequantize_nvfp4(*encoded))

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        _plain("fp32", "FP32", torch.float32, None),
        _plain("fp16", "FP16 (full precision)", torch.float16, _FP16_MAX),
        Format("fp8", "FP8", True, 1 + 2 / GROUP, _encode_fp8, _decode_fp8),
        Format("int8", "INT8", True, 1 + 2 / GROUP, _encode_int8, _decode_int8),
        Format("mxfp4", "MXFP4", True, 0.5 + 1 / GROUP, _encode_mxfp4, _decode_mxfp4),
        Format("int2", "INT2", True, 0.25 + 2 / GROUP, _encode_int2, _decode_int2),
        Format("nvfp4-direct", "NVFP4 without residuals", False, 0.5 + 1 / nvfp4.GROUP, *_NVFP4),
        Format("nvfp4", "NVFP4 (Polestar)", True, 0.5 + 1 / nvfp4.GROUP, *_NVFP4),
    )
}


def get_format(name: str) -> Format:
    """The format of this name; ValueError that lists the names otherwise."""
    try:
        return FORMATS[name]
    except KeyError:
        raise ValueError(f"unknown residual format {name!r}; choose one of {', '.join(FORMATS)}.") from None

"""NVFP4 and the other formats of Table 11: bit patterns against ml_dtypes, corner groups, error bounds, sizes."""

import ml_dtypes
import numpy as np
import pytest
import torch

from kernels import nvfp4
from kernels.formats import FORMATS, get_format


def around(values) -> np.ndarray:
    """The numbers, the middles between neighbours (ties), the float32 next to each on both sides, and all negatives."""
    values = np.asarray(values, dtype=np.float32)
    middles = (values[1:] + values[:-1]) / 2
    points = np.concatenate([values, middles])
    points = np.concatenate([points, np.nextafter(points, np.float32(-1)), np.nextafter(points, np.float32(1e9))]).astype(np.float32)
    return np.concatenate([points, -points])


def test_e2m1_bits_against_ml_dtypes():
    x = np.concatenate([around(nvfp4.E2M1_VALUES), np.random.default_rng(0).normal(0, 3, 20000).astype(np.float32)])
    expected = np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    codes = nvfp4.e2m1_codes(torch.from_numpy(x))
    assert np.array_equal(codes.numpy(), expected.view(np.uint8) & 15)
    every = torch.arange(256, dtype=torch.uint8)
    values = nvfp4.unpack_e2m1(every).view(256, 2).numpy()
    nibbles = np.stack([np.arange(256) & 15, np.arange(256) >> 4], -1).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    assert np.array_equal(values, nibbles.astype(np.float32)), "low nibble first"


def scale_of(amax: float) -> torch.Tensor:
    x = torch.zeros(16)
    x[3] = amax
    return nvfp4.quantize_nvfp4(x)[1]


@pytest.mark.parametrize("sign", [1, -1])
def test_scales_are_e4m3_of_the_largest_magnitude_over_six(sign):
    every = np.arange(1, 127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    amax = np.abs(around(every))[: 3 * (2 * len(every) - 1)] * 6
    x = torch.zeros(len(amax), 16)
    x[:, 5] = sign * torch.from_numpy(amax)
    scales = nvfp4.quantize_nvfp4(x)[1][:, 0].numpy()
    expected = np.minimum(amax / np.float32(6), 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(scales, np.maximum(expected, 1))


def test_whole_groups_against_ml_dtypes():
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(64, 3, 16)) * 10.0 ** rng.uniform(-2, 2, (64, 3, 1))).astype(np.float32)
    packed, scales = nvfp4.quantize_nvfp4(torch.from_numpy(x.reshape(64, 48)))
    scale = (np.abs(x).max(-1) / np.float32(6)).astype(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(scales.numpy(), scale.view(np.uint8))
    codes = np.clip(x / scale.astype(np.float32)[..., None], -6, 6).astype(ml_dtypes.float4_e2m1fn)
    nibbles = (codes.view(np.uint8) & 15).reshape(64, 48)
    assert np.array_equal(packed.numpy(), nibbles[:, 0::2] | nibbles[:, 1::2] << 4)
    back = nvfp4.dequantize_nvfp4(packed, scales)
    assert np.array_equal(back.numpy(), (codes.astype(np.float32) * scale.astype(np.float32)[..., None]).reshape(64, 48))


def test_corner_groups():
    x = torch.zeros(5, 32)
    x[1, :16] = 1e-5  # below half the smallest scale times the smallest value: rounds to zero, not to NaN
    x[2, 0] = 0.004  # its sixth rounds to no scale; the smallest scale serves
    x[3] = 1e6
    x[4, 16] = -0.0
    packed, scales = nvfp4.quantize_nvfp4(x)
    back = nvfp4.dequantize_nvfp4(packed, scales)
    assert not back[0].any()
    assert not scales[0].any()
    assert not back[1].any()
    assert back[2, 0] == 0.00390625
    assert torch.equal(back[3], torch.full((32,), 6 * 448.0))
    assert torch.isfinite(back).all()


@pytest.mark.parametrize(("bad", "name"), [(float("nan"), "NaN"), (float("inf"), "infinity"), (float("-inf"), "infinity")])
@pytest.mark.parametrize("format_name", FORMATS)
def test_not_finite_is_named(format_name, bad, name):
    x = torch.ones(4, 70)
    x[2, 65] = bad
    with pytest.raises(ValueError, match=rf"holds a {name} \(row \[2\]"):
        get_format(format_name).encode(x)


def test_not_finite_survives_where_nobody_looks():
    x = torch.ones(2, 32)
    x[1, 20] = float("nan")
    back = nvfp4.dequantize_nvfp4(*nvfp4.quantize_nvfp4(x, check=False))
    assert torch.isnan(back[1, 16:]).all()
    assert torch.isfinite(back[0]).all()
    assert torch.isfinite(back[1, :16]).all()


@pytest.mark.parametrize("d", [1, 15, 16, 17, 33, 128])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes(d, lead, dtype):
    x = torch.randn(*lead, d, generator=torch.Generator().manual_seed(d)).to(dtype)
    packed, scales = nvfp4.quantize_nvfp4(x)
    g = -(-d // 16)
    assert packed.shape == (*lead, 8 * g)
    assert scales.shape == (*lead, g)
    assert packed.dtype == scales.dtype == torch.uint8
    back = nvfp4.dequantize_nvfp4(packed, scales, d)
    assert back.shape == x.shape
    assert back.dtype == torch.float32
    same = nvfp4.dequantize_nvfp4(packed, scales.view(torch.float8_e4m3fn))
    assert torch.equal(same[..., :d], back)
    assert not same[..., d:].any()


def test_large_inputs_go_through_in_slices():
    x = torch.randn(70, 2048, generator=torch.Generator().manual_seed(3))
    packed, scales = nvfp4.quantize_nvfp4(x)
    rows = [nvfp4.quantize_nvfp4(row) for row in x]
    assert torch.equal(packed, torch.stack([r[0] for r in rows]))
    assert torch.equal(scales, torch.stack([r[1] for r in rows]))


def test_residuals_are_taken_to_each_rows_own_centroid():
    generator = torch.Generator().manual_seed(4)
    h, z = torch.randn(2, 5, 32, generator=generator), torch.randn(2, 3, 32, generator=generator)
    labels = torch.tensor([[0, 2, 1, 1, 0], [2, 2, 2, 0, 1]])
    packed, scales = nvfp4.quantize_residual(h, z, labels)
    for n in range(2):
        for w in range(5):
            expected = nvfp4.quantize_nvfp4(h[n, w] - z[n, labels[n, w]])
            assert torch.equal(packed[n, w], expected[0])
            assert torch.equal(scales[n, w], expected[1])
    # A member that is its centroid has no residual at all.
    assert not nvfp4.quantize_residual(z[0], z[0], torch.arange(3))[1].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nvfp4.quantize_nvfp4(torch.arange(16)), "int64"),
        (lambda: nvfp4.quantize_nvfp4(torch.empty(3, 0)), r"\(3, 0\)"),
        (lambda: nvfp4.dequantize_nvfp4(torch.zeros(2, 9, dtype=torch.uint8), torch.zeros(2, 1, dtype=torch.uint8)), r"\(2, 9\)"),
        (lambda: nvfp4.dequantize_nvfp4(torch.zeros(2, 8, dtype=torch.uint8), torch.zeros(2, 1, dtype=torch.uint8), 17), "d 17"),
        (lambda: nvfp4.quantize_residual(torch.ones(4, 16), torch.ones(2, 8), torch.zeros(4, dtype=torch.long)), r"\(2, 8\)"),
        (lambda: get_format("nvfp5"), "nvfp5.*nvfp4"),
    ],
)
def test_errors_name_both_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("d", [37, 128])
def test_formats_come_back_within_their_step(format_name, d):
    f = get_format(format_name)
    x = torch.randn(6, d, generator=torch.Generator().manual_seed(d)) * torch.tensor([1e-2, 0.1, 1.0, 10.0, 100.0, 0.0])[:, None]
    encoded = f.encode(x)
    back = f.decode(encoded, d)
    assert back.shape == x.shape
    assert back.dtype == torch.float32
    assert not back[-1].any()
    # Largest error over the group's (here: row's) largest magnitude: half a step between the coarsest values, and the rounding of the scale.
    bound = {"fp32": 0.0, "fp16": 2**-11, "fp8": 0.04, "int8": 0.005, "mxfp4": 0.26, "int2": 0.51, "nvfp4": 0.19, "nvfp4-direct": 0.19}[format_name]
    error = ((back - x).abs().amax(-1) / x.abs().amax(-1).clamp(min=1e-30))[1:-1]
    assert error.max() <= bound
    rows = torch.tensor([4, 1])
    assert torch.equal(f.decode(tuple(part[rows] for part in encoded), d), back[rows]), "rows of every part belong together"
    if d == 128:
        assert f.nbytes(encoded) == f.bytes_per_value * x.numel()


def test_formats_are_ordered_as_in_table_11():
    """More bytes, smaller error; residuals are what Table 11 says they are."""
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    error = {n: (f.decode(f.encode(x)) - x).square().mean().item() for n, f in FORMATS.items()}
    assert error["fp32"] == 0 < error["fp16"] < error["int8"] < error["nvfp4"] < error["mxfp4"] < error["int2"]
    assert error["fp16"] < error["fp8"] < error["nvfp4"]
    assert {n for n, f in FORMATS.items() if f.residual} == {"fp8", "int8", "mxfp4", "int2", "nvfp4"}


def test_mxfp4_scales_against_ml_dtypes():
    x = torch.randn(40, 32, generator=torch.Generator().manual_seed(5)) * 10 ** torch.linspace(-8, 8, 40)[:, None]
    packed, exponent = get_format("mxfp4").encode(x)
    scale = exponent.numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32)[:, 0]
    amax = x.abs().amax(-1).numpy()
    assert np.array_equal(scale, 2.0 ** (np.floor(np.log2(amax)) - 2))
    codes = np.clip(x.numpy() / scale[:, None], -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    assert np.array_equal(packed.numpy(), codes[:, 0::2] | codes[:, 1::2] << 4)


def test_int2_keeps_signs_and_order():
    x = torch.tensor([[1.0, -1.0, 0.0, 0.4, -0.6, 0.6, 1.0, -0.2] * 4])
    f = get_format("int2")
    assert torch.equal(f.decode(f.encode(x)), torch.tensor([[1.0, -1.0, 0.0, 0.0, -1.0, 1.0, 1.0, 0.0] * 4]))

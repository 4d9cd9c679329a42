"""Every quantizer against the gguf package's dequantizer, an independent implementation of the block layouts."""

from __future__ import annotations

import gguf.quants
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ballast.weights.quantize import matrix_scales, quantize
from ballast.weights.quantize_points import QUANTIZERS

# Largest relative root-mean-square error on normal data: 1/√12 of a step divided by the range of a block, plus about a
# tenth for rounding the scales.
BOUNDS = {
    "F32": 0.0,
    "F16": 3e-4,
    "BF16": 2e-3,
    "Q8_0": 0.006,
    "Q4_0": 0.095,
    "Q4_1": 0.085,
    "Q5_0": 0.047,
    "Q5_1": 0.042,
    "Q2_K": 0.36,
    "Q3_K": 0.17,
    "Q4_K": 0.085,
    "Q5_K": 0.042,
    "Q6_K": 0.021,
    "IQ4_NL": 0.088,
    "IQ4_XS": 0.088,
    "MXFP4": 0.12,
    "NVFP4": 0.115,
    "IQ1_S": 0.57,
    "IQ1_M": 0.52,
    "IQ2_XXS": 0.43,
    "IQ2_XS": 0.39,
    "IQ2_S": 0.34,
    "IQ3_XXS": 0.23,
    "IQ3_S": 0.18,
    "TQ1_0": 0.48,
    "TQ2_0": 0.48,
}
TYPES = [GGMLQuantizationType[name] for name in BOUNDS]
OFF = {GGMLQuantizationType.MXFP4: 1 / 4, GGMLQuantizationType.NVFP4: 1 / 16}
"""Largest relative error of a block's largest weight if scales are powers of two, or have four digits."""
SPANNING = [ggml_type for ggml_type in TYPES if ggml_type not in QUANTIZERS]
"""Types whose scale spans a block. Types with few points choose scales for normal weights and clip larger ones."""
SMALL_RANGE = frozenset({GGMLQuantizationType.NVFP4})
"""Types that store weights up to 6 · 448; larger ones require a scale of the whole matrix."""
SCALED = [ggml_type for ggml_type in TYPES if GGML_QUANT_SIZES[ggml_type][0] > 1]


def there_and_back(values: np.ndarray, ggml_type: GGMLQuantizationType) -> np.ndarray:
    return gguf.quants.dequantize(quantize(values, ggml_type), ggml_type)


def relative_error(values: np.ndarray, ggml_type: GGMLQuantizationType) -> float:
    difference = (there_and_back(values, ggml_type) - values).astype(np.float64)
    return float(np.sqrt(np.mean(difference**2) / np.mean(values.astype(np.float64) ** 2)))


def normal(*dims: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(dims, dtype=np.float32)


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda ggml_type: ggml_type.name)
def test_normal_weights_round_trip_within_the_types_error(ggml_type: GGMLQuantizationType):
    assert relative_error(normal(64, 1024), ggml_type) <= BOUNDS[ggml_type.name]


@pytest.mark.parametrize("offset", [-3.0, 3.0])
@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda ggml_type: ggml_type.name)
def test_weights_of_one_sign_round_trip_within_the_types_error(ggml_type: GGMLQuantizationType, offset: float):
    # Relative to the offset, most errors become small; only a wrong sign or minimum is this large.
    bound = 0.6 if ggml_type in QUANTIZERS else 0.3
    assert relative_error(normal(16, 1024) * np.float32(0.3) + np.float32(offset), ggml_type) <= bound


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda ggml_type: ggml_type.name)
@pytest.mark.parametrize("dims", [(1,), (7,), (3, 5), (2, 1, 3), (0, 4)], ids=str)
@pytest.mark.parametrize("num_blocks", [1, 3])
def test_any_shape_keeps_its_leading_dimensions(
    ggml_type: GGMLQuantizationType, dims: tuple[int, ...], num_blocks: int
):
    block_size, block_bytes = GGML_QUANT_SIZES[ggml_type]
    values = normal(*dims, num_blocks * block_size)
    packed = quantize(values, ggml_type)
    assert packed.dtype == np.uint8
    assert packed.shape == (*dims, num_blocks * block_bytes)
    # Quantizing each row separately gives the same bytes: blocks are independent.
    rows = [quantize(row, ggml_type).tobytes() for row in values.reshape(-1, values.shape[-1])]
    assert b"".join(rows) == packed.tobytes()


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda ggml_type: ggml_type.name)
def test_zeros_round_trip_exactly(ggml_type: GGMLQuantizationType):
    assert not there_and_back(np.zeros((3, 512), np.float32), ggml_type).any()


@pytest.mark.parametrize("ggml_type", SPANNING, ids=lambda ggml_type: ggml_type.name)
@pytest.mark.parametrize("constant", [0.3, -0.3, 5.0, 100.0])
def test_a_constant_round_trips_almost_exactly(ggml_type: GGMLQuantizationType, constant: float):
    bound = OFF.get(ggml_type, 4e-3)
    assert relative_error(np.full((3, 512), constant, np.float32), ggml_type) <= bound


@pytest.mark.parametrize("ggml_type", SPANNING, ids=lambda ggml_type: ggml_type.name)
@pytest.mark.parametrize("outlier", [6e4, -6e4])
def test_an_outlier_is_kept_and_affects_only_its_block(ggml_type: GGMLQuantizationType, outlier: float):
    if ggml_type in SMALL_RANGE:
        outlier = np.copysign(2600, outlier)
    values = normal(4, 512)
    values[1, 300] = outlier
    back = there_and_back(values, ggml_type)
    assert np.isfinite(back).all()
    assert back[1, 300] == pytest.approx(outlier, rel=OFF.get(ggml_type, 0.02))
    untouched = there_and_back(normal(4, 512), ggml_type)
    assert np.array_equal(back[[0, 2, 3]], untouched[[0, 2, 3]])
    assert np.array_equal(back[1, :256], untouched[1, :256])


@pytest.mark.parametrize("ggml_type", SCALED, ids=lambda ggml_type: ggml_type.name)
@pytest.mark.parametrize("size", [1e-6, 1e-9, 1e-30, 1e-42])
def test_weights_too_small_for_the_scales_become_zero(ggml_type: GGMLQuantizationType, size: float):
    back = there_and_back(normal(4, 512) * np.float32(size), ggml_type)
    assert np.abs(back).max() <= 20 * size + 1e-6


@pytest.mark.parametrize("ggml_type", SCALED, ids=lambda ggml_type: ggml_type.name)
def test_rows_that_blocks_do_not_divide_are_refused(ggml_type: GGMLQuantizationType):
    block_size = GGML_QUANT_SIZES[ggml_type][0]
    with pytest.raises(ValueError, match=f"{block_size + 16} weights: {ggml_type.name} needs a multiple"):
        quantize(normal(2, block_size + 16), ggml_type)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e6])
def test_weights_that_no_scale_holds_are_refused(bad: float):
    values = normal(2, 256)
    values[1, 7] = bad
    with pytest.raises(ValueError, match="at most 65504"):
        quantize(values, GGMLQuantizationType.Q4_K)


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e8])
def test_a_scale_of_the_matrix_makes_its_weights_fit(size: float):
    """Each part of the rows gets its own scale: the error of the type holds for weights of any magnitude."""
    values = normal(6, 512) * np.float32(size) * np.array([[1], [1], [1], [1], [100], [100]], np.float32)
    scales = matrix_scales(values, 3, GGMLQuantizationType.NVFP4)
    parts = values.reshape(3, -1) / scales[:, None]
    assert np.abs(parts).max(axis=1) == pytest.approx([6 * 448] * 3)
    back = there_and_back(parts.reshape(6, 512), GGMLQuantizationType.NVFP4).reshape(3, -1) * scales[:, None]
    for part, found in zip(values.reshape(3, -1), back, strict=True):
        difference = (found - part).astype(np.float64)
        assert np.sqrt(np.mean(difference**2) / np.mean(part.astype(np.float64) ** 2)) <= BOUNDS["NVFP4"]
    assert matrix_scales(np.zeros((2, 64), np.float32), 1, GGMLQuantizationType.NVFP4) == [1]


def test_weights_beyond_the_range_of_small_floats_are_refused():
    with pytest.raises(ValueError, match="NVFP4 holds finite weights of at most 2688"):
        quantize(np.full((1, 64), 2700, np.float32), GGMLQuantizationType.NVFP4)


def test_a_type_that_is_not_read_here_is_refused():
    with pytest.raises(ValueError, match="Q8_K is not among the types"):
        quantize(normal(1, 256), GGMLQuantizationType.Q8_K)

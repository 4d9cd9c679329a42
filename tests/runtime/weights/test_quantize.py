"""Every quantiser against the gguf package's dequantiser, which knows the block layouts independently."""

from __future__ import annotations

import gguf.quants
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ballast.weights.quantize import quantize

# Largest relative root-mean-square error on normal data: 1/√12 of a step over the reach of a block, and a margin of
# a tenth or so for rounding the scales.
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
}
TYPES = [GGMLQuantizationType[name] for name in BOUNDS]
COARSE = frozenset({GGMLQuantizationType.MXFP4})
"""Their scales are powers of two: the largest weight of a block is no exact step, but up to a quarter of itself off."""
SCALED = [ggml_type for ggml_type in TYPES if GGML_QUANT_SIZES[ggml_type][0] > 1]


def there_and_back(values: np.ndarray, ggml_type: GGMLQuantizationType) -> np.ndarray:
    return gguf.quants.dequantize(quantize(values, ggml_type), ggml_type)


def relative_error(values: np.ndarray, ggml_type: GGMLQuantizationType) -> float:
    difference = (there_and_back(values, ggml_type) - values).astype(np.float64)
    return float(np.sqrt(np.mean(difference**2) / np.mean(values.astype(np.float64) ** 2)))


def normal(*dims: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(dims, dtype=np.float32)


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda ggml_type: ggml_type.name)
def test_normal_weights_come_back_within_the_types_error(ggml_type: GGMLQuantizationType):
    assert relative_error(normal(64, 1024), ggml_type) <= BOUNDS[ggml_type.name]


@pytest.mark.parametrize("offset", [-3.0, 3.0])
@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda ggml_type: ggml_type.name)
def test_weights_all_of_one_sign_come_back_within_the_types_error(ggml_type: GGMLQuantizationType, offset: float):
    # Seen against the offset, most of a relative error is gone; only a wrong sign or minimum is this large.
    assert relative_error(normal(16, 1024) * np.float32(0.3) + np.float32(offset), ggml_type) <= 0.3


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
    # Every row on its own gives the same bytes: blocks do not see each other.
    rows = [quantize(row, ggml_type).tobytes() for row in values.reshape(-1, values.shape[-1])]
    assert b"".join(rows) == packed.tobytes()


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda ggml_type: ggml_type.name)
def test_zeros_come_back_as_zeros(ggml_type: GGMLQuantizationType):
    assert not there_and_back(np.zeros((3, 512), np.float32), ggml_type).any()


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda ggml_type: ggml_type.name)
@pytest.mark.parametrize("constant", [0.3, -0.3, 5.0, 100.0])
def test_a_constant_comes_back_almost_exactly(ggml_type: GGMLQuantizationType, constant: float):
    bound = 1 / 4 if ggml_type in COARSE else 4e-3
    assert relative_error(np.full((3, 512), constant, np.float32), ggml_type) <= bound


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda ggml_type: ggml_type.name)
@pytest.mark.parametrize("outlier", [6e4, -6e4])
def test_an_outlier_survives_and_spoils_only_its_block(ggml_type: GGMLQuantizationType, outlier: float):
    values = normal(4, 512)
    values[1, 300] = outlier
    back = there_and_back(values, ggml_type)
    assert np.isfinite(back).all()
    assert back[1, 300] == pytest.approx(outlier, rel=1 / 4 if ggml_type in COARSE else 0.02)
    untouched = there_and_back(normal(4, 512), ggml_type)
    assert np.array_equal(back[[0, 2, 3]], untouched[[0, 2, 3]])
    assert np.array_equal(back[1, :256], untouched[1, :256])


@pytest.mark.parametrize("ggml_type", SCALED, ids=lambda ggml_type: ggml_type.name)
@pytest.mark.parametrize("size", [1e-6, 1e-9, 1e-30, 1e-42])
def test_weights_too_small_for_the_scales_fade_to_zero(ggml_type: GGMLQuantizationType, size: float):
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


def test_a_type_that_is_not_read_here_is_refused():
    with pytest.raises(ValueError, match="IQ2_XXS is not among the types"):
        quantize(normal(1, 256), GGMLQuantizationType.IQ2_XXS)

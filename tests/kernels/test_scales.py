"""Scales of whole matrices: products are multiplied by them, under every instruction set.

What is multiplied by a power of two changes no bit of a float but its exponent, so that a scale gives the same bits as
weights that were multiplied before. Q8_0's weights are multiplied by their blocks' scales, and by 1 and more: smaller
ones would lose bits.
"""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from ballast._core import kernels
from devkit.kernels.isas import FAST_ISAS, isa_params
from devkit.models.random_blocks import random_blocks

every_isa = pytest.mark.parametrize("isa", isa_params(*FAST_ISAS, "reference"))
every_kind = pytest.mark.parametrize("kind", [T.Q8_0, T.F32], ids=lambda kind: kind.name)


def times(data, kind, factors):
    """The rows' blocks with their weights multiplied by powers of two, one for each of as many parts of the rows."""
    data = data.copy()
    values = data.view(np.float32) if kind == T.F32 else data.reshape(len(data), -1, 34)[:, :, :2].view(np.float16)
    for part, factor in zip(np.split(values, len(factors)), factors, strict=True):
        part *= values.dtype.type(factor)
    if kind == T.Q8_0:
        data.reshape(len(data), -1, 34)[:, :, :2] = values.view(np.uint8)
    return data


@every_isa
@every_kind
@pytest.mark.parametrize("num_tokens", [1, 5, 33])
def test_a_linear_multiplies_by_its_scale(rng, pool, kind, isa, num_tokens):
    rows, cols = 43, 96
    data = random_blocks(rng, kind, rows, cols)
    x = rng.standard_normal((num_tokens, cols), dtype=np.float32)
    found = []
    for matrix in (
        kernels.Matrix(data, kind, rows, cols, [8.0]),
        kernels.Matrix(times(data, kind, [8.0]), kind, rows, cols),
    ):
        out = np.empty((num_tokens, rows), np.float32)
        kernels.linear(pool, x, kernels.pack(pool, matrix, isa, activation_bytes=2), out)
        found.append(out)
    assert np.abs(found[0]).max() > 0
    np.testing.assert_array_equal(found[0], found[1])


@every_isa
@every_kind
@pytest.mark.parametrize("num_tokens", [1, 17])
def test_heads_multiply_by_the_matrix_scale_either_way(rng, pool, kind, isa, num_tokens):
    heads, rows, stride, offset, cols = 3, 19, 24, 5, 64
    data = random_blocks(rng, kind, heads * stride, cols)
    place = {"num_heads": heads, "head_stride": stride, "row_offset": offset, "num_rows": rows}
    x = rng.standard_normal((num_tokens, heads, cols), dtype=np.float32)
    y = rng.standard_normal((num_tokens, heads, rows), dtype=np.float32)
    found = []
    for matrix in (
        kernels.Matrix(data, kind, heads * stride, cols, [4.0]),
        kernels.Matrix(times(data, kind, [4.0]), kind, heads * stride, cols),
    ):
        out, back = np.empty_like(y), np.empty_like(x)
        kernels.head_linear(pool, x, kernels.pack(pool, matrix, isa, activation_bytes=2, **place), stride, offset, out)
        turned = kernels.pack(pool, matrix, isa, activation_bytes=2, **place, transposed=True)
        kernels.head_linear_transposed(pool, y, turned, stride, offset, back)
        found.append((out, back))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


@every_isa
@every_kind
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 3, 40])
def test_each_expert_has_scales_of_its_own(rng, pool, kind, isa, num_tokens, fused):
    count, width, hidden = 4, 64, 96
    parts = [("gate_up", 2 * width, hidden)] if fused else [("gate", width, hidden), ("up", width, hidden)]
    scaled, multiplied = [], []
    for index, (_, rows, cols) in enumerate([*parts, ("down", hidden, width)]):
        scales = 2.0 ** np.roll(np.array([2, 1, 0, 3]), index)
        data = random_blocks(rng, kind, count * rows, cols)
        scaled.append(kernels.Matrix(data, kind, count * rows, cols, scales.astype(np.float32)))
        multiplied.append(kernels.Matrix(times(data, kind, scales), kind, count * rows, cols))
    make = kernels.Experts.fused if fused else kernels.Experts
    x = 30 * rng.standard_normal((num_tokens, hidden), dtype=np.float32)
    ids = np.array([rng.permutation(count)[:2] for _ in range(num_tokens)], np.int32)
    weights = rng.uniform(0.1, 1.0, ids.shape).astype(np.float32)
    found = []
    for matrices in (scaled, multiplied):
        out = np.full_like(x, np.nan)
        make(*matrices, count).packed(pool, isa, activation_bytes=2).forward(pool, x, ids, weights, out)
        found.append(out)
    assert np.abs(found[0]).max() > 0
    np.testing.assert_array_equal(found[0], found[1])


def test_scales_that_no_parts_have_are_refused(pool):
    data = np.zeros((6, 34), np.uint8)
    with pytest.raises(ValueError, match="Q8_0 matrix of 6 rows and 32 cols: 4 scales; expected as many as divide"):
        kernels.Matrix(data, T.Q8_0, 6, 32, [1.0] * 4)
    of_parts = kernels.Matrix(data, T.Q8_0, 6, 32, [1.0, 2.0])
    with pytest.raises(ValueError, match="weight has 2 scales; expected one at most: more are for experts"):
        kernels.linear(pool, np.zeros((1, 32), np.float32), of_parts, np.zeros((1, 6), np.float32))
    square = [kernels.Matrix(np.zeros((96, 34), np.uint8), T.Q8_0, 96, 32, scales) for scales in ((), [1.0] * 2, ())]
    with pytest.raises(ValueError, match="up has 2 scales; expected one, or as many as experts with 3 experts"):
        kernels.Experts(*square, 3)

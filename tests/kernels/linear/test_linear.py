"""Matrix products against NumPy in float64.

Tolerance: a float32 sum of n products errs by at most (n + 2) · 2⁻²⁴ · Σ|aᵢ bᵢ|, whatever the order of the sum.
"""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ballast._core import kernels
from devkit.models.random_blocks import FORMATS

T = GGMLQuantizationType
TOKENS = [0, 1, 2, 3, 15, 16, 17, 64, 65]


def assert_within_rounding(got, want, sum_of_magnitudes, num_terms):
    assert got.shape == want.shape
    worst = np.abs(got - want) - (num_terms + 2) * 2.0**-24 * sum_of_magnitudes
    assert np.all(worst <= 0), f"beyond the rounding of {num_terms} terms by {worst.max()}"


def normal(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize(("kind", "cols"), [(T.F32, 37), (T.Q4_K, 768)], ids=["F32", "Q4_K"])
def test_linear_at_every_batch_size(rng, pool, make_matrix, num_tokens, kind, cols):
    weight, values = make_matrix(kind, 43, cols)
    x = normal(rng, num_tokens, cols)
    out = np.full((num_tokens, 43), np.nan, np.float32)

    kernels.linear(pool, x, weight, out)

    assert_within_rounding(out, x @ values.T, np.abs(x) @ np.abs(values.T), cols)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("rows", [1, 7, 8, 9])
def test_linear_in_every_format(rng, pool, make_matrix, kind, rows):
    cols = 3 * GGML_QUANT_SIZES[kind][0]
    weight, values = make_matrix(kind, rows, cols)
    x = normal(rng, 5, cols)
    out = np.full((5, rows), np.nan, np.float32)

    kernels.linear(pool, x, weight, out)

    assert_within_rounding(out, x @ values.T, np.abs(x) @ np.abs(values.T), cols)


@pytest.mark.parametrize("cols", [1, 2, 3, 7, 8, 9, 15, 16, 17])
def test_linear_at_every_remainder_of_the_inner_loop(rng, pool, make_matrix, cols):
    weight, values = make_matrix(T.F32, 11, cols)
    x = normal(rng, 6, cols)
    out = np.full((6, 11), np.nan, np.float32)

    kernels.linear(pool, x, weight, out)

    assert_within_rounding(out, x @ values.T, np.abs(x) @ np.abs(values.T), cols)


@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize(("heads", "rows", "stride", "offset"), [(3, 19, 19, 0), (5, 8, 21, 13), (1, 1, 1, 0)])
def test_head_linear_uses_each_heads_own_rows(rng, pool, make_matrix, num_tokens, heads, rows, stride, offset):
    weight, values = make_matrix(T.Q8_0, heads * stride, 96)
    per_head = values.reshape(heads, stride, 96)[:, offset : offset + rows]
    x = normal(rng, num_tokens, heads, 96)
    out = np.full((num_tokens, heads, rows), np.nan, np.float32)

    kernels.head_linear(pool, x, weight, stride, offset, out)

    want = np.einsum("hnc,thc->thn", per_head, x.astype(np.float64))
    magnitudes = np.einsum("hnc,thc->thn", np.abs(per_head), np.abs(x, dtype=np.float64))
    assert_within_rounding(out, want, magnitudes, 96)


@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize(
    ("heads", "rows", "stride", "offset", "kind", "cols"),
    [(3, 19, 19, 0, T.Q8_0, 544), (5, 8, 21, 13, T.Q4_K, 512), (2, 3, 4, 1, T.F16, 1027), (1, 1, 1, 0, T.F32, 1)],
)
def test_head_linear_transposed_uses_each_heads_own_rows(
    rng, pool, make_matrix, num_tokens, heads, rows, stride, offset, kind, cols
):
    weight, values = make_matrix(kind, heads * stride, cols)
    per_head = values.reshape(heads, stride, cols)[:, offset : offset + rows]
    x = normal(rng, num_tokens, heads, rows)
    out = np.full((num_tokens, heads, cols), np.nan, np.float32)

    kernels.head_linear_transposed(pool, x, weight, stride, offset, out)

    want = np.einsum("hnc,thn->thc", per_head, x.astype(np.float64))
    magnitudes = np.einsum("hnc,thn->thc", np.abs(per_head), np.abs(x, dtype=np.float64))
    assert_within_rounding(out, want, magnitudes, rows)


def test_the_last_head_may_end_at_the_matrix_end(rng, pool, make_matrix):
    weight, values = make_matrix(T.F32, 3 * 5 - 1, 9)  # the last head's stride is cut short after its rows
    x = normal(rng, 2, 3, 9)
    out = np.empty((2, 3, 2), np.float32)

    kernels.head_linear(pool, x, weight, 5, 2, out)

    for head in range(3):
        rows = values[5 * head + 2 : 5 * head + 4]
        np.testing.assert_allclose(out[:, head], x[:, head] @ rows.T, rtol=1e-5, atol=1e-5)

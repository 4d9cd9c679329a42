"""Grouped experts against NumPy in float64, token by token."""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ballast._core import kernels
from devkit.kernels.isas import isa_params
from devkit.models.random_blocks import FORMATS

T = GGMLQuantizationType
# Two products of 37…256 terms with an activation between, relative to the largest output.
TOLERANCE = 1e-5


def choose(rng, num_tokens, num_experts, num_chosen):
    ids = np.array([rng.permutation(num_experts)[:num_chosen] for _ in range(num_tokens)], np.int32)
    weights = rng.uniform(0.1, 1.0, (num_tokens, num_chosen)).astype(np.float32)
    return ids.reshape(num_tokens, num_chosen), weights


def reference(x, gate, up, down, ids, weights):
    out = np.zeros(x.shape)
    for token, row in enumerate(x.astype(np.float64)):
        for expert, weight in zip(ids[token], weights[token], strict=True):
            g, u = gate[expert] @ row, up[expert] @ row
            out[token] += weight * (down[expert] @ (g / (1 + np.exp(-g)) * u))
    return out


def build(make_matrix, kinds, num_experts, width, hidden):
    gate, gate_values = make_matrix(kinds[0], num_experts * width, hidden)
    up, up_values = make_matrix(kinds[1], num_experts * width, hidden)
    down, down_values = make_matrix(kinds[2], num_experts * hidden, width)
    values = (
        gate_values.reshape(num_experts, width, hidden),
        up_values.reshape(num_experts, width, hidden),
        down_values.reshape(num_experts, hidden, width),
    )
    return kernels.Experts(gate, up, down, num_experts), values


def assert_forward(rng, pool, experts, values, num_experts, hidden, ids, weights):
    x = rng.standard_normal((ids.shape[0], hidden), dtype=np.float32)
    out = np.full_like(x, np.nan)

    experts.forward(pool, x, ids, weights, out)

    want = reference(x, *values, ids, weights)
    np.testing.assert_allclose(out, want, rtol=0, atol=TOLERANCE * max(1e-30, np.abs(want).max(initial=0)))


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 15, 16, 17, 64, 65])
@pytest.mark.parametrize("num_experts", [1, 5, 16])
def test_every_batch_size(rng, pool, make_matrix, num_tokens, num_experts):
    experts, values = build(make_matrix, (T.F32, T.F32, T.F32), num_experts, 13, 37)
    ids, weights = choose(rng, num_tokens, num_experts, min(8, num_experts))
    assert_forward(rng, pool, experts, values, num_experts, 37, ids, weights)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_every_format(rng, pool, make_matrix, kind):
    size = max(32, GGML_QUANT_SIZES[kind][0])
    experts, values = build(make_matrix, (kind, kind, kind), 4, size, size)
    assert_forward(rng, pool, experts, values, 4, size, *choose(rng, 5, 4, 2))


def test_a_file_may_mix_formats_in_one_layer(rng, pool, make_matrix):
    experts, values = build(make_matrix, (T.Q4_K, T.Q6_K, T.Q8_0), 3, 32, 256)
    assert_forward(rng, pool, experts, values, 3, 256, *choose(rng, 4, 3, 2))


def test_all_tokens_to_one_expert(rng, pool, make_matrix):
    experts, values = build(make_matrix, (T.Q8_0, T.Q8_0, T.Q8_0), 4, 32, 64)
    ids = np.full((17, 1), 2, np.int32)
    assert_forward(rng, pool, experts, values, 4, 64, ids, np.ones((17, 1), np.float32))


@pytest.mark.parametrize("isa", ["reference", *isa_params()])
def test_pairs_without_an_expert_contribute_zero(rng, pool, make_matrix, isa):
    experts, _ = build(make_matrix, (T.Q8_0, T.Q8_0, T.Q8_0), 4, 64, 64)
    experts = experts.packed(pool, isa, activation_bytes=1)
    x, weights = rng.standard_normal((3, 64), np.float32), rng.standard_normal((3, 2), np.float32)
    ids = np.array([[1, -1], [-1, -1], [-1, 2]], np.int32)
    left_out, weightless = np.full_like(x, np.nan), np.full_like(x, np.nan)
    experts.forward(pool, x, ids, weights, left_out)
    experts.forward(pool, x, np.abs(ids), np.where(ids < 0, np.float32(0), weights), weightless)
    np.testing.assert_array_equal(left_out, weightless)
    experts.forward(pool, x, np.full_like(ids, -1), weights, left_out)
    np.testing.assert_array_equal(left_out, 0)


def test_an_invalid_expert_id_is_rejected(pool, make_matrix):
    experts, _ = build(make_matrix, (T.F32, T.F32, T.F32), 4, 3, 5)
    for bad in (4, -2):
        with pytest.raises(IndexError, match=rf"ids\[1, 0\] is {bad}; expected 0 to 3, or -1 for none"):
            experts.forward(
                pool,
                np.zeros((2, 5), np.float32),
                np.array([[0], [bad]], np.int32),
                np.ones((2, 1), np.float32),
                np.zeros((2, 5), np.float32),
            )


def test_mismatched_matrices_are_rejected_by_name(make_matrix):
    gate, _ = make_matrix(T.F32, 4 * 3, 5)
    down, _ = make_matrix(T.F32, 4 * 5, 3)
    wrong, _ = make_matrix(T.F32, 4 * 3, 6)
    with pytest.raises(ValueError, match=r"up is \[12, 6\]"):
        kernels.Experts(gate, wrong, down, 4)
    with pytest.raises(ValueError, match=r"gate is \[12, 5\].*with 3 experts"):
        kernels.Experts(gate, gate, down, 3)
    with pytest.raises(ValueError, match=r"down is \[12, 3\]; expected 20 rows"):
        kernels.Experts(gate, gate, make_matrix(T.F32, 12, 3)[0], 4)
    with pytest.raises(ValueError, match="num_experts is 0"):
        kernels.Experts(gate, gate, down, 0)

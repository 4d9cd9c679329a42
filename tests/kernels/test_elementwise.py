"""Norm, rotation and activation against NumPy in float64."""

import numpy as np
import pytest

from ballast._core import kernels

TOKENS = [0, 1, 2, 3, 15, 16, 17, 64, 65]


def normal(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize("width", [1, 7, 512, 515])
def test_rms_norm(rng, num_tokens, width):
    x, weight = 3 * normal(rng, num_tokens, width), normal(rng, width)
    out = np.full_like(x, np.nan)

    kernels.rms_norm(x, weight, 1e-6, out)

    wide = x.astype(np.float64)
    want = wide / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + 1e-6) * weight
    # Half the relative error of a sum of 515 squares in eight strands, and a few roundings.
    np.testing.assert_allclose(out, want, rtol=5e-6, atol=0)


def test_rms_norm_in_place_is_the_same(rng):
    x, weight = normal(rng, 5, 67), normal(rng, 67)
    want = np.empty_like(x)
    kernels.rms_norm(x, weight, 1e-5, want)

    kernels.rms_norm(x, weight, 1e-5, x)

    np.testing.assert_array_equal(x, want)


def test_rms_norm_of_zeros_is_zeros_because_of_eps():
    out = np.full((1, 8), np.nan, np.float32)
    kernels.rms_norm(np.zeros((1, 8), np.float32), np.ones(8, np.float32), 1e-6, out)
    np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize(("heads", "width"), [(1, 64), (3, 2), (5, 10)])
def test_rope_rotates_neighbours_as_complex_numbers(rng, num_tokens, heads, width):
    x = normal(rng, num_tokens, heads, width)
    angles = rng.uniform(-np.pi, np.pi, (num_tokens, width // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    pairs = x.astype(np.float64).reshape(num_tokens, heads, width // 2, 2)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * (cos.astype(np.float64) + 1j * sin)[:, None, :]

    kernels.rope_interleaved(x, cos, sin)

    # Three roundings of numbers below 5.
    want = np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
    np.testing.assert_allclose(x, want, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("heads", "width", "turned_width"), [(1, 64, 64), (3, 10, 6)])
def test_rope_rotates_halves_of_the_first_entries(rng, heads, width, turned_width):
    x = normal(rng, 4, heads, width)
    angles = rng.uniform(-np.pi, np.pi, (4, turned_width // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    half = turned_width // 2
    turned = (x[..., :half] + 1j * x[..., half:turned_width]).astype(complex) * (cos + 1j * sin)[:, None, :]
    want = np.concatenate([turned.real, turned.imag, x[..., turned_width:]], axis=-1)

    kernels.rope_half_split(x, cos, sin)

    np.testing.assert_allclose(x, want, rtol=0, atol=2e-6)


def test_rope_leaves_scaled_tables_scaled(rng):
    """YaRN's magnitude rides in cos and sin, so they need not be on the unit circle."""
    x = normal(rng, 2, 1, 4)
    want = 1.5 * x
    kernels.rope_interleaved(x, np.full((2, 2), 1.5, np.float32), np.zeros((2, 2), np.float32))
    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("num_tokens", TOKENS)
def test_silu_mul(rng, num_tokens):
    gate, up = 10 * normal(rng, num_tokens, 33), normal(rng, num_tokens, 33)
    out = np.full_like(gate, np.nan)

    kernels.silu_mul(gate, up, out)

    wide = gate.astype(np.float64)
    np.testing.assert_allclose(out, wide / (1 + np.exp(-wide)) * up, rtol=2e-6, atol=1e-30)
    kernels.silu_mul(gate, up, gate)
    np.testing.assert_array_equal(gate, out)


def test_silu_mul_of_very_large_and_very_small_gates_stays_finite():
    gate = np.array([[-1e30, -200.0, 0.0, 200.0, 1e30]], np.float32)
    out = np.empty_like(gate)
    kernels.silu_mul(gate, np.ones_like(gate), out)
    np.testing.assert_array_equal(out, np.array([[0, 0, 0, 200, 1e30]], np.float32))

"""Formats whose super-blocks are summed up in whole numbers: how sub-blocks are scaled differs with the number of
tokens and the instruction set, and all ways give the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from devkit.kernels.isas import isa_params
from devkit.models.random_blocks import HALF_OFFSETS, dequantized, random_blocks

KINDS = [GgmlType.Q2_K, GgmlType.Q3_K]
MAX_TOKENS = 17
"""One and two tokens, a few, and as many as panels are decoded first for."""

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
every_width = pytest.mark.parametrize("num_bytes", [1, 2])


def products(pool, data, kind, isa, num_bytes, x):
    """Of all tokens together, after each smaller number of them gave the same."""
    rows, cols = data.shape[0], x.shape[1]
    packed = kernels.pack(pool, kernels.Matrix(data, kind, rows, cols), isa, activation_bytes=num_bytes)
    out = np.empty((len(x), rows), np.float32)
    kernels.linear(pool, x, packed, out)
    for num_tokens in range(1, len(x)):
        fewer = np.empty((num_tokens, rows), np.float32)
        kernels.linear(pool, x[:num_tokens].copy(), packed, fewer)
        np.testing.assert_array_equal(fewer, out[:num_tokens])
    return out


@every_kind
@every_width
def test_every_instruction_set_and_number_of_tokens_gives_the_same_bits(rng, pool, kind, num_bytes):
    data = random_blocks(rng, kind, 35, 768)
    x = rng.standard_normal((MAX_TOKENS, 768), dtype=np.float32)
    results = [products(pool, data, kind, isa, num_bytes, x) for isa in kernels.usable_isas()[:-1]]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@every_kind
@every_width
@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("bits", [0x00, 0xFF])
@pytest.mark.parametrize("sign", [1, -1])
def test_nothing_overflows_at_either_end_of_codes_and_scales(pool, kind, isa, num_bytes, bits, sign):
    data = np.full_like(random_blocks(np.random.default_rng(0), kind, 16, 512), bits)
    blocks = data.reshape(16, 2, -1)
    for offset in HALF_OFFSETS[kind]:
        blocks[:, :, offset : offset + 2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    x = np.full((MAX_TOKENS, 512), sign * 127, np.float32)
    expected = x.astype(np.float64) @ dequantized(data, kind).astype(np.float64).T
    np.testing.assert_allclose(products(pool, data, kind, isa, num_bytes, x), expected, rtol=1e-6)

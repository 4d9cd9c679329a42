"""Random weights in every GGUF format, for tests and benchmarks of the kernels."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray

T = GGMLQuantizationType

HALF_OFFSETS = {
    T.Q4_0: (0,),
    T.Q4_1: (0, 2),
    T.Q5_0: (0,),
    T.Q5_1: (0, 2),
    T.Q8_0: (0,),
    T.Q2_K: (80, 82),
    T.Q3_K: (108,),
    T.Q4_K: (0, 2),
    T.Q5_K: (0, 2),
    T.Q6_K: (208,),
    T.IQ4_NL: (0,),
    T.IQ4_XS: (0,),
    T.IQ2_XXS: (0,),
    T.IQ2_XS: (0,),
    T.IQ2_S: (0,),
    T.IQ3_XXS: (0,),
    T.IQ3_S: (0,),
    T.IQ1_S: (0,),
    T.IQ1_M: (),
    T.TQ1_0: (52,),
    T.TQ2_0: (64,),
}
"""Quantised formats with half-precision scales: the byte offsets of these in a block; every other byte of a block may
hold anything."""
POWER_OFFSETS = {T.MXFP4: (0,)}
"""Formats whose scales are powers of two of one byte (E8M0), and where these are."""
E4M3_OFFSETS = {T.NVFP4: (0, 1, 2, 3)}
"""Formats whose scales are floats of seven bits (UE4M3), and where these are."""
QUANTIZED = tuple(sorted(HALF_OFFSETS.keys() | POWER_OFFSETS.keys() | E4M3_OFFSETS.keys()))
"""Every quantised format that is promised."""
FLOATS = frozenset({T.F32, T.F16, T.BF16})
FORMATS = tuple(sorted({*FLOATS, *QUANTIZED}))
"""What matrices may be: tests/kernels/linear/test_formats.py holds `kernels.formats()` to it."""


def random_blocks(
    rng: np.random.Generator, ggml_type: int, rows: int, cols: int, scale: float = 0.002
) -> NDArray[np.uint8]:
    """Bytes [rows, row bytes] of a random matrix: arbitrary bits, but finite block scales of about `scale`."""
    kind = GGMLQuantizationType(ggml_type)
    block_weights, block_bytes = GGML_QUANT_SIZES[kind]
    if block_weights == 1:
        values = rng.standard_normal((rows, cols), dtype=np.float32)
        return quants.quantize(values, kind).view(np.uint8).reshape(rows, cols * block_bytes)
    blocks = rng.integers(0, 256, (rows, cols // block_weights, block_bytes), dtype=np.uint8)
    for offset in HALF_OFFSETS.get(kind, ()):
        halves = rng.normal(0.0, scale, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, offset : offset + 2] = halves[..., None].view(np.uint8)
    if kind == T.IQ1_M:
        set_scattered(blocks, rng.normal(0.0, scale, blocks.shape[:2]).astype(np.float16))
    for offset in POWER_OFFSETS.get(kind, ()):
        middle = 128 + round(np.log2(scale))
        blocks[:, :, offset] = rng.integers(middle - 2, middle + 2, blocks.shape[:2])
    for offset in E4M3_OFFSETS.get(kind, ()):
        sizes = np.abs(rng.normal(0.0, scale, blocks.shape[:2])).astype(np.float32)
        blocks[:, :, offset] = np.maximum(quants.NVFP4.fp32_to_ue4m3(2 * sizes), 1)
    return blocks.reshape(rows, -1)


def random_scales(rng: np.random.Generator, ggml_type: int, count: int) -> NDArray[np.float32]:
    """Random scales of `count` matrices of a type, [count]; [] for types without such scales."""
    return rng.uniform(0.25, 4.0, count if ggml_type in E4M3_OFFSETS else 0).astype(np.float32)


def scaled(weights: NDArray[np.float32], scales: NDArray[np.float32]) -> NDArray[np.float64]:
    """Matrices [count, rows, cols] with their `random_scales`."""
    return weights.astype(np.float64) * (scales.astype(np.float64)[:, None, None] if scales.size else 1.0)


def set_scattered(blocks: NDArray[np.uint8], halves: NDArray[np.float16]) -> None:
    """IQ1_M stores a block's scale in the top nibbles of its last four words."""
    words = blocks[:, :, 48:].view("<u2")
    nibbles = halves.view(np.uint16)[..., None] >> np.array([0, 4, 8, 12], np.uint16) & 15
    words[...] = words & 0x0FFF | nibbles << 12


def dequantized(data: NDArray[Any], ggml_type: int) -> NDArray[np.float32]:
    """Bytes [..., row bytes] as the gguf package dequantises them, [..., cols]; the oracle."""
    if ggml_type == GGMLQuantizationType.I32:
        return data.astype(np.float32)
    rows = data.reshape(-1, data.shape[-1])
    # The package takes 16 rows at a time, which are short in tests: with longer ones it is four times as fast.
    joined = rows.reshape(len(rows) // gcd(len(rows), 16), -1)
    values: NDArray[np.float32] = quants.dequantize(joined, GGMLQuantizationType(ggml_type))
    return values.reshape(*data.shape[:-1], -1)

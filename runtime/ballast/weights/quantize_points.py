"""Quantises floats to GGUF blocks whose codes are points of a grid, or have three values. For tests and tiny
models.

A weight is d · (2 n + 1) · unit · level: n is a sub-block's, and levels are those of the nearest point, found as that
of the weights rounded to levels each by itself. Grids are the gguf package's, and so is the order of fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import gguf.quants
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from ballast.weights.block_fields import Bytes, Floats, half, inverse, join, rounded, words

Numbers = NDArray[np.int64]
_SHIFT = 1 / 8
"""Offset of IQ1's points, up or down."""
_TERNARY_STEP = 1.2
"""Step of three values with the least error, relative to the root mean square of normally distributed weights."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a type scales its points."""

    grid: Any
    """The class of the gguf package with the grid."""
    sub_block: int
    """Weights that share n."""
    top: int
    """The largest n."""
    unit: float
    reach: float
    """Scale of the largest level relative to the sub-block's largest weight, tuned for normal weights."""


_IQ2_XXS = _Kind(gguf.quants.IQ2_XXS, 32, 15, 1 / 8, 0.75)
_IQ2_XS = _Kind(gguf.quants.IQ2_XS, 16, 15, 1 / 8, 0.85)
_IQ2_S = _Kind(gguf.quants.IQ2_S, 16, 15, 1 / 8, 0.85)
_IQ3_XXS = _Kind(gguf.quants.IQ3_XXS, 32, 15, 1 / 4, 0.95)
_IQ3_S = _Kind(gguf.quants.IQ3_S, 32, 15, 1.0, 0.95)
_IQ1_S = _Kind(gguf.quants.IQ1_S, 32, 7, 1.0, 0.55)
_IQ1_M = _Kind(gguf.quants.IQ1_S, 16, 7, 1.0, 0.65)


def _iq2_xxs(blocks: Floats) -> Bytes:
    """8 groups of 32: 4 points, 4 times 7 bits of signs with n above them."""
    d, n, scaled = _scaled(blocks, _IQ2_XXS)
    signs, magnitudes = _even_signs(scaled)
    numbers = _nearest(magnitudes, _IQ2_XXS).reshape(-1, 8, 4)
    return join(half(d), _side_by_side(words(numbers, 8), _signs_and_n(signs, n)))


def _iq2_xs(blocks: Floats) -> Bytes:
    """32 points with their signs above them; n of 16 weights in a nibble."""
    d, n, scaled = _scaled(blocks, _IQ2_XS)
    signs, magnitudes = _even_signs(scaled)
    return join(half(d), words(_nearest(magnitudes, _IQ2_XS) | signs << 9, 16), _nibbles(n))


def _iq2_s(blocks: Floats) -> Bytes:
    """32 points, their low 8 bits, all signs, their other two bits; n of 16 weights in a nibble."""
    d, n, scaled = _scaled(blocks, _IQ2_S)
    numbers = _nearest(np.abs(scaled), _IQ2_S)
    high = _bits_of(numbers.reshape(-1, 8, 4) >> 8, 2)
    return join(half(d), words(numbers & 255, 8), words(_negative(scaled), 8), words(high, 8), _nibbles(n))


def _iq3_xxs(blocks: Floats) -> Bytes:
    """64 points of 4; of each group of 32, 4 times 7 bits of signs with n above them."""
    d, n, scaled = _scaled(blocks, _IQ3_XXS)
    signs, magnitudes = _even_signs(scaled)
    return join(half(d), words(_nearest(magnitudes, _IQ3_XXS), 8), _signs_and_n(signs, n))


def _iq3_s(blocks: Floats) -> Bytes:
    """64 points of 4, their low 8 bits, their ninth, all signs; n of 32 weights in a nibble."""
    d, n, scaled = _scaled(blocks, _IQ3_S)
    numbers = _nearest(np.abs(scaled), _IQ3_S)
    high = _bits_of(numbers.reshape(-1, 8, 8) >> 8, 1)
    return join(half(d), words(numbers & 255, 8), words(high, 8), words(_negative(scaled), 8), _nibbles(n))


def _iq1_s(blocks: Floats) -> Bytes:
    """32 points, their low 8 bits; of each group of 32, 4 times 3 high bits, n, and whether points are moved down."""
    d, n, scaled = _scaled(blocks, _IQ1_S)
    numbers, is_down = _shifted_points(scaled.reshape(-1, 8, 32), _IQ1_S)
    high = _bits_of(numbers.reshape(-1, 8, 4) >> 8, 3) | n << 12 | is_down << 15
    return join(half(d), words(numbers & 255, 8), words(high, 16))


def _iq1_m(blocks: Floats) -> Bytes:
    """As IQ1_S with a nibble per point: 3 bits and whether it is moved down; n of 16 weights in 3 bits. The block's
    scale is the top nibbles of those words."""
    d, n, scaled = _scaled(blocks, _IQ1_M)
    numbers, is_down = _shifted_points(scaled.reshape(-1, 32, 8), _IQ1_M)
    nibbles = numbers >> 8 | is_down << 3
    scattered = d.astype("<f2").view("<u2").astype(np.int64) >> 4 * np.arange(4) & 15
    scales = _bits_of(n.reshape(-1, 4, 4), 3) | scattered << 12
    return join(words(numbers & 255, 8), _nibbles(nibbles), words(scales, 16))


def _ternary(ggml_type: GGMLQuantizationType) -> Callable[[Floats], Bytes]:
    def blocks_of(blocks: Floats) -> Bytes:
        """256 weights: -d, 0 or d each, as the package packs them."""
        d = rounded(np.float32(_TERNARY_STEP) * np.sqrt(np.mean(blocks**2, axis=-1, keepdims=True)))
        codes = np.clip(np.rint(blocks * inverse(d)), -1, 1)
        return gguf.quants.quantize(codes * d, ggml_type).view(np.uint8)

    return blocks_of


QUANTIZERS: dict[GGMLQuantizationType, Callable[[Floats], Bytes]] = {
    GGMLQuantizationType.IQ2_XXS: _iq2_xxs,
    GGMLQuantizationType.IQ2_XS: _iq2_xs,
    GGMLQuantizationType.IQ2_S: _iq2_s,
    GGMLQuantizationType.IQ3_XXS: _iq3_xxs,
    GGMLQuantizationType.IQ3_S: _iq3_s,
    GGMLQuantizationType.IQ1_S: _iq1_s,
    GGMLQuantizationType.IQ1_M: _iq1_m,
    GGMLQuantizationType.TQ1_0: _ternary(GGMLQuantizationType.TQ1_0),
    GGMLQuantizationType.TQ2_0: _ternary(GGMLQuantizationType.TQ2_0),
}
"""Functions from blocks [blocks, 256] to uint8 [blocks, bytes]."""


def _scaled(blocks: Floats, kind: _Kind) -> tuple[Floats, Numbers, Floats]:
    """Blocks [blocks, 256] → d [blocks, 1], n [blocks, sub-blocks], and the weights in levels [blocks, 256]."""
    subs = blocks.reshape(len(blocks), -1, kind.sub_block)
    largest_level = np.float32(max(kind.grid.grid_map))
    step = np.abs(subs).max(axis=-1) * (np.float32(kind.reach) / (largest_level * np.float32(kind.unit)))
    d = rounded(step.max(axis=-1, keepdims=True) / np.float32(2 * kind.top + 1))
    n = np.clip(np.rint((step * inverse(d) - 1) / 2), 0, kind.top).astype(np.int64)
    of_sub = d * (2 * n + 1).astype(np.float32) * np.float32(kind.unit)
    return d, n, (subs * inverse(of_sub)[..., None]).reshape(blocks.shape)


@cache
def _points_of(grid: Any) -> Floats:
    """The levels of a grid's points, [points, weights]."""
    grid.init_grid()
    return np.asarray(grid.grid, np.float32).reshape(grid.grid_shape)


@cache
def _nearest_of_patterns(grid: Any) -> Numbers:
    """The nearest point of every combination of levels, whose number has the first weight's level as its lowest
    digit."""
    points, weights = _points_of(grid), grid.grid_shape[1]
    levels = np.array(grid.grid_map, np.float32)
    digits = np.arange(len(levels) ** weights)[:, None] // len(levels) ** np.arange(weights) % len(levels)
    distances = (points**2).sum(axis=1) - 2 * levels[digits] @ points.T
    nearest: Numbers = distances.argmin(axis=1)
    return nearest


def _nearest(values: Floats, kind: _Kind) -> Numbers:
    """The number of the nearest point for every few values along the last axis: [blocks, points]."""
    nearest = _nearest_of_patterns(kind.grid)
    weights = kind.grid.grid_shape[1]
    levels = np.array(kind.grid.grid_map, np.float32)
    digits = np.searchsorted((levels[1:] + levels[:-1]) / 2, values)
    pattern = digits.reshape(len(values), -1, weights) @ len(levels) ** np.arange(weights)
    numbers: Numbers = nearest[pattern]
    return numbers


def _shifted_points(parts: Floats, kind: _Kind) -> tuple[Numbers, Numbers]:
    """Values [blocks, parts, weights], of which a part is moved as one → points [blocks, 32], and whether parts are
    moved down [blocks, parts]."""
    points = _points_of(kind.grid)
    tried = []
    for shift in (_SHIFT, -_SHIFT):
        numbers = _nearest((parts - np.float32(shift)).reshape(len(parts), -1), kind)
        error = ((points[numbers].reshape(parts.shape) + np.float32(shift) - parts) ** 2).sum(axis=-1)
        tried.append((numbers, error))
    (up, up_error), (down, down_error) = tried
    is_down = (down_error < up_error).astype(np.int64)
    return np.where(np.repeat(is_down, 32 // parts.shape[1], axis=1), down, up), is_down


def _negative(scaled: Floats) -> Numbers:
    """One sign bit per weight, eight per byte: [blocks, 32]."""
    return _bits_of((scaled < 0).astype(np.int64).reshape(len(scaled), 32, 8), 1)


def _even_signs(scaled: Floats) -> tuple[Numbers, Floats]:
    """Signs of eight weights in seven bits [blocks, 32], and magnitudes: the eighth makes their number even, so where
    it is odd the smallest weight becomes none."""
    eights = scaled.reshape(len(scaled), 32, 8)
    is_negative, magnitudes = eights < 0, np.abs(eights)
    smallest = np.arange(8) == magnitudes.argmin(axis=-1)[..., None]
    changed = smallest & (is_negative.sum(axis=-1) % 2 == 1)[..., None]
    signs = _bits_of((is_negative ^ changed).astype(np.int64), 1)
    return signs & 127, np.where(changed, np.float32(0), magnitudes).reshape(scaled.shape)


def _bits_of(numbers: Numbers, bits: int) -> Numbers:
    """Joins numbers of `bits` bits along the last axis into one, the first in the lowest bits."""
    joined: Numbers = (numbers << bits * np.arange(numbers.shape[-1])).sum(axis=-1)
    return joined


def _signs_and_n(signs: Numbers, n: Numbers) -> Bytes:
    """A word for each group of 32 weights: [blocks, 8, 4]."""
    return words(_bits_of(signs.reshape(-1, 8, 4), 7) | n << 28, 32).reshape(-1, 8, 4)


def _nibbles(numbers: Numbers) -> Bytes:
    return words(_bits_of(numbers.reshape(len(numbers), -1, 2), 4), 8)


def _side_by_side(first: Bytes, second: Bytes) -> Bytes:
    """[blocks, groups, bytes] each, side by side."""
    return np.concatenate([first, second], axis=-1)

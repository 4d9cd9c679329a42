"""Rotary position tables, with YaRN (arXiv 2309.00071)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballast.model.layers.layer import AttentionMixer
from ballast.model.layers.positions import QueryScale, RopeSpec, YarnSpec


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos and sin of every position that can occur. With one table, a token's angles never depend on its batch."""

    cos: NDArray[np.float32]  # [positions, rope_dim / 2]
    sin: NDArray[np.float32]  # [positions, rope_dim / 2]
    query_scale: NDArray[np.float32] | None = None  # [positions] factor of a position's queries; None: 1
    rotates: bool = True
    """If false, all positions have the first row, which rotates nothing."""


def build_rope_table(rope: RopeSpec, num_positions: int, factors: NDArray[np.float32] | None = None) -> RopeTable:
    """Tables for positions 0…num_positions - 1, YaRN's attention factor included. `factors`: those of `rope_freqs`,
    at least one for each pair, for a rotation that has them."""
    frequencies = inverse_frequencies(rope)
    if rope.has_factors:
        assert factors is not None
        frequencies = frequencies / factors[: len(frequencies)]
    angles = np.outer(np.arange(num_positions, dtype=np.float64), frequencies)
    factor = rope.yarn.attention_factor if rope.yarn else 1.0
    return RopeTable(
        cos=np.ascontiguousarray(np.cos(angles) * factor, dtype=np.float32),
        sin=np.ascontiguousarray(np.sin(angles) * factor, dtype=np.float32),
        query_scale=None if rope.query_scale is None else _query_scales(rope.query_scale, num_positions),
    )


def unrotated(dim: int) -> RopeTable:
    """The table of `dim` entries that positions do not rotate."""
    return RopeTable(np.ones((1, dim // 2), np.float32), np.zeros((1, dim // 2), np.float32), rotates=False)


def _query_scales(scale: QueryScale, num_positions: int) -> NDArray[np.float32]:
    periods = np.arange(num_positions) // scale.length
    return (1.0 + scale.beta * np.log1p(periods)).astype(np.float32)


def inverse_frequencies(rope: RopeSpec) -> NDArray[np.float64]:
    """Radians per position for each of the rope_dim / 2 pairs."""
    pairs = np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim
    plain: NDArray[np.float64] = np.power(rope.theta, -pairs)
    if rope.yarn is None:
        return plain
    # Fast pairs keep their frequency, slow ones are stretched by `factor`, with a ramp between.
    low, high = _correction_range(rope.yarn, rope.dim, rope.theta)
    stretch = np.clip((np.arange(rope.dim // 2) - low) / (high - low), 0.0, 1.0)
    stretched: NDArray[np.float64] = plain * (1.0 - stretch) + plain / rope.yarn.factor * stretch
    return stretched


def softmax_scale(mixer: AttentionMixer) -> float:
    """Factor of attention scores, including YaRN's correction."""
    scale = 1.0 / math.sqrt(mixer.query_dim)
    yarn = mixer.rope.yarn
    if yarn is not None and yarn.factor > 1.0:
        scale *= (0.1 * yarn.mscale_all_dim * math.log(yarn.factor) + 1.0) ** 2
    return scale


def _correction_range(yarn: YarnSpec, dim: int, theta: float) -> tuple[float, float]:
    """Pair indices between which the ramp runs."""

    def pair_with_rotations(rotations: float) -> float:
        return dim * math.log(yarn.original_context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_with_rotations(yarn.beta_fast), pair_with_rotations(yarn.beta_slow)
    if yarn.is_rounded:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return (low, high) if high > low else (low, low + 0.001)

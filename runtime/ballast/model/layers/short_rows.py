"""Rows of a KV cache in 8 bits.

A row has numbers in e4m3, then a float32 scale of each part of them, then numbers in bfloat16. Latents have DeepSeek's
published layout (FlashMLA): a scale for 128 numbers, and the rotated key in bfloat16. Each head of a token has one
scale for its key and one for its value. A scale is the smallest power of two with which the numbers fit: multiplying by
it is exact, also in half precision. Independent of torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ballast.model.layers.latent import LATENTS_PER_SCALE
from ballast.model.layers.plane import ROW_ALIGNMENT

SHORT_ALIGNMENT = 4
"""Heads begin at multiples of this many bytes, and so do scales."""
MIN_SHORT_RANK = 32
"""Kernels take latents whose rank is a power of two from this one."""
LARGEST_CODE = 448.0
"""The largest number of e4m3."""
LARGEST = 448.0 * 128
"""The largest number in a row. Kernels multiply by scales times 2⁸ in half precision, so a scale is at most 2⁷."""
SMALLEST_SCALE = 2.0**-24


@dataclass(frozen=True, slots=True)
class ShortRows:
    """The layout of a row, in bytes from its begin."""

    widths: tuple[int, ...]
    """Numbers of 8 bits that share a scale, by scale."""
    num_wide: int
    """Numbers in bfloat16, the last ones."""

    @staticmethod
    def of_heads(num_heads: int, key_dim: int, v_dim: int) -> ShortRows:
        """The keys of all heads, then their values."""
        return ShortRows((key_dim,) * num_heads + (v_dim,) * num_heads, 0)

    @staticmethod
    def of_latents(rank: int, rope_dim: int) -> ShortRows:
        """A latent and a rotated key."""
        width = min(LATENTS_PER_SCALE, rank)
        return ShortRows((width,) * (rank // width), rope_dim)

    @property
    def scales_at(self) -> int:
        """The first scale, which is also the number of 8-bit numbers."""
        return sum(self.widths)

    @property
    def wide_at(self) -> int:
        """The first number in bfloat16."""
        return self.scales_at + 4 * len(self.widths)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return -(-(self.wide_at + 2 * self.num_wide) // ROW_ALIGNMENT) * ROW_ALIGNMENT

    @property
    def parts(self) -> Iterator[slice]:
        """The numbers of each scale."""
        bounds = itertools.accumulate(self.widths, initial=0)
        return (slice(begin, end) for begin, end in itertools.pairwise(bounds))

"""Rounds sizes up to powers of two, as required for the sides of Triton's tiles."""

from __future__ import annotations


def padded(size: int) -> int:
    """The smallest power of two that is at least `size` (1 or more)."""
    return 1 << (size - 1).bit_length()

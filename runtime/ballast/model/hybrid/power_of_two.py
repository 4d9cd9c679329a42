"""The sides of Triton's tiles, which are powers of two."""

from __future__ import annotations


def padded(size: int) -> int:
    """The smallest power of two that is not below `size`, which is at least 1."""
    return 1 << (size - 1).bit_length()

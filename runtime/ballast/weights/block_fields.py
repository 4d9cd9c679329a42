"""Converts numbers to the fields of GGUF blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def inverse(values: Floats) -> Floats:
    """1/x, and 0 for 0, since a scale of 0 quantises everything to 0."""
    return np.divide(np.float32(1), values, out=np.zeros_like(values), where=values != 0)


def rounded(values: Floats) -> Floats:
    """Rounded to half precision, as in the file."""
    return values.astype(np.float16).astype(np.float32)


def half(values: Floats) -> Bytes:
    """Half-precision numbers, two bytes for each along the last axis."""
    return values.astype("<f2").view(np.uint8)


def words(values: NDArray[Any], bits: int) -> Bytes:
    """Integers of `bits` bits (a multiple of eight) as little-endian bytes along the last axis."""
    return np.ascontiguousarray(values).astype(f"<u{bits // 8}").view(np.uint8)


def join(*parts: NDArray[Any]) -> Bytes:
    """Joins the fields of every block, uint8 [blocks, …] each, to uint8 [blocks, bytes]."""
    return np.concatenate([part.reshape(part.shape[0], -1) for part in parts], axis=1, dtype=np.uint8, casting="no")

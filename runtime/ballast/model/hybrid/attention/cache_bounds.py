"""Upper bounds of the numbers that a layer can write to its cache, for any tokens. Pure.

A norm's output is its weights times a vector whose length is at most √D, the root of its width: so an entry is at most
its weight times that root. What nothing norms, a latent model's key or a value, is a product of the layer's norm: by
Cauchy and Schwarz an entry is at most √D times the length of its row, each column times its weight of the norm, and its
bias. A rotation carries two entries into each other, so that either may come to the length of both; of what was normed,
to the length of the whole at most.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def largest_normed(norm: NDArray[np.float32]) -> float:
    """The bound of a latent, or of a head that is normed and then rotated. norm [its width]: the weights of its
    norm."""
    return math.sqrt(norm.size) * float(np.abs(norm).max())


def largest_product(norm: NDArray[np.float32], rows: NDArray[np.float32], bias: NDArray[np.float32] | None) -> F64:
    """Of each entry of a product, [rows]. norm [D]: the weights of the layer's norm; rows [rows, D]: of the matrix;
    bias [rows], where there is one."""
    with np.errstate(invalid="ignore"):  # a file may hold infinities
        lengths: F64 = np.sqrt(norm.size * np.square(rows.astype(np.float64) * norm).sum(1))
    return lengths if bias is None else lengths + np.abs(bias)


def largest_rotated(first: F64, second: F64, rotation: float) -> float:
    """The bound of rotated pairs, given the bounds of both entries; `rotation`: what a rotation multiplies
    lengths by."""
    return rotation * float(np.hypot(first, second).max())

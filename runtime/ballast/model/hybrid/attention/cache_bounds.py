"""Upper bounds of the numbers that a layer can write to its cache, for any tokens. Pure.

A norm's output is its weights times a vector of length at most √D, where D is its width. So an entry is at most its
weight times √D. A key or value without a norm of its own is a product of the layer's norm. By the Cauchy-Schwarz
inequality, its entry is at most √D times the length of its row, with each column multiplied by its weight of the norm,
plus its bias. A rotation mixes two entries, so each may reach the length of the pair; after a norm, each may reach at
most the length of the whole vector.
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
    """The bound of each entry of a product, [rows]. norm [D]: the weights of the layer's norm; rows [rows, D]: the
    matrix; bias [rows], if there is one."""
    with np.errstate(invalid="ignore"):  # a file may hold infinities
        lengths: F64 = np.sqrt(norm.size * np.square(rows.astype(np.float64) * norm).sum(1))
    return lengths if bias is None else lengths + np.abs(bias)


def largest_rotated(first: F64, second: F64, rotation: float) -> float:
    """The bound of rotated pairs, given the bounds of both entries; `rotation`: the factor by which a rotation scales
    lengths."""
    return rotation * float(np.hypot(first, second).max())

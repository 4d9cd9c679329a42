"""Compares two implementations (the device and the CPU, or two kernels), and makes the rows for the comparison."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_DIFFERENCE = 0.05
"""Of the largest result. Activations that the CPU rounds to a byte come to a fifth of it."""
LEAST_LARGEST = 1e-6
"""What counts as the largest result where all are smaller. Some files have experts of zeros; what differs by so little
changes nothing that it is added to."""
_DIFFERENT_ROWS = 256


def difference(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest difference of two results as a share of the largest expected one, or of LEAST_LARGEST. NaN where a
    result is NaN or infinite, so compare with `not difference <= MAX_DIFFERENCE`."""
    with np.errstate(invalid="ignore"):  # infinities
        return float(np.abs(found - expected).max() / np.maximum(np.abs(expected).max(), LEAST_LARGEST))


def random_rows(rng: np.random.Generator, num_rows: int, width: int) -> NDArray[np.float32]:
    """Activations [num_rows, width] to check and to time kernels with. More than 256 rows repeat: millions of random
    numbers take longer than what is done with them."""
    rows = rng.standard_normal((min(num_rows, _DIFFERENT_ROWS), width), dtype=np.float32)
    return rows if num_rows <= _DIFFERENT_ROWS else rows[np.arange(num_rows) % _DIFFERENT_ROWS]

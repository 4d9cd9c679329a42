"""Compares two implementations (the device and the CPU, or two kernels), and generates the test activations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_DIFFERENCE = 0.05
"""Maximum difference as a fraction of the largest result. The CPU's rounding of activations to one byte causes about a
fifth of it."""
MIN_PEAK = 1e-6
"""Lower bound of the largest result, by which differences are divided. Some files have experts of zeros; differences
this small have no effect on the sum that they are added to."""
_DIFFERENT_ROWS = 256


def difference(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest difference of two results as a fraction of the largest expected one, or of MIN_PEAK. The result
    is NaN if a value is NaN or infinite, so compare with `not difference <= MAX_DIFFERENCE`."""
    with np.errstate(invalid="ignore"):  # infinities
        return float(np.abs(found - expected).max() / np.maximum(np.abs(expected).max(), MIN_PEAK))


def random_rows(rng: np.random.Generator, num_rows: int, width: int) -> NDArray[np.float32]:
    """Random activations [num_rows, width] to check and time kernels. Rows repeat after 256: generating millions of
    random numbers would take longer than the check."""
    rows = rng.standard_normal((min(num_rows, _DIFFERENT_ROWS), width), dtype=np.float32)
    return rows if num_rows <= _DIFFERENT_ROWS else rows[np.arange(num_rows) % _DIFFERENT_ROWS]

"""Whether two ways of computing agree: the device and the CPU, or two kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_DIFFERENCE = 0.05
"""Of the largest result. Activations that the CPU rounds to a byte come to a fifth of it."""
LEAST_LARGEST = 1e-6
"""What counts as the largest result where all are smaller. Some files have experts of zeros; what differs by so little
changes nothing that it is added to."""


def difference(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest difference of two results as a share of the largest expected one, or of LEAST_LARGEST. NaN where a
    result is NaN or infinite, so compare with `not difference <= MAX_DIFFERENCE`."""
    with np.errstate(invalid="ignore"):  # infinities
        return float(np.abs(found - expected).max() / np.maximum(np.abs(expected).max(), LEAST_LARGEST))

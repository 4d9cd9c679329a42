"""Whether experts computed on the device agree with the CPU's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_DIFFERENCE = 0.05
"""Of the largest result. Activations that the CPU rounds to a byte come to a fifth of it."""


def difference(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest difference of two results as a share of the largest expected one. NaN where a result is NaN, so
    compare with `not difference <= MAX_DIFFERENCE`."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())

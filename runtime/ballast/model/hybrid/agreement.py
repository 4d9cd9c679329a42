"""Compares two implementations (the device and the CPU, or two kernels), and generates tokens to compare them with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

MAX_DIFFERENCE = 0.05
"""Maximum difference as a fraction of the largest result. The CPU's rounding of activations to one byte causes about a
fifth of it."""
MIN_PEAK = 1e-6
"""Lower bound of the largest result, by which differences are divided. Some files have experts of zeros; differences
this small have no effect on the sum that they are added to."""
_DIFFERENT_ROWS = 256
_DIFFERENT_CHOICES = 2048
"""Activations and choices of experts repeat after these numbers of tokens: a long step's random numbers would take
longer than the check. There are more choices, because the numbers of tokens per expert determine the time."""


def difference(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest difference of two results as a fraction of the largest expected one, or of MIN_PEAK. The result
    is NaN if a value is NaN or infinite, so compare with `not difference <= MAX_DIFFERENCE`."""
    with np.errstate(invalid="ignore"):  # infinities
        return float(np.abs(found - expected).max() / np.maximum(np.abs(expected).max(), MIN_PEAK))


@dataclass(frozen=True, slots=True)
class RandomTokens:
    """Random activations with random experts, to check and time kernels."""

    num_tokens: int
    x: NDArray[np.float32]
    """[at most _DIFFERENT_ROWS, D]"""
    ids: NDArray[np.int32]
    """[at most _DIFFERENT_CHOICES, k]"""
    weights: NDArray[np.float32]
    """[at most _DIFFERENT_CHOICES, k]"""

    @classmethod
    def draw(cls, num_tokens: int, width: int, experts: NDArray[np.int64], num_used: int) -> Self:
        """Tokens that use `num_used` different ones of `experts`, or all if there are fewer; always the same for a
        number of tokens."""
        rng = np.random.default_rng(num_tokens)
        num_choices = min(num_tokens, _DIFFERENT_CHOICES)
        chosen = rng.random((num_choices, len(experts))).argsort(1)[:, :num_used]
        x = rng.standard_normal((min(num_tokens, _DIFFERENT_ROWS), width), dtype=np.float32)
        weights = rng.random(chosen.shape, dtype=np.float32)
        return cls(num_tokens, x, experts[chosen].astype(np.int32), weights)

    def on(self, device: torch.device) -> list[torch.Tensor]:
        """x float32 [T, D], ids int32 and weights float32 [T, k] on a device."""
        token = torch.arange(self.num_tokens, device=device)
        given = (torch.from_numpy(values).to(device) for values in (self.x, self.ids, self.weights))
        return [values[token % len(values)] for values in given]

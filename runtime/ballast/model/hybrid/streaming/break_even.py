"""The number of tokens from which streaming a step's experts through the device beats computing them on the CPU.
Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one routed layer in a step of `tokens` tokens."""

    tokens: int
    cpu_s: float
    streamed_s: float

    @property
    def lead_s(self) -> float:
        """Seconds that streaming saves; negative if it takes longer."""
        return self.cpu_s - self.streamed_s


def break_even(timings: Sequence[Timing]) -> int | None:
    """The smallest number of tokens from which streaming takes no longer, interpolated between two of `timings`, which
    ascend. At least the number of the first timing. None if streaming takes longer in the last timing."""
    if not timings or timings[-1].lead_s < 0:
        return None
    above = next((index for index in range(len(timings), 0, -1) if timings[index - 1].lead_s < 0), 0)
    if above == 0:
        return timings[0].tokens
    before, after = timings[above - 1], timings[above]
    share = -before.lead_s / (after.lead_s - before.lead_s)
    return math.ceil(before.tokens + share * (after.tokens - before.tokens))

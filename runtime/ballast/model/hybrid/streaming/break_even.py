"""From how many tokens on a step's experts are better streamed through the device than computed by the CPU. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """One routed layer of a step of `tokens` tokens."""

    tokens: int
    cpu_s: float
    streamed_s: float

    @property
    def lead_s(self) -> float:
        """What streaming saves."""
        return self.cpu_s - self.streamed_s


def break_even(timings: Sequence[Timing]) -> int | None:
    """The fewest tokens from which on streaming takes no longer, by a straight line between two of `timings`, which
    ascend; never fewer than the first one's. None when it takes longer for the last."""
    if not timings or timings[-1].lead_s < 0:
        return None
    above = next((index for index in range(len(timings), 0, -1) if timings[index - 1].lead_s < 0), 0)
    if above == 0:
        return timings[0].tokens
    before, after = timings[above - 1], timings[above]
    share = -before.lead_s / (after.lead_s - before.lead_s)
    return math.ceil(before.tokens + share * (after.tokens - before.tokens))

"""The fraction of each layer's experts that a joint step streams to the GPU while the CPU computes the others, and the
numbers of tokens for which that is faster than either alone. Pure."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ballast.model.hybrid.streaming.break_even import Timing

MIN_GAIN = 0.05
"""Minimum relative gain over the faster processor for using both together."""


@dataclass(frozen=True, slots=True)
class JointTiming:
    """Seconds of one routed layer in a step of `tokens` tokens, by each processor alone and by both."""

    tokens: int
    cpu_s: float
    streamed_s: float
    fraction: float
    """The fraction of experts that were streamed when both computed."""
    joint_s: float

    @property
    def lead_s(self) -> float:
        """Seconds that both save over the faster one, less the minimum gain; negative if they save nothing."""
        return (1 - MIN_GAIN) * min(self.cpu_s, self.streamed_s) - self.joint_s


@dataclass(frozen=True, slots=True)
class JointSplit:
    """How joint steps divide the experts."""

    fractions: Sequence[tuple[int, float]]
    """(tokens, streamed fraction of the experts), ascending by tokens; interpolated in between."""
    from_tokens: int
    to_tokens: int
    """Fewest and most tokens of a joint step."""

    def is_faster(self, num_tokens: int) -> bool:
        """Whether a step of `num_tokens` is faster with both processors."""
        return self.from_tokens <= num_tokens <= self.to_tokens

    def fraction(self, num_tokens: int) -> float:
        """The streamed fraction, 0…1, of the experts in a step of `num_tokens`."""
        at = bisect.bisect(self.fractions, num_tokens, key=lambda point: point[0])
        if at in (0, len(self.fractions)):
            return self.fractions[min(at, len(self.fractions) - 1)][1]
        (low, below), (high, above) = self.fractions[at - 1 : at + 1]
        return below + (above - below) * (num_tokens - low) / (high - low)


def balanced_fraction(timing: Timing) -> float:
    """The streamed fraction of the experts for which both processors take equally long."""
    total_s = timing.cpu_s + timing.streamed_s
    return timing.cpu_s / total_s if total_s > 0 else 0.0


def joint_split(timings: Sequence[JointTiming]) -> JointSplit | None:
    """The split given by `timings`, which ascend by tokens. Its range is the longest run of timings in which both
    processors save time, extended to the points between two timings where the gain ends. None if they never save
    time."""
    by_gain = itertools.groupby(range(len(timings)), lambda index: timings[index].lead_s >= 0)
    runs = [list(run) for saves, run in by_gain if saves]
    if not runs:
        return None
    longest = max(runs, key=len)
    first, last = longest[0], longest[-1]
    from_tokens, to_tokens = timings[first].tokens, timings[last].tokens
    if first > 0:
        from_tokens = math.ceil(_crossing(timings[first - 1], timings[first]))
    if last + 1 < len(timings):
        to_tokens = math.floor(_crossing(timings[last], timings[last + 1]))
    return JointSplit([(timing.tokens, timing.fraction) for timing in timings], from_tokens, to_tokens)


def expert_counts(
    bounds: Sequence[Sequence[int]], fraction: float, copied: Sequence[Sequence[int]] | None = None
) -> list[int]:
    """The number of experts of each layer to stream, such that the running sum over layers stays closest to `fraction`
    of all experts that are copied. `bounds`: the possible numbers of each layer other than 0, ascending; the last is
    all. `copied`: how many of that number of experts are copied; the others are in a device's memory; None: all."""
    counts: list[int] = []
    owed = 0.0
    for of_layer, copied_of_layer in zip(bounds, bounds if copied is None else copied, strict=True):
        owed += fraction * copied_of_layer[-1]
        choices = zip((0, *of_layer), (0, *copied_of_layer), strict=True)
        count, num_copied = min(choices, key=lambda choice: abs(choice[1] - owed))
        owed -= num_copied
        counts.append(count)
    return counts


def _crossing(before: JointTiming, after: JointTiming) -> float:
    """The number of tokens between two timings at which the lead changes its sign."""
    share = before.lead_s / (before.lead_s - after.lead_s)
    return before.tokens + share * (after.tokens - before.tokens)

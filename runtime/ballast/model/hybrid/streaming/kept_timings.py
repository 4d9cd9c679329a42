"""Timings of streamed experts, and speeds of links, as JSON, for the measurements that a start stores. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from ballast.host.startup.measurements import kept_counts, kept_seconds
from ballast.model.hybrid.streaming.break_even import Timing
from ballast.model.hybrid.streaming.joint_split import JointTiming


def dump_timings(timings: Sequence[Timing] | Sequence[JointTiming]) -> list[list[float]]:
    """One list per timing."""
    return [list(astuple(timing)) for timing in timings]


def load_timings(value: Any, max_tokens: int) -> list[Timing]:
    """The timings, for up to `max_tokens` tokens. Raises ValueError, TypeError or IndexError for other values."""
    kept_counts([row[0] for row in value], max_tokens)
    return [Timing(tokens, _positive(cpu_s), _positive(streamed_s)) for tokens, cpu_s, streamed_s in value]


def load_joint_timings(value: Any, max_tokens: int) -> list[JointTiming]:
    """As `load_timings`, for timings of both processors together."""
    kept_counts([row[0] for row in value], max_tokens)
    timings = [
        JointTiming(tokens, _positive(cpu_s), _positive(streamed_s), kept_seconds(fraction), _positive(joint_s))
        for tokens, cpu_s, streamed_s, fraction, joint_s in value
    ]
    if any(timing.fraction > 1 for timing in timings):
        raise ValueError("a fraction is above 1")
    return timings


def load_speeds(value: Any, num_devices: int) -> list[float]:
    """The relative speeds of as many links. Raises ValueError or TypeError for other values."""
    speeds = [_positive(speed) for speed in value]
    if len(speeds) != num_devices or max(speeds) != 1:
        raise ValueError(f"{value!r} are not the relative speeds of {num_devices} links")
    return speeds


def _positive(value: Any) -> float:
    seconds = kept_seconds(value)
    if seconds == 0:
        raise ValueError("a layer cannot take 0 s")
    return seconds

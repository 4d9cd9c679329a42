"""Divides the chunks of a model's experts among the devices that copy them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

STEPS = 8
"""Speeds are compared in steps of an eighth of the fastest: small differences between two starts change nothing."""


def relative_speeds(measured: Sequence[float]) -> list[float]:
    """Measured speeds as fractions of the fastest, 1 / STEPS to 1."""
    fastest = max(measured)
    return [max(1, round(STEPS * speed / fastest)) / STEPS for speed in measured]


def device_of_each(num_bytes: Sequence[int], speeds: Sequence[float]) -> list[int]:
    """The number of the device that copies each chunk: the one that would have copied it first. The chunks up to any
    one are thereby divided in proportion to the speeds, as evenly as chunks allow. `num_bytes`: of each chunk."""
    taken = [0] * len(speeds)
    found = []
    for size in num_bytes:
        device = min(range(len(speeds)), key=lambda number: (taken[number] + size) / speeds[number])
        taken[device] += size
        found.append(device)
    return found

"""Divides the chunks of a model's experts among the devices that copy them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

STEPS = 8
"""Speeds are compared in steps of an eighth of the fastest: small differences between two starts change nothing."""


def relative_speeds(measured: Sequence[float]) -> list[float]:
    """Measured speeds as fractions of the fastest, 1 / STEPS to 1."""
    fastest = max(measured)
    return [max(1, round(STEPS * speed / fastest)) / STEPS for speed in measured]


def device_of_each(chunks: Sequence[tuple[int, int]], speeds: Sequence[float]) -> list[int]:
    """The number of the device that copies each chunk: the one that would have copied it first. The chunks up to any
    one are divided in proportion to the speeds, as evenly as chunks allow. `chunks`: layer and bytes of each.
    Among equal devices, each layer begins with another one: joint steps copy only the first chunks of a layer."""
    taken = [0] * len(speeds)
    found = []
    for layer, num_bytes in chunks:
        ends = [(total + num_bytes) / speed for total, speed in zip(taken, speeds, strict=True)]
        device = min(range(len(ends)), key=lambda number: (ends[number], (number - layer) % len(ends)))
        taken[device] += num_bytes
        found.append(device)
    return found

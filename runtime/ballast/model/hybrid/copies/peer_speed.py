"""Measures how fast devices copy to each other, when a model is loaded."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import torch

from ballast.model.hybrid.copies.device_sender import DeviceSender
from ballast.model.hybrid.platforms.interface import Platform

_BYTES = 128 << 20
_TIMED = 3
"""Number of timed copies per direction. The shortest one counts."""


def peer_gigabyte_s(devices: Sequence[tuple[Platform, DeviceSender]]) -> float:
    """Seconds in which the slowest device copies a gigabyte to another one. All reach each other, and are idle."""
    pairs = itertools.permutations(devices, 2)
    return max(_copy_s(source, sender, target) for (source, sender), (target, _) in pairs) * 1e9 / _BYTES


def _copy_s(source: Platform, sender: DeviceSender, target: Platform) -> float:
    durations = []
    with source.active():
        memory = torch.empty(_BYTES, dtype=torch.uint8, device=source.device)
        for _ in range(1 + _TIMED):  # the first copy of two devices takes longer
            source.synchronize()
            begin = time.perf_counter()
            sender.send([memory], [target.device])
            target.synchronize()
            durations.append(time.perf_counter() - begin)
    return min(durations[1:])

"""Measures how fast devices copy to each other, when a model is loaded."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence

import torch

from ballast.model.hybrid.copies.device_sender import DeviceSender
from ballast.model.hybrid.platforms.interface import Platform

log = logging.getLogger(__name__)

_BYTES = 128 << 20
_TIMED = 3
"""Number of timed copies per direction. The shortest one counts."""


def peer_gigabyte_s(devices: Sequence[tuple[Platform, DeviceSender]]) -> float:
    """Seconds in which the slowest device copies a gigabyte to another one. All reach each other, and are idle."""
    pairs = itertools.permutations(devices, 2)
    durations = [_copy_s(source, sender, target) * 1e9 / _BYTES for (source, sender), (target, _) in pairs]
    log.info("copies between GPUs measured", extra={"gb_per_s": [round(1 / each, 1) for each in durations]})
    return max(durations)


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

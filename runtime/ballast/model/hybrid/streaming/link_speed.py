"""Measures how fast devices copy experts from host memory, when a model is loaded: all at the same time, because their
links may share a bus, and because all of them read host memory."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence

import torch

from ballast.awake_clock import AwakeClock
from ballast.errors import EngineDeadError
from ballast.model.hybrid.faults.device_wait import LIMIT_S, wait_for
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.streaming.host_memory import HostExpertPart, HostPanels
from ballast.model.hybrid.streaming.streamed_experts import copy_pieces

log = logging.getLogger(__name__)

_COPIES = 8
"""Number of matrices that each device copies, if the model has as many."""
_MAX_BYTES = 256 << 20
"""Most bytes of a copy."""


def measured_speeds(devices: Sequence[torch.device], layers: Sequence[Sequence[HostExpertPart]]) -> list[float]:
    """Bytes per second of each device's link. The experts' memory must be pinned. Raises EngineDeadError when a device
    hangs."""
    matrices = [matrix for parts in layers for part in parts for matrix in part.matrices][:_COPIES]
    links = [_DeviceLink(device, matrices) for device in devices]
    for link in links:
        link.copy()  # the first copies of a process take longer
    for link in links:
        link.wait()
    begin, clock = time.perf_counter(), AwakeClock.for_limit(LIMIT_S)
    for link in links:
        link.copy()
    ended_s: dict[_DeviceLink, float] = {}
    while len(ended_s) < len(links):
        if clock.now() > LIMIT_S:
            raise EngineDeadError(f"copies of experts to {len(links)} GPUs take longer than {LIMIT_S:g} s")
        ended_s |= {link: time.perf_counter() - begin for link in links if link not in ended_s and link.is_done()}
    speeds = [link.num_bytes / ended_s[link] for link in links]
    log.info(
        "links measured",
        extra={
            "devices": list(map(str, devices)),
            "gb_per_s": [round(speed / 1e9, 1) for speed in speeds],
            "reach_each_other": all(
                platform_of(one).reaches(other) for one, other in itertools.permutations(devices, 2) if one != other
            ),
        },
    )
    return speeds


class _DeviceLink:
    """Copies of one device."""

    def __init__(self, device: torch.device, matrices: Sequence[HostPanels]) -> None:
        self._platform = platform_of(device)
        self._stream = self._platform.new_stream()
        self._sources = [(matrix, min(matrix.num_experts * matrix.expert_bytes, _MAX_BYTES)) for matrix in matrices]
        self.num_bytes = sum(size for _, size in self._sources)
        self._target = torch.empty(max(size for _, size in self._sources), dtype=torch.uint8, device=device)
        self._stream.wait_event(self._platform.current_stream().record_event())  # its memory may still be in use
        self._copied = self._stream.record_event()

    def copy(self) -> None:
        with self._platform.on(self._stream):
            for matrix, size in self._sources:
                copy_pieces(self._target[:size], matrix, 0)
        self._copied = self._stream.record_event()

    def is_done(self) -> bool:
        return bool(self._copied.query())

    def wait(self) -> None:
        wait_for([self._copied], lambda: None)

"""The platform of torch's CPU device: work is done when it is asked for, and host memory is the device's."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from ballast.model.hybrid.platforms.interface import Take
from ballast.model.hybrid.platforms.platform_of import PLATFORMS


class DoneEvent:
    """What was asked for is done."""

    def query(self) -> bool:
        return True

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


class HostStream:
    """The stream of a device without a queue."""

    def record_event(self) -> DoneEvent:
        return DoneEvent()

    def wait_event(self, event: DoneEvent) -> None:
        pass

    def synchronize(self) -> None:
        pass


class CpuPlatform:
    """Implements `Platform`, also for kernels that Triton's interpreter runs."""

    pins = False
    has_fast_launches = False
    term_dtype = torch.float32
    multiplies_halves = False
    name = "cpu"
    num_processors = 3
    has_large_memory = False
    launches_early = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def reaches(self, other: torch.device) -> bool:
        """See `Platform`."""
        return True

    def host_memory(self) -> Take:
        """See `Platform`."""
        return lambda num_bytes: np.empty(num_bytes, np.uint8)

    def new_stream(self, priority: int = 0) -> HostStream:
        """See `Platform`."""
        return HostStream()

    def active(self) -> AbstractContextManager[object]:
        """See `Platform`."""
        return nullcontext()

    def on(self, stream: object) -> AbstractContextManager[object]:
        """See `Platform`."""
        return nullcontext()

    def current_stream(self) -> HostStream:
        """See `Platform`."""
        return HostStream()

    def is_on_default_stream(self) -> bool:
        """See `Platform`."""
        return True

    def event(self) -> DoneEvent:
        """See `Platform`."""
        return DoneEvent()

    def synchronize(self) -> None:
        """See `Platform`."""


PLATFORMS["cpu"] = CpuPlatform

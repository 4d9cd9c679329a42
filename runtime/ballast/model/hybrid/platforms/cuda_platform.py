"""The platform of CUDA devices."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any

import torch

from ballast.model.hybrid.platforms.interface import Take
from ballast.model.hybrid.platforms.pinned_memory import take_pinned
from ballast.model.hybrid.platforms.registrar import CudaRegistrar

EARLY_CAPABILITY = 9
"""GPUs launch kernels early from this compute capability on."""


class CudaPlatform:
    """Implements `Platform`."""

    pins = True
    has_fast_launches = True
    term_dtype = torch.bfloat16
    multiplies_halves = True

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def name(self) -> str:
        """See `Platform`."""
        return torch.cuda.get_device_name(self.device)

    @cached_property
    def num_processors(self) -> int:
        """See `Platform`."""
        return int(torch.cuda.get_device_properties(self.device).multi_processor_count)

    @cached_property
    def has_large_memory(self) -> bool:
        """See `Platform`."""
        return torch.cuda.get_device_capability(self.device) in {(9, 0), (10, 0), (10, 3)}

    @cached_property
    def launches_early(self) -> bool:
        """See `Platform`."""
        return torch.cuda.get_device_capability(self.device) >= (EARLY_CAPABILITY, 0)

    def reaches(self, other: torch.device) -> bool:
        """See `Platform`."""
        return torch.cuda.can_device_access_peer(self.device, other)

    def host_memory(self) -> Take:
        """See `Platform`."""
        return partial(take_pinned, CudaRegistrar())

    def new_stream(self, priority: int = 0) -> torch.cuda.Stream:
        """See `Platform`."""
        return torch.cuda.Stream(self.device, priority=priority)  # type: ignore[no-untyped-call]  # torch has no types for it

    def active(self) -> AbstractContextManager[object]:
        """See `Platform`."""
        return torch.cuda.device(self.device)

    def on(self, stream: Any) -> AbstractContextManager[object]:
        """See `Platform`."""
        return torch.cuda.stream(stream)

    def current_stream(self) -> torch.cuda.Stream:
        """See `Platform`."""
        return torch.cuda.current_stream(self.device)

    def is_on_default_stream(self) -> bool:
        """See `Platform`."""
        return bool(torch.cuda.current_stream(self.device) == torch.cuda.default_stream(self.device))

    def event(self) -> torch.Event:
        """See `Platform`."""
        return torch.Event(self.device)

    def synchronize(self) -> None:
        """See `Platform`."""
        torch.cuda.synchronize(self.device)

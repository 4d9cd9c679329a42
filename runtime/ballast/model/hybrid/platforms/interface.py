"""The interface of a platform: the services of one device other than kernels. Nothing here needs Triton."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Take = Callable[[int], Bytes]
"""Allocates bytes that are freed when nothing refers to the result. Raises MemoryError."""


class Stream(Protocol):
    """The part of torch.cuda.Stream that is used: a queue whose work is done in order."""

    def record_event(self) -> Any:
        """An event that happens when all work queued so far is done."""

    def wait_event(self, event: Any) -> None:
        """Make work that is queued from now on wait for the event."""

    def synchronize(self) -> None:
        """Wait until all work queued so far is done."""


class ReusableEvent(Protocol):
    """The part of torch.Event that is used."""

    def record(self) -> None:
        """Record: the event happens when all work queued so far on the current stream is done."""

    def synchronize(self) -> None:
        """Wait until the last recorded event has happened."""


class Platform(Protocol):
    """The services of one device."""

    device: torch.device
    pins: bool
    """Whether host memory for copies must be page-locked. Copies then run concurrently with computation."""
    has_fast_launches: bool
    """Whether one kernel launch is cheaper than several torch operations."""
    term_dtype: torch.dtype
    """Type of the terms into which kernels split float32 activations."""
    multiplies_halves: bool
    """Whether matrices in half precision are multiplied with sums in float32."""

    @property
    def name(self) -> str:
        """The device's name in records."""

    @property
    def num_processors(self) -> int:
        """Multiprocessors of the device: minimum number of programs that run at the same time."""

    @property
    def has_large_memory(self) -> bool:
        """Whether a program may use 200 KiB of shared memory."""

    @property
    def launches_early(self) -> bool:
        """Whether kernels that begin with `wait_for_previous` may be launched before the kernel in front has ended."""

    def reaches(self, other: torch.device) -> bool:
        """Whether this device can write to another one's memory, so that copies need no host memory."""

    def host_memory(self) -> Take:
        """The allocator of host memory for large copies. Raises OSError if the driver of a GPU is missing."""

    def new_stream(self, priority: int = 0) -> Stream:
        """Create a stream. Work of a lower `priority` number runs first; the default stream has 0."""

    def active(self) -> AbstractContextManager[object]:
        """A context in which this device is the calling thread's current device, on which it launches kernels."""

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        """A context in which `stream`, which belongs to this platform, is the current stream."""

    def current_stream(self) -> Stream:
        """The stream on which the calling thread queues work."""

    def is_on_default_stream(self) -> bool:
        """Whether the current stream is the default stream."""

    def event(self) -> ReusableEvent:
        """Create an event that can be recorded repeatedly."""

    def synchronize(self) -> None:
        """Wait until all work of all streams is done."""

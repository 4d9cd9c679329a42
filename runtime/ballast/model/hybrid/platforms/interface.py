"""The interface of a platform: what one device offers besides kernels. Nothing here needs Triton."""

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
    """The used part of torch.cuda.Stream: a queue whose work is done in order."""

    def record_event(self) -> Any:
        """An event that happens when all work queued so far is done."""

    def wait_event(self, event: Any) -> None:
        """Let work that is queued from now on wait for the event."""

    def synchronize(self) -> None:
        """Wait until all work queued so far is done."""


class ReusableEvent(Protocol):
    """The used part of torch.Event."""

    def record(self) -> None:
        """Let the event happen when all work queued so far on the current stream is done."""

    def synchronize(self) -> None:
        """Wait until the event that was recorded last has happened."""


class Platform(Protocol):
    """What one device offers."""

    device: torch.device
    pins: bool
    """Whether host memory for copies must be page-locked: then copies run while the device computes."""
    has_fast_launches: bool
    """Whether one launch of a kernel is cheaper than several operations of torch."""
    term_dtype: torch.dtype
    """Type of the terms into which kernels split float32 activations."""

    @property
    def name(self) -> str:
        """The device's name in records."""

    @property
    def num_processors(self) -> int:
        """Multiprocessors of the device: programs that run at the same time at least."""

    @property
    def has_large_memory(self) -> bool:
        """Whether a program may use 200 KiB of shared memory."""

    def host_memory(self) -> Take:
        """The allocator of host memory for large copies. Raises OSError if the driver of a GPU is missing."""

    def new_stream(self, priority: int = 0) -> Stream:
        """A stream of its own. Work of a lower `priority` number goes first; 0 is that of the default stream."""

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        """A context in which `stream`, one of this platform, is the current one."""

    def current_stream(self) -> Stream:
        """The stream on which the calling thread queues work."""

    def is_on_default_stream(self) -> bool:
        """Whether the current stream is the default one."""

    def event(self) -> ReusableEvent:
        """An event that can be recorded again and again."""

    def synchronize(self) -> None:
        """Wait until all work of all streams is done."""

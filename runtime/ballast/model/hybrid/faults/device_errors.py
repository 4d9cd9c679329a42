"""Errors that CUDA itself reports. The device is then lost or out of memory, so Ballast tries no other kernel and
always raises the error, even where it catches other exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ballast.host.vram import VramLimit, why_full
from ballast.model.hybrid.platforms.interface import Platform

DEVICE_ERRORS = (torch.AcceleratorError, torch.OutOfMemoryError)
"""Both are RuntimeErrors."""


def is_full(error: BaseException | None) -> bool:
    """Whether device memory is full. Allocations outside torch, such as those of a graph or a kernel, raise
    torch.AcceleratorError instead of torch.OutOfMemoryError."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, torch.AcceleratorError) and "out of memory" in str(error)
    )


class DeviceFullError(torch.OutOfMemoryError):
    """The memory of a device is full. The message has the device, its limit and its use."""


@contextmanager
def computing_on(platform: Platform, limit: VramLimit | None) -> Iterator[None]:
    """A context in which a device is the thread's current device. Raises DeviceFullError if its memory is full.
    `limit`: its memory limit, for the message."""
    try:
        with platform.active():
            yield
    except DeviceFullError:
        raise
    except torch.OutOfMemoryError as error:
        raise DeviceFullError(why_full(str(platform.device), limit, error)) from error

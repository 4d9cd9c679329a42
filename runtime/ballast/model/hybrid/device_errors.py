"""What CUDA itself reports. The device is lost or full then, so no other kernel is tried in place of the one that
failed: such an error is raised, whatever else is caught."""

from __future__ import annotations

import torch

DEVICE_ERRORS = (torch.AcceleratorError, torch.OutOfMemoryError)
"""Both are RuntimeErrors."""


def is_full(error: BaseException | None) -> bool:
    """Whether the device's memory is full. Memory that torch does not allocate itself, such as a graph's own or a
    kernel's, has the other type of error."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, torch.AcceleratorError) and "out of memory" in str(error)
    )

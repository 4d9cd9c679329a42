"""Errors that CUDA itself reports. The device is then lost or out of memory, so Ballast tries no other kernel and
always raises the error, even where it catches other exceptions."""

from __future__ import annotations

import torch

DEVICE_ERRORS = (torch.AcceleratorError, torch.OutOfMemoryError)
"""Both are RuntimeErrors."""


def is_full(error: BaseException | None) -> bool:
    """Whether device memory is full. Allocations outside torch, such as those of a graph or a kernel, raise
    torch.AcceleratorError instead of torch.OutOfMemoryError."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, torch.AcceleratorError) and "out of memory" in str(error)
    )

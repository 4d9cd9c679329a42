"""Packed weights in host memory, as a tensor over the same bytes."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray


def host_bytes(panels: NDArray[np.uint8]) -> torch.Tensor:
    """A view of contiguous panels, in their shape; they must outlive it. Torch has no read-only memory: the result must
    not be modified."""
    memory = (ctypes.c_uint8 * panels.nbytes).from_address(panels.ctypes.data)
    return torch.frombuffer(memory, dtype=torch.uint8).view(panels.shape)

"""What CUDA itself reports. The device is lost or full then, so no other kernel is tried in place of the one that
failed: such an error is raised, whatever else is caught."""

from __future__ import annotations

import torch

DEVICE_ERRORS = (torch.AcceleratorError, torch.OutOfMemoryError)
"""Both are RuntimeErrors."""

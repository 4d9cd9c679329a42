"""Selects the platform of a device."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ballast.model.hybrid.platforms.cuda_platform import CudaPlatform
from ballast.model.hybrid.platforms.interface import Platform

PLATFORMS: dict[str, Callable[[torch.device], Platform]] = {"cuda": CudaPlatform}
"""Keyed by device type. Tests add a platform for torch's CPU device."""


@functools.cache
def platform_of(device: torch.device) -> Platform:
    """The platform of a device, always the same object."""
    return PLATFORMS[device.type](device)

"""Selects the backend of a device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ballast.model.hybrid.backends.backend import Backend


def _cuda(device: torch.device) -> Backend:
    from ballast.model.hybrid.backends.cuda_backend import CudaBackend  # imports Triton

    return CudaBackend(device)


MAKERS: dict[str, Callable[[torch.device], Backend]] = {"cuda": _cuda}
"""Keyed by device type. Tests add a backend for torch's CPU device."""


def backend_of(device: torch.device) -> Backend:
    """The backend of a device."""
    return MAKERS[device.type](device)

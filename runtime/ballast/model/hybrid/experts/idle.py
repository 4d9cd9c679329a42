"""Routed experts that compute nothing, for steps that only bring up what the first use of a kernel brings up."""

from __future__ import annotations

from collections.abc import Callable

import torch


class IdleExperts:
    """Every layer's result is zero, at once: nobody waits while kernels are compiled, however long that takes."""

    bytes_read = 0

    def __init__(self) -> None:
        self._x = torch.empty(0)

    def begin(self, num_tokens: int) -> None:
        """Nothing to do."""

    def submit(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        """As `HostExperts.submit`."""
        self._x = x

    def result(self, layer: int) -> torch.Tensor:
        """float32 [T, D]."""
        return torch.zeros_like(self._x)

    def finish(self, alive: Callable[[], None]) -> None:
        """Nothing to wait for."""

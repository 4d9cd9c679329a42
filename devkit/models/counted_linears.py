"""Counts the bytes that a device would keep of dense matrices, without keeping them."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from ballast._core import kernels
from ballast.model.hybrid.linear import FloatLinear, Linear
from ballast.model.hybrid.weights import DeviceLoader, IsTaken
from devkit.kernels.plain_routing import Router


class CountedLinears:
    """Adds up the packed bytes of the matrices that its loaders give to a device."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def loader(self, is_taken: IsTaken) -> DeviceLoader:
        """A loader for layers of that device. `is_taken`: whether the device has a layer's experts."""
        return DeviceLoader(torch.device("cpu"), self._counted, Router, is_taken, nullcontext)

    def _counted(self, matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool = False) -> Linear:
        self.num_bytes += matrix.packed_nbytes
        return FloatLinear(torch.zeros(1, rows, cols))

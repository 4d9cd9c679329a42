"""What the hybrid model needs of a linear layer, and the plain one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from ballast._core import kernels


class Linear(Protocol):
    """One matrix a head. x float32 [T, heads, cols] → float32 [T, heads, rows]; without the heads where there is
    one."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


Linears = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
"""Several matrices of one x float32 [T, cols] → float32 [T, rows of each], rows any distance apart."""


class MakeLinear(Protocol):
    """Takes a packed matrix to the device. `rows` and `cols` are those of a head, as it is applied; one that was packed
    transposed holds floats."""

    def __call__(self, matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool = False) -> Linear: ...


def as_one(linear: Linear, rows: Sequence[int]) -> Linears:
    """Matrices that lie one below the other, so many rows each: one product."""
    return lambda x: torch.split(linear(x), list(rows), -1)


def one_by_one(linears: Sequence[Linear]) -> Linears:
    """A product for each."""
    return lambda x: tuple(linear(x) for linear in linears)


class FloatLinear:
    """Weights as float32, which nothing is rounded to: for the router, whose choice rounding would change."""

    def __init__(self, weight: torch.Tensor) -> None:
        """weight [heads, rows, cols]."""
        self._transposed = weight.transpose(1, 2)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_heads, cols, _ = self._transposed.shape
        product = x.reshape(-1, num_heads, cols).transpose(0, 1) @ self._transposed
        return product[0] if num_heads == 1 else product.transpose(0, 1)

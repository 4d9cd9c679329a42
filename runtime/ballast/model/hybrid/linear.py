"""The linear layers of the hybrid: their protocol, and one over float32 weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from ballast._core import kernels


class Linear(Protocol):
    """One matrix per head. x float32 [T, heads, cols] → float32 [T, heads, rows]; with a single head, the head axis is
    omitted."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


Linears = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
"""Several matrices applied to one x float32 [T, cols] → float32 [T, rows] of each; a result's rows may be strided."""


class MakeLinear(Protocol):
    """Makes a linear layer from a packed matrix, on the device. `rows` and `cols` are those of one head when the layer
    is applied. A matrix that was packed transposed holds floats."""

    def __call__(self, matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool = False) -> Linear: ...


def as_one(linear: Linear, rows: Sequence[int]) -> Linears:
    """Matrices that are stacked into one, with the number of rows of each: one product computes all."""
    return lambda x: torch.split(linear(x), list(rows), -1)


def one_by_one(linears: Sequence[Linear]) -> Linears:
    """Separate matrices: one product each."""
    return lambda x: tuple(linear(x) for linear in linears)


def one_after_the_other(parts: Sequence[Linears]) -> Linears:
    """The results of all parts, in order."""
    return parts[0] if len(parts) == 1 else lambda x: tuple(result for part in parts for result in part(x))


class FloatLinear:
    """A layer in float32 throughout. The router uses it, because rounding would change which experts are selected."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """weight [heads, rows, cols]; bias [rows], added to the products of a single head."""
        self._transposed = weight.transpose(1, 2)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_heads, cols, _ = self._transposed.shape
        product = x.reshape(-1, num_heads, cols).transpose(0, 1) @ self._transposed
        if num_heads > 1:
            return product.transpose(0, 1)
        return product[0] if self._bias is None else product[0] + self._bias

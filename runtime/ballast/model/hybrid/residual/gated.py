"""A residual stream of several rows per token, which blocks read through gates: the mean of normed rows, each number
with a gate (Qwen3.8-Flash-Next).

Shapes: T tokens, D hidden, N rows of a token.
"""

from __future__ import annotations

from typing import Protocol

import torch

from ballast.model.hybrid.residual.residual import BlockInput, Stream, StreamGates
from ballast.model.hybrid.steps.slices import PRODUCT_TOKENS, even_bounds
from ballast.model.layers.stream import GatedStreamSpec


class RowGates(Protocol):
    """The operations of gated rows between matrix products; see `GatedStreamSpec`."""

    def add(self, rows: torch.Tensor, parts: tuple[torch.Tensor, ...], products: torch.Tensor) -> None:
        """Add the sum of one or two `parts`, each [T, D], to the rows [T, N, D] of each token in place, times
        2 · sigmoid(products / N). `products` [T, N], whose tokens may be strided."""

    def norm(
        self,
        rows: torch.Tensor,
        weight: torch.Tensor,
        parts: tuple[torch.Tensor, ...] = (),
        products: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The RMS norm [T, N, D] of each row [T, N, D], with weight [N * D]. Adds `parts` before, as `add` does."""

    def low(self, products: torch.Tensor, num_rows: int) -> torch.Tensor:
        """silu(products / N) of products [T, rank], whose tokens may be strided."""

    def mean(self, normed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """The mean [T, D] of a token's normed rows [T, N, D] times the sigmoid of `gates` [T, N * D]."""


class GatedResidual:
    """Tokens have several rows, which blocks read through gates."""

    def __init__(self, spec: GatedStreamSpec, operations: RowGates) -> None:
        self._num_rows = spec.num_rows
        self._operations = operations

    def begin(self, embedded: torch.Tensor) -> torch.Tensor:
        """See `Residual`. All rows of a token are equal."""
        return embedded[:, None].repeat(1, self._num_rows, 1)

    def next_block(self, stream: Stream, parts: tuple[torch.Tensor, ...], block: BlockInput) -> torch.Tensor:
        """See `Residual`."""
        rows, before = stream.rows, stream.weights
        if len(rows) <= PRODUCT_TOKENS:
            read, stream.weights = self._read(rows, parts, before, block)
            return read
        read = rows.new_empty((len(rows), rows.shape[2]))
        stream.weights = rows.new_empty((len(rows), self._num_rows))
        for begin, end in even_bounds(0, len(rows), PRODUCT_TOKENS):
            of_parts = tuple(part[begin:end] for part in parts)
            products = None if before is None else before[begin:end]
            read[begin:end], weights = self._read(rows[begin:end], of_parts, products, block)
            if weights is not None:
                stream.weights[begin:end] = weights
        return read

    def add(self, stream: Stream, parts: tuple[torch.Tensor, ...]) -> None:
        """See `Residual`."""
        if parts:
            assert stream.weights is not None, "no block has read"
            self._operations.add(stream.rows, parts, stream.weights)

    def finish(self, stream: Stream, parts: tuple[torch.Tensor, ...], end: BlockInput) -> torch.Tensor:
        """See `Residual`. The output reads as blocks do."""
        return self.next_block(stream, parts, end)

    def _read(
        self,
        rows: torch.Tensor,
        parts: tuple[torch.Tensor, ...],
        products: torch.Tensor | None,
        block: BlockInput,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Add `parts` by the products of the last block; returns a block's input [T, D], and the products [T, N] of its
        weights; the output has none."""
        gates = block.connection
        assert isinstance(gates, StreamGates)
        assert not parts or products is not None, "no block has read"
        normed = self._operations.norm(rows, block.norm, parts, products)
        low, *weights = gates.down(normed.flatten(1))
        read = self._operations.mean(normed, gates.up(self._operations.low(low, self._num_rows)))
        return read, weights[0] if weights else None

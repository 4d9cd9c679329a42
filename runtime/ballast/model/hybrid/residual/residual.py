"""The residual stream of one model, to which blocks (attention or feed-forward) add.

Shapes: T tokens, D hidden, N rows of a token, W weights of a token and block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from ballast.model.hybrid.device_tensors import DeviceTensors
from ballast.model.hybrid.linear import FloatLinear, Linear, Linears
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.layers.stream import GatedStreamSpec, StreamSpec


@dataclass(frozen=True, slots=True)
class Connection:
    """The hyper-connection around one block. All numbers are float32."""

    products: Linear  # N * D → W
    base: torch.Tensor  # [W]
    scales: torch.Tensor  # [3]

    @staticmethod
    def load(tensors: DeviceTensors, spec: StreamSpec, block: str) -> Connection:
        """`block`: the begin of the roles, "attention" or "ffn"."""
        products = tensors.vector(f"{block}_stream_products").view(1, spec.num_weights, -1)
        base, scales = (tensors.vector(f"{block}_stream_{name}") for name in ("base", "scales"))
        return Connection(FloatLinear(products), base, scales)

    @staticmethod
    def load_end(tensors: DeviceTensors) -> Connection | None:
        """That of the output, whose weights add up the rows; None: the output reads their mean."""
        if "stream_end_products" not in tensors.host:
            return None
        products, base, scales = (tensors.vector(f"stream_end_{name}") for name in ("products", "base", "scales"))
        return Connection(FloatLinear(products.view(1, len(base), -1)), base, scales)


@dataclass(frozen=True, slots=True)
class StreamGates:
    """The gates with which one block, or the output, reads rows, and the weights with which a block adds to them."""

    down: Linears  # N * D → rank; and N, which give the weights of a block
    up: Linear  # rank → N * D

    @staticmethod
    def load(tensors: DeviceTensors, block: str) -> StreamGates:
        """`block`: the begin of the roles, "attention", "ffn" or "output"."""
        down, inject, merged = (f"{block}_stream_{name}" for name in ("down", "inject", "down_inject"))
        if merged in tensors.host:
            first = tensors.sliced_linears(merged)
        else:
            first = tensors.linears(down, *([inject] if inject in tensors.host else []))
        return StreamGates(first, tensors.linear(f"{block}_stream_up"))


@dataclass(frozen=True, slots=True)
class BlockInput:
    """What a block, or the output, applies to the stream before it reads."""

    norm: torch.Tensor  # [D], or [N * D] with gates: of each row apart
    connection: Connection | StreamGates | None = None
    """None: tokens have one row, or the output reads the mean of their rows."""

    @staticmethod
    def load(
        tensors: DeviceTensors, spec: StreamSpec | GatedStreamSpec | None, block: Literal["attention", "ffn", "output"]
    ) -> BlockInput:
        """That of one of a layer's two blocks, or of the output."""
        if isinstance(spec, GatedStreamSpec):
            return BlockInput(tensors.vector(f"{block}_stream_norm"), StreamGates.load(tensors, block))
        norm = tensors.vector(f"{block}_norm")
        if spec is None:
            return BlockInput(norm)
        connection = Connection.load_end(tensors) if block == "output" else Connection.load(tensors, spec, block)
        return BlockInput(norm, connection)


@dataclass(slots=True)
class Stream:
    """The stream of a step's tokens."""

    rows: torch.Tensor  # float32 [T, D], or [T, N, D]
    weights: torch.Tensor | None = None  # float32 [T, W], of the block that read last; with gates their products [T, N]

    def of(self, tokens: torch.Tensor) -> Stream:
        """A copy for the tokens with these indices, int64 [S]."""
        return Stream(self.rows[tokens], None if self.weights is None else self.weights[tokens])


class StreamMixer(Protocol):
    """The operations of hyper-connections; see `StreamSpec`."""

    def mix(self, rows: torch.Tensor, parts: tuple[torch.Tensor, ...], weights: torch.Tensor) -> None:
        """Mix the rows [T, N, D] of each token in place, and add to them the sum of at most two `parts`, each [T, D],
        by `weights` [T, W]."""

    def read(
        self, rows: torch.Tensor, products: torch.Tensor, connection: Connection, norm: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The RMS norm [T, D] of the weighted sum of each token's rows [T, N, D], and the weights [T, W]. `products`
        [T, W]: those of the connection."""


class Residual(Protocol):
    """How a device begins, reads, extends and ends the stream."""

    def begin(self, embedded: torch.Tensor) -> torch.Tensor:
        """The stream's rows for embedded tokens [T, D], which may be overwritten."""

    def next_block(self, stream: Stream, parts: tuple[torch.Tensor, ...], block: BlockInput) -> torch.Tensor:
        """Add `parts`, each [T, D], which the last block has computed; returns the input [T, D] of the next block."""

    def add(self, stream: Stream, parts: tuple[torch.Tensor, ...]) -> None:
        """Add `parts` alone."""

    def finish(self, stream: Stream, parts: tuple[torch.Tensor, ...], end: BlockInput) -> torch.Tensor:
        """Add `parts`; returns the input [T, D] of the output's matrix."""


class PlainResidual:
    """Tokens have one row, to which blocks add."""

    def __init__(self, pointwise: Pointwise) -> None:
        self._pointwise = pointwise

    def begin(self, embedded: torch.Tensor) -> torch.Tensor:
        """See `Residual`."""
        return embedded

    def next_block(self, stream: Stream, parts: tuple[torch.Tensor, ...], block: BlockInput) -> torch.Tensor:
        """See `Residual`."""
        return self._pointwise.add_and_norm(stream.rows, parts, block.norm)

    def add(self, stream: Stream, parts: tuple[torch.Tensor, ...]) -> None:
        """See `Residual`."""
        for part in parts:
            stream.rows += part

    def finish(self, stream: Stream, parts: tuple[torch.Tensor, ...], end: BlockInput) -> torch.Tensor:
        """See `Residual`."""
        return self._pointwise.add_and_norm(stream.rows, parts, end.norm)


class MixedResidual:
    """Tokens have several rows, which hyper-connections mix."""

    def __init__(self, spec: StreamSpec, mixer: StreamMixer, pointwise: Pointwise, rms_eps: float) -> None:
        self._spec = spec
        self._rms_eps = rms_eps
        self._mixer = mixer
        self._pointwise = pointwise

    def begin(self, embedded: torch.Tensor) -> torch.Tensor:
        """See `Residual`. All rows of a token are equal."""
        return embedded[:, None].repeat(1, self._spec.num_rows, 1)

    def next_block(self, stream: Stream, parts: tuple[torch.Tensor, ...], block: BlockInput) -> torch.Tensor:
        """See `Residual`."""
        assert isinstance(block.connection, Connection)
        self.add(stream, parts)
        products = block.connection.products(stream.rows.flatten(1))
        normed, stream.weights = self._mixer.read(stream.rows, products, block.connection, block.norm)
        return normed

    def add(self, stream: Stream, parts: tuple[torch.Tensor, ...]) -> None:
        """See `Residual`."""
        if parts:
            assert stream.weights is not None, "no block has read"
            self._mixer.mix(stream.rows, parts, stream.weights)

    def finish(self, stream: Stream, parts: tuple[torch.Tensor, ...], end: BlockInput) -> torch.Tensor:
        """See `Residual`."""
        self.add(stream, parts)
        if end.connection is None:
            return self._pointwise.norm(stream.rows.mean(1), end.norm)
        assert isinstance(end.connection, Connection)
        flat = stream.rows.flatten(1)
        # The length of all rows, without a copy of them.
        inverse = (torch.linalg.vector_norm(flat, dim=1, keepdim=True).square() / flat.shape[1] + self._rms_eps).rsqrt()
        products = end.connection.products(flat) * inverse * end.connection.scales
        shares = (products + end.connection.base).sigmoid() + self._spec.eps
        return self._pointwise.norm(torch.bmm(shares[:, None], stream.rows)[:, 0], end.norm)

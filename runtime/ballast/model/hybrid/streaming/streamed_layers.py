"""The routed layers of a model whose experts are streamed. Each device streams the experts of its own layers over its
own link."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from ballast.model.hybrid.platforms.interface import Platform
from ballast.model.hybrid.streaming.joint_split import JointSplit
from ballast.model.hybrid.streaming.streamed_experts import Resident, StreamedExperts


class StreamedLayers:
    """All routed layers with experts in host memory, computed by devices alone: the counterpart of `HostExperts` for
    steps of at least `from_tokens` tokens."""

    def __init__(self, devices: Sequence[StreamedExperts]) -> None:
        """`devices`: in the order of their layers."""
        self._devices = devices
        self._layers = [(own, index) for own in devices for index in range(own.num_layers)]
        """The device of each layer, and the layer's index there."""
        self.from_tokens = 1
        self.joint_split: JointSplit | None = None
        """How steps that also use the CPU divide the experts; None if there are no such steps."""

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def num_chunks(self) -> int:
        return sum(own.num_chunks for own in self._devices)

    @property
    def pass_bytes(self) -> int:
        """Bytes that a step copies."""
        return sum(own.pass_bytes for own in self._devices)

    @property
    def bytes_read(self) -> int:
        """Bytes of experts' weights copied so far."""
        return sum(own.bytes_read for own in self._devices)

    def bytes_read_by(self, device: torch.device) -> int:
        """The part of `bytes_read` that a device has copied."""
        return sum(own.bytes_read for own in self._devices if own.platform.device == device)

    def skip(self, resident: Sequence[Resident]) -> None:
        """See `StreamedExperts.skip`; `resident` has a function for each layer."""
        begin = 0
        for own in self._devices:
            own.skip(resident[begin : begin + own.num_layers])
            begin += own.num_layers

    @property
    def copies_concurrently(self) -> bool:
        """Whether devices copy pinned memory while they compute."""
        return all(own.platform.pins for own in self._devices)

    def platform(self, layer: int) -> Platform:
        """The platform of a layer's device."""
        own, _ = self._layers[layer]
        return own.platform

    def bounds(self, layer: int) -> list[int]:
        """See `StreamedExperts.bounds`."""
        own, index = self._layers[layer]
        return own.bounds(index)

    def begin(self, num_tokens: int) -> None:
        """Start a step that submits every layer in order. Every device starts to copy its first experts."""
        for own in self._devices:
            own.begin(num_tokens)

    def begin_first(self, counts: Sequence[int]) -> None:
        """See `StreamedExperts.begin_first`; `counts` has a number for each layer."""
        begin = 0
        for own in self._devices:
            own.begin_first(counts[begin : begin + own.num_layers])
            begin += own.num_layers

    def submit(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        """See `StreamedExperts.submit`. The layer's device is active."""
        own, index = self._layers[layer]
        own.submit(index, x, ids, weights)

    def pieces(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Iterator[None]:
        """See `StreamedExperts.pieces`."""
        own, index = self._layers[layer]
        return own.pieces(index, x, ids, weights)

    def result(self, layer: int) -> torch.Tensor:
        """See `StreamedExperts.result`."""
        own, index = self._layers[layer]
        return own.result(index)

    def finish(self, alive: Callable[[], None]) -> None:
        """Wait until the step is computed; see `StreamedExperts.finish`."""
        for own in self._devices:
            own.finish(alive)

    def is_done(self, timeout_s: float) -> bool:
        """Whether the step is computed now; never waits."""
        return all(own.is_done(timeout_s) for own in self._devices)

    def wait(self) -> None:
        """Wait until the step is computed and no copy is running."""
        for own in self._devices:
            own.wait()

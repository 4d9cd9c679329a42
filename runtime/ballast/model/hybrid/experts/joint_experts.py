"""Routed experts of steps that use both processors: for every layer, some experts are streamed to its device while the
CPU computes the others from host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ballast.model.hybrid.experts.divided_experts import RoutedLayers
from ballast.model.hybrid.streaming.joint_split import JointSplit, expert_counts
from ballast.model.hybrid.streaming.streamed_layers import StreamedLayers


class JointExperts:
    """`RoutedLayers` for steps of medium length. Experts 0…n - 1 of a layer are streamed, except those in the device's
    memory; n depends on these and on the number of tokens. A step must not overlap another one that uses `streamed`,
    because both would share its buffers."""

    def __init__(self, host: RoutedLayers, streamed: StreamedLayers, split: JointSplit) -> None:
        """`host` computes the experts that are not streamed; it has the same layers as `streamed`."""
        self.split = split
        self._host = host
        self._streamed = streamed
        self._bounds = [streamed.bounds(layer) for layer in range(streamed.num_layers)]
        self._counts = [0] * streamed.num_layers
        """Number of experts of each layer that the step streams."""

    @property
    def bytes_read(self) -> int:
        """Bytes of experts' weights read so far, by both processors and in steps of any kind."""
        return self._host.bytes_read + self._streamed.bytes_read

    def begin(self, num_tokens: int) -> None:
        """Start a step that submits every layer in order. The copies of its first experts start immediately."""
        copied = [self._streamed.num_copied(layer) for layer in range(self._streamed.num_layers)]
        self._counts = expert_counts(self._bounds, self.split.fraction(num_tokens), copied)
        self._host.begin(num_tokens)
        self._streamed.begin_first(self._counts)

    def submit(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        """See `HostExperts.submit`."""
        for _ in self.pieces(layer, x, ids, weights):
            pass

    def pieces(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Iterator[None]:
        """As `submit`: first the CPU's part, then one chunk per advance of the iterator."""
        is_streamed = ids < self._counts[layer]
        yield from self._host.pieces(layer, x, ids.masked_fill(is_streamed, -1), weights)
        if self._counts[layer] > 0:
            yield from self._streamed.pieces(layer, x, ids.masked_fill(~is_streamed, -1), weights)

    def result(self, layer: int) -> torch.Tensor:
        """The sum over the submitted experts, float32 [T, D] on the layer's device."""
        on_host = self._host.result(layer)
        return self._streamed.result(layer) + on_host if self._counts[layer] > 0 else on_host

    def is_done(self, timeout_s: float) -> bool:
        """Whether both have computed every layer; waits up to `timeout_s` for the CPU. Raises as `finish`."""
        return self._host.is_done(timeout_s) and self._streamed.is_done(timeout_s)

    def finish(self, alive: Callable[[], None]) -> None:
        """Wait until both have computed every layer, calling `alive` now and then. Raises what `HostExperts.finish` and
        `StreamedLayers.finish` raise."""
        self._host.finish(alive)
        self._streamed.finish(alive)

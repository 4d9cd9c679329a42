"""The routed experts of all layers, divided between a GPU and the CPU.

Between the transfer to the CPU and the wait for its results, the GPU computes the experts in its memory and a fraction
of the others.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ballast.model.hybrid.experts.division import MAX_SHARED_TOKENS, Divide, phase_of
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.streaming.streamed_experts import GroupedExperts


class RoutedLayers(Protocol):
    """The routed layers of a model, computed in order: `HostExperts`, `StreamedExperts` and `JointExperts`."""

    @property
    def bytes_read(self) -> int: ...

    def begin(self, num_tokens: int) -> None: ...

    def submit(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None: ...

    def pieces(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Iterator[None]: ...

    def result(self, layer: int) -> torch.Tensor: ...

    def is_done(self, timeout_s: float) -> bool: ...

    def finish(self, alive: Callable[[], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class LayerOnDevice:
    """The experts of a layer that the device computes. Each is computed in parts, whose results are summed."""

    gpu_experts: Sequence[GroupedExperts] = ()
    """The parts of the experts in device memory, which are selected by slot."""
    slots: torch.Tensor | None = None  # int32 [E], -1 for an expert that is not in device memory
    num_gpu_experts: int = 0
    across: Sequence[GroupedExperts] = ()
    """The parts of all experts in host memory, which are selected by id; empty if the device cannot read them."""
    expert_bytes: int = 0
    is_whole: bool = False
    """Whether every expert is in device memory: then no activations are sent to the CPU."""


class DividedExperts:
    """All routed layers of a model, computed in order after each `begin`. `host` computes the remaining experts; it has
    only the layers that are not entirely on the device."""

    def __init__(
        self, host: RoutedLayers, layers: Sequence[LayerOnDevice], divide: Divide, device: torch.device
    ) -> None:
        self._host = host
        self._layers = layers
        self._divide = divide
        has_host = [not layer.is_whole for layer in layers]
        self._host_index = [sum(has_host[:index]) for index in range(len(layers))]
        self.has_host = any(has_host)
        self.pcie_share = 0.0
        """The fraction of a decode step's experts in host memory that the device reads; see `set_pcie_share`."""
        self._share_now = 0.0
        self._share = torch.zeros((), device=device)
        self._num_across = torch.zeros(len(layers), dtype=torch.int64, device=device)
        self._num_across_seen = torch.zeros(len(layers), dtype=torch.int64, pin_memory=platform_of(device).pins)
        self._terms: list[torch.Tensor] = []

    def over(self, host: RoutedLayers) -> DividedExperts:
        """These experts with another `host`, and with the current PCIe share."""
        other = copy.copy(self)
        other._host, other._terms = host, []
        return other

    @property
    def can_share(self) -> bool:
        """Whether the device can read experts from host memory."""
        return any(layer.across for layer in self._layers)

    def set_pcie_share(self, share: float) -> None:
        """Set the fraction for the next steps. Captured steps also follow it, except those captured with a fraction of
        0, which contain no work for it."""
        self.pcie_share = self._share_now = share
        self._share.fill_(share)

    def leave_bus(self, is_left: bool) -> None:
        """If `is_left`, the device reads nothing over PCIe in the next steps, because other transfers need the bus, and
        the CPU computes its fraction; otherwise the device reads again. Queued on the current stream."""
        share = 0.0 if is_left else self.pcie_share
        if share != self._share_now:
            self._share_now = share
            self._share.fill_(share)

    @property
    def host_bytes_read(self) -> int:
        """Bytes of experts' weights that `host` has read so far."""
        return self._host.bytes_read

    @property
    def pcie_bytes_read(self) -> int:
        """Bytes of experts' weights in host memory that the device has read; the last step may be missing."""
        counts = self._num_across_seen.tolist()
        return sum(count * layer.expert_bytes for count, layer in zip(counts, self._layers, strict=True))

    def begin(self, num_tokens: int) -> None:
        """Start a step of `num_tokens` tokens that submits every layer in order."""
        if self.has_host:
            self._host.begin(num_tokens)

    def submit(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        """Start x float32 [T, D] of the `layer`th routed layer with the selected experts, ids int32 and weights float32
        [T, k]."""
        for _ in self.pieces(layer, x, ids, weights):
            pass

    def pieces(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Iterator[None]:
        """As `submit`, one piece per advance of the iterator, so that other work can be queued in between."""
        own = self._layers[layer]
        shares = self.pcie_share > 0 and bool(own.across) and 0 < len(ids) <= MAX_SHARED_TOKENS
        if own.slots is None and not shares:
            yield from self._host.pieces(self._host_index[layer], x, ids, weights)
            return
        share = self._share if shares else None
        division = self._divide(ids, own.slots, share, phase_of(layer), self._num_across[layer])
        if not own.is_whole:
            yield from self._host.pieces(self._host_index[layer], x, division.on_host, weights)
        self._terms = [part(x, division.gpu_slots, weights) for part in own.gpu_experts]
        if shares:
            self._terms += [part(x, division.across, weights) for part in own.across]

    def result(self, layer: int) -> torch.Tensor:
        """The sum over the submitted experts, float32 [T, D] on the device."""
        terms, self._terms = self._terms, []
        if not self._layers[layer].is_whole:
            terms.append(self._host.result(self._host_index[layer]))
        return functools.reduce(torch.add, terms)

    def is_done(self, timeout_s: float) -> bool:
        """See `HostExperts.is_done`."""
        return not self.has_host or self._host.is_done(timeout_s)

    def finish(self, alive: Callable[[], None]) -> None:
        """See `HostExperts.finish`."""
        self._num_across_seen.copy_(self._num_across, non_blocking=True)
        if self.has_host:
            self._host.finish(alive)

"""The routed experts of all layers, divided between GPUs and the CPU.

Between the transfer to the CPU and the wait for its results, a layer's GPU computes the experts in its memory and a
fraction of the others.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.model.hybrid.experts.division import MAX_SHARED_TOKENS, Divide, phase_of
from ballast.model.hybrid.experts.expert_cache import ExpertCache
from ballast.model.hybrid.experts.layer_on_device import LayerOnDevice
from ballast.model.hybrid.platforms.platform_of import platform_of

MAX_COUNTED_TOKENS = 256
"""Maximum tokens of a step whose use of experts is counted. Longer ones use nearly all, and gain little from any choice
of experts in device memory."""


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


class DeviceExperts:
    """The routed experts that one device computes: those of its layers."""

    def __init__(
        self,
        layers: Sequence[LayerOnDevice],
        divide: Divide,
        device: torch.device,
        cache: ExpertCache | None = None,
    ) -> None:
        self.layers = layers
        """The routed layers of the device, in order."""
        self.cache = cache
        """Moves experts into the device's memory and out of it; None if they stay."""
        self.divide = divide
        self.device = device
        self.pcie_share = 0.0
        """The value that `share` has while no other transfers need the bus."""
        self.used_share = 0.0
        """The value that `share` has after the queued work."""
        self.share = torch.zeros((), device=device)
        """The fraction of a decode step's experts in host memory that the device reads."""
        self.num_across = torch.zeros(len(layers), dtype=torch.int64, device=device)
        """Number of experts of each layer that the device has read from host memory."""
        self._resident = [None if layer.slots is None else layer.slots.cpu().numpy() >= 0 for layer in layers]
        """Without a cache, see `resident`."""
        self._num_across_seen = torch.zeros(len(layers), dtype=torch.int64, pin_memory=platform_of(device).pins)

    @property
    def num_gpu_experts(self) -> int:
        """Number of experts in device memory, over all layers."""
        return sum(layer.num_gpu_experts for layer in self.layers)

    @property
    def can_share(self) -> bool:
        """Whether the device can read experts from host memory."""
        return any(layer.across for layer in self.layers)

    @property
    def pcie_bytes_read(self) -> int:
        """Bytes of experts' weights in host memory that the device had read at the last `fetch_counts`."""
        counts = self._num_across_seen.tolist()
        return sum(count * layer.expert_bytes for count, layer in zip(counts, self.layers, strict=True))

    def resident(self, index: int) -> NDArray[np.bool_] | None:
        """bool [E]: the experts of the `index`th layer that steps queued from now on find in the device's memory; None:
        none."""
        return self._resident[index] if self.cache is None else self.cache.slots[index] >= 0

    def fetch_counts(self) -> None:
        """Queue the copies of counters to the host."""
        self._num_across_seen.copy_(self.num_across, non_blocking=True)
        if self.cache is not None:
            self.cache.end_step()

    def uses(self, index: int, num_tokens: int) -> torch.Tensor | None:
        """The counters of the `index`th layer's experts in a step of `num_tokens` tokens; see `Divide`."""
        return None if self.cache is None or num_tokens > MAX_COUNTED_TOKENS else self.cache.uses[index]


class DividedExperts:
    """All routed layers of a model, computed in order after each `begin`. `host` computes the remaining experts; it has
    only the layers that are not entirely on a device."""

    def __init__(self, host: RoutedLayers, devices: Sequence[DeviceExperts]) -> None:
        """`devices`: in the order of their layers."""
        self._host = host
        self._devices = devices
        self._layers = [(own, index) for own in devices for index in range(len(own.layers))]
        """The device of each layer, and the layer's index there."""
        has_host = [not own.layers[index].is_whole for own, index in self._layers]
        self._host_index = [sum(has_host[:index]) for index in range(len(has_host))]
        self.has_host = any(has_host)
        self._has_left_bus = False
        self._terms: dict[int, list[torch.Tensor]] = {}
        """The summands of submitted layers: several devices may compute layers at the same time."""

    def over(self, host: RoutedLayers) -> DividedExperts:
        """These experts with another `host`, on the same devices."""
        other = copy.copy(self)
        other._host, other._terms = host, {}
        return other

    @property
    def can_share(self) -> bool:
        """Whether a device can read experts from host memory."""
        return any(own.can_share for own in self._devices)

    @property
    def pcie_share(self) -> float:
        """The fraction of a decode step's experts in host memory that devices read: that of the device with most."""
        return max((own.pcie_share for own in self._devices), default=0.0)

    def set_pcie_share(self, share: float) -> None:
        """Set the fraction of all devices that can read experts, for the next steps; see `set_pcie_shares`."""
        self.set_pcie_shares([share if own.can_share else 0.0 for own in self._devices])

    def set_pcie_shares(self, shares: Sequence[float]) -> None:
        """Set the fraction of each device for the next steps. Captured steps also follow it, except those captured with
        a fraction of 0, which contain no work for it."""
        for own, share in zip(self._devices, shares, strict=True):
            own.pcie_share = share
        self._use_shares()

    def leave_bus(self, is_left: bool) -> None:
        """If `is_left`, devices read nothing over PCIe in the next steps, because other transfers need the bus, and the
        CPU computes their fraction; otherwise they read again. Queued on each device's current stream."""
        if is_left != self._has_left_bus:
            self._has_left_bus = is_left
            self._use_shares()

    def begin_step(self, *, may_take: bool) -> None:
        """Change which experts are in device memory; see `ExpertCache.begin_step`."""
        for cache in self._caches:
            cache.begin_step(may_take=may_take)

    def use_step(self) -> None:
        """See `ExpertCache.use_step`."""
        for cache in self._caches:
            cache.use_step()

    def follow_changes(self) -> None:
        """See `ExpertCache.follow`, for the current stream of each device."""
        for cache in self._caches:
            cache.follow()

    def wait_for_moves(self) -> None:
        """Wait until no expert is being copied to a device."""
        for cache in self._caches:
            cache.wait()

    def heat(self) -> NDArray[np.float64] | None:
        """A copy of how much experts are used, [routed layers, E]; see `ExpertHeat`. None if no device counts it. On
        another thread than the steps', it may lack a part of the last counts."""
        heat = [None if own.cache is None else own.cache.heat.values for own in self._devices]
        known = [each for each in heat if each is not None]
        if not known:
            return None
        of_devices = zip(self._devices, heat, strict=True)
        none = [np.zeros((len(own.layers), known[0].shape[1])) if each is None else each for own, each in of_devices]
        return np.concatenate(none)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """A context whose steps do not count as use of experts. They run on the current streams."""
        with ExitStack() as stack:
            for cache in self._caches:
                stack.enter_context(cache.uncounted())
            yield

    @property
    def host_bytes_read(self) -> int:
        """Bytes of experts' weights that `host` has read so far."""
        return self._host.bytes_read

    @property
    def pcie_bytes_read(self) -> int:
        """Bytes of experts' weights in host memory that devices have read; the last step may be missing."""
        return sum(own.pcie_bytes_read for own in self._devices)

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
        device, index = self._layers[layer]
        own = device.layers[index]
        shares = device.pcie_share > 0 and bool(own.across) and 0 < len(ids) <= MAX_SHARED_TOKENS
        if own.slots is None and not shares:
            yield from self._host.pieces(self._host_index[layer], x, ids, weights)
            return
        share = device.share if shares else None
        uses = device.uses(index, len(ids))
        if own.is_whole and uses is None:
            self._terms[layer] = [part(x, ids, weights) for part in own.gpu_experts]
            return
        division = device.divide(ids, own.slots, share, phase_of(layer), device.num_across[index], uses)
        if not own.is_whole:
            yield from self._host.pieces(self._host_index[layer], x, division.on_host, weights)
        terms = [part(x, division.gpu_slots, weights) for part in own.gpu_experts]
        if shares:
            terms += [part(x, division.across, weights) for part in own.across]
        self._terms[layer] = terms

    def result(self, layer: int) -> torch.Tensor:
        """The sum over the submitted experts, float32 [T, D] on the layer's device."""
        device, index = self._layers[layer]
        terms = self._terms.pop(layer, [])
        if not device.layers[index].is_whole:
            terms.append(self._host.result(self._host_index[layer]))
        return functools.reduce(torch.add, terms)

    def is_done(self, timeout_s: float) -> bool:
        """See `HostExperts.is_done`."""
        return not self.has_host or self._host.is_done(timeout_s)

    def finish(self, alive: Callable[[], None]) -> None:
        """See `HostExperts.finish`."""
        for own in self._devices:
            own.fetch_counts()
        if self.has_host:
            self._host.finish(alive)

    @property
    def _caches(self) -> list[ExpertCache]:
        return [own.cache for own in self._devices if own.cache is not None]

    def _use_shares(self) -> None:
        for own in self._devices:
            share = 0.0 if self._has_left_bus else own.pcie_share
            if share != own.used_share:
                own.used_share = share
                own.share.fill_(share)

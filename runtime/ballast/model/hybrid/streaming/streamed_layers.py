"""The routed layers of a model whose experts are streamed. The experts of every layer are divided among all devices, so
that all links are in use whichever device computes the rest of the layer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch

from ballast.model.hybrid.copies.device_sender import DeviceSender
from ballast.model.hybrid.copies.small_copies import SmallCopy
from ballast.model.hybrid.platforms.interface import Platform
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.streaming.chunks import Chunk, chunks_for
from ballast.model.hybrid.streaming.host_memory import HostExpertPart
from ballast.model.hybrid.streaming.joint_split import JointSplit
from ballast.model.hybrid.streaming.link_shares import device_of_each
from ballast.model.hybrid.streaming.streamed_experts import MakeSums, Resident, StreamedExperts


@dataclass(frozen=True, slots=True)
class StreamingDevice:
    """A device that streams experts."""

    device: torch.device
    make_sums: MakeSums
    small_copy: SmallCopy
    num_layers: int
    """Number of layers with experts in host memory of which the device computes the rest."""
    active: Callable[[], AbstractContextManager[object]]
    """Makes a context in which the device computes."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of all layers that one device computes."""

    experts: StreamedExperts
    active: Callable[[], AbstractContextManager[object]]

    @property
    def device(self) -> torch.device:
        return self.experts.platform.device


class StreamedLayers:
    """All routed layers with experts in host memory, computed by devices alone: the counterpart of `HostExperts` for
    steps of at least `from_tokens` tokens.

    The device that computes a layer, its owner, sends activations and selected experts to the other devices. Each
    device adds the experts that it has streamed, and the owner adds these sums in the order of the devices: the result
    does not depend on which one ends first."""

    def __init__(
        self,
        layers: Sequence[Sequence[HostExpertPart]],
        devices: Sequence[StreamingDevice],
        speeds: Sequence[float] | None = None,
        *,
        exchange_bytes: int,
    ) -> None:
        """`devices`: in the order of their layers, which together are `layers`. `speeds`: of their links, relative to
        each other; None: equal. `exchange_bytes`: see `exchange_sizes`, for the longest step."""
        all_chunks = chunks_for(layers, len(devices))
        sizes = [(chunk.layer, chunk.num_bytes) for chunk in all_chunks]
        numbers = device_of_each(sizes, speeds or [1.0] * len(devices))
        num_experts = [parts[0].gate.num_experts for parts in layers]
        self._parts = []
        for number, each in enumerate(devices):
            own = [chunk for chunk, owner in zip(all_chunks, numbers, strict=True) if owner == number]
            if own:
                streamed = StreamedExperts(own, num_experts, each.make_sums, each.device)
                self._parts.append(_Part(streamed, each.active))
        self._owners = [platform_of(each.device) for each in devices for _ in range(each.num_layers)]
        """The platform of each layer's owner."""
        self._bounds = [_bounds([chunk for chunk in all_chunks if chunk.layer == at]) for at in range(len(layers))]
        names = [each.device for each in devices]
        self._senders = {
            each.device: DeviceSender(platform_of(each.device), each.small_copy, names, exchange_bytes)
            for each in devices
        }
        self._resident: Sequence[Resident] = [lambda: None] * len(layers)
        self._totals: list[tuple[torch.device, torch.Tensor]] = []
        """The sums of the last submitted layer, in the order of the devices, each with its device."""
        self.from_tokens = 1
        self.joint_split: JointSplit | None = None
        """How steps that also use the CPU divide the experts; None if there are no such steps."""

    @property
    def num_layers(self) -> int:
        return len(self._owners)

    @property
    def num_chunks(self) -> int:
        """Number of chunks of the device with most."""
        return max(part.experts.num_chunks for part in self._parts)

    @property
    def pass_bytes(self) -> int:
        """Bytes that a step copies."""
        return sum(part.experts.pass_bytes for part in self._parts)

    @property
    def bytes_read(self) -> int:
        """Bytes of experts' weights copied so far."""
        return sum(part.experts.bytes_read for part in self._parts)

    def bytes_read_by(self, device: torch.device) -> int:
        """The part of `bytes_read` that a device has copied."""
        return sum(part.experts.bytes_read for part in self._parts if part.device == device)

    def skip(self, resident: Sequence[Resident]) -> None:
        """See `StreamedExperts.skip`; `resident` has a function for each layer."""
        self._resident = resident
        for part in self._parts:
            part.experts.skip(resident)

    @property
    def copies_concurrently(self) -> bool:
        """Whether devices copy pinned memory while they compute."""
        return all(part.experts.platform.pins for part in self._parts)

    def platform(self, layer: int) -> Platform:
        """The platform of a layer's owner."""
        return self._owners[layer]

    def devices_of(self, layer: int) -> list[torch.device]:
        """The devices that compute experts of a layer in a pass over all experts."""
        return [part.device for part in self._parts if part.experts.computes(layer)]

    def bounds(self, layer: int) -> list[int]:
        """Ascending numbers of experts at which the chunks of a layer's first part end; the last one is all experts."""
        return self._bounds[layer]

    def num_copied(self, layer: int) -> list[int]:
        """For each of `bounds`, how many of that many experts a step beginning now copies."""
        resident, bounds = self._resident[layer](), self._bounds[layer]
        if resident is None:
            return bounds
        num_before = np.concatenate(([0], np.cumsum(~resident)))
        found: list[int] = num_before[bounds].tolist()
        return found

    def begin(self, num_tokens: int) -> None:
        """Start a step that submits every layer in order. Every device starts to copy its first experts."""
        for part in self._parts:
            part.experts.begin(num_tokens)

    def begin_first(self, counts: Sequence[int]) -> None:
        """See `StreamedExperts.begin_first`; `counts` has a number for each layer."""
        for part in self._parts:
            part.experts.begin_first(counts)

    def submit(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        """Queue the `layer`th routed layer for x float32 [T, D] and the selected experts, ids int32 and weights float32
        [T, k], which are on the layer's owner. The owner is active."""
        for _ in self.pieces(layer, x, ids, weights):
            pass

    def pieces(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Iterator[None]:
        """As `submit`, one chunk of each device per advance of the iterator."""
        own = [part for part in self._parts if part.experts.has_layer(layer)]
        sender = self._senders[self._owners[layer].device]
        sent = sender.send((x, ids, weights), [part.device for part in own])
        left = [(part, part.experts.pieces(layer, *given)) for part, given in zip(own, sent, strict=True)]
        del sent  # each is freed with the iterator that uses it
        while left:
            left = [(part, pieces) for part, pieces in left if _advanced(part, pieces)]
            if left:
                yield
        self._totals = [(part.device, part.experts.result(layer)) for part in own]

    def result(self, layer: int) -> torch.Tensor:
        """The result of the last submitted layer, float32 [T, D] on its owner; it is returned once. The owner is
        active."""
        totals, self._totals = self._totals, []
        owner = self._owners[layer].device
        sent = (self._senders[device].send([total], [owner]) for device, total in totals)
        return functools.reduce(torch.Tensor.add_, (total for [[total]] in sent))

    def finish(self, alive: Callable[[], None]) -> None:
        """Wait until the step is computed; see `StreamedExperts.finish`."""
        self._totals = []
        for part in self._parts:
            part.experts.finish(alive)

    def is_done(self, timeout_s: float) -> bool:
        """Whether the step is computed now; never waits."""
        return all(part.experts.is_done(timeout_s) for part in self._parts)

    def wait(self) -> None:
        """Wait until the step is computed and no copy is running."""
        for part in self._parts:
            part.experts.wait()


def _advanced(part: _Part, pieces: Iterator[None]) -> bool:
    """Queue the next chunk of a device; returns False if none is left."""
    with part.active():
        for _ in pieces:
            return True
    return False


def _bounds(of_layer: Sequence[Chunk]) -> list[int]:
    return [chunk.first + chunk.num_experts for chunk in of_layer if chunk.part is of_layer[0].part]

"""Copies recurrent states of devices to and from host memory concurrently with steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ballast.model.hybrid.copies.going_out import GoingOut
from ballast.model.hybrid.faults.device_wait import Event, Events
from ballast.model.hybrid.platforms.interface import Bytes, Platform, Stream, Take
from ballast.model.hybrid.platforms.platform_of import platform_of


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of each slot that one device has."""

    platform: Platform
    stream: Stream
    states: Sequence[torch.Tensor]
    """Each uint8 [slots, bytes]."""
    place: slice
    """Its bytes in a row of host memory, in the order of the states."""


class DeviceStates:
    """Implements CacheStates of `model/tiers` for the states of all devices. The bytes of a slot are those of each
    device, in order.

    A slot's part of a tensor is contiguous, so it crosses the bus in one copy, without a buffer on the device. Each
    device copies on a stream of its own, in the order in which the copies were begun.
    """

    def __init__(self, devices: Sequence[Sequence[torch.Tensor]], take: Take) -> None:
        """`devices`: the states of each, float32 [slots, …]; none for a device without recurrent layers. `take`
        allocates host memory that all devices can copy."""
        self._take = take
        self._parts: list[_Part] = []
        self.state_bytes = 0
        for tensors in devices:
            if not tensors:
                continue
            platform = platform_of(tensors[0].device)
            states = [tensor.view(len(tensor), -1).view(torch.uint8) for tensor in tensors]
            begin = self.state_bytes
            self.state_bytes += sum(state.shape[1] for state in states)
            place = slice(begin, self.state_bytes)
            self._parts.append(_Part(platform, platform.new_stream(), states, place))
        sizes = [[state.shape[1] for state in part.states] for part in self._parts]
        names = ", ".join(dict.fromkeys(part.platform.name for part in self._parts))
        self.layout = f"float32 states {sizes}, computed on {names} by torch {torch.__version__}"
        # Tiers call copy_in on their own threads.
        self._lock = threading.Lock()
        self._going_out = GoingOut()

    def new_memory(self, num_states: int) -> Bytes:
        """See CacheStates."""
        return self._take(num_states * self.state_bytes).reshape(num_states, self.state_bytes)

    @torch.inference_mode()
    def copy_out(self, slots: Sequence[int], to: Sequence[Bytes]) -> Event:
        """See CacheStates."""
        events = []
        with self._lock:
            for part in self._parts:
                with part.platform.on(part.stream):
                    for own, memory in _places(part, slots, to):
                        memory.copy_(own, non_blocking=True)
                    events.append(part.stream.record_event())
        copy = Events(events)
        self._going_out.add(copy, slots)
        return copy

    @torch.inference_mode()
    def copy_in(self, slots: Sequence[int], sources: Sequence[Bytes]) -> Event:
        """See CacheStates."""
        events = []
        with self._lock:
            for part in self._parts:
                with part.platform.on(part.stream):
                    for own, memory in _places(part, slots, sources):
                        own.copy_(memory, non_blocking=True)
                    events.append(part.stream.record_event())
        return Events(events)

    def before_writing(self, slots: Sequence[int], alive: Callable[[], None]) -> None:
        """See CacheStates. Raises EngineDeadError if a copy does not end."""
        self._going_out.wait(alive, slots)


def _places(
    part: _Part, slots: Sequence[int], memories: Sequence[Bytes]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The bytes of each slot in each tensor, and their place in host memory."""
    sizes = [state.shape[1] for state in part.states]
    for slot, memory in zip(slots, memories, strict=True):
        rows = torch.split(torch.from_numpy(memory[part.place]), sizes)
        for state, row in zip(part.states, rows, strict=True):
            yield state[slot], row

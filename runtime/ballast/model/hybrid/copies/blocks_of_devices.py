"""Blocks of a KV cache whose layers are on several devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from ballast.model.hybrid.copies.device_blocks import DeviceBlocks
from ballast.model.hybrid.faults.device_wait import Event, Events
from ballast.model.hybrid.platforms.interface import Bytes, Take


class BlocksOfDevices:
    """Implements CacheBlocks of `model/tiers`. The bytes of a block are those of each device, in order, which every
    device copies over its own link."""

    def __init__(self, devices: Sequence[DeviceBlocks], take: Take) -> None:
        """`take` allocates host memory that all devices can copy."""
        self._devices = devices
        self._take = take
        ends = list(itertools.accumulate(own.block_bytes for own in devices))
        self._places = [slice(begin, end) for begin, end in itertools.pairwise([0, *ends])]
        self.block_bytes = ends[-1]
        self.layout = ", then ".join(own.layout for own in devices)

    def new_memory(self, num_blocks: int) -> Bytes:
        """See CacheBlocks."""
        return self._take(num_blocks * self.block_bytes).reshape(num_blocks, self.block_bytes)

    def copy_out(self, blocks: Sequence[int], to: Sequence[Bytes], windows: Sequence[int] = ()) -> Event:
        """See CacheBlocks."""
        return Events([own.copy_out(blocks, memory, windows) for own, memory in self._split(to)])

    def copy_in(self, blocks: Sequence[int], sources: Sequence[Bytes], windows: Sequence[int] = ()) -> Event:
        """See CacheBlocks."""
        return Events([own.copy_in(blocks, memory, windows) for own, memory in self._split(sources)])

    def before_writing(self, blocks: Sequence[int], alive: Callable[[], None], windows: Sequence[int] = ()) -> None:
        """See CacheBlocks. Raises EngineDeadError if a copy does not end."""
        for own in self._devices:
            own.before_writing(blocks, alive, windows)

    def _split(self, rows: Sequence[Bytes]) -> Iterator[tuple[DeviceBlocks, Sequence[Bytes]]]:
        """Each device, and its part of every row."""
        for own, place in zip(self._devices, self._places, strict=True):
            yield own, [row[place] for row in rows]

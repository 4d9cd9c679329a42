"""Copies blocks of a device's KV cache to and from host memory concurrently with steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from ballast.model.hybrid.copies.going_out import GoingOut
from ballast.model.hybrid.faults.device_wait import Event
from ballast.model.hybrid.platforms.interface import Bytes, Take
from ballast.model.hybrid.platforms.platform_of import platform_of

COPIED_AT_ONCE = 16
"""Number of blocks that are gathered on the device before a copy to the host, and scattered after a copy from it."""

Each = TypeVar("Each")


class DeviceBlocks:
    """Implements CacheBlocks of `model/tiers` for the tensors of a cache, each [slots, row width].

    Each tensor contains some rows of a block. A separate stream gathers the rows of all tensors into one buffer, which
    crosses the bus in one copy; copies back to the device use the same steps in reverse. All copies run in the order in
    which they were started.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        block_tokens: int,
        take: Take,
        has_windows: Sequence[bool] | None = None,
    ) -> None:
        """Allocates memory for COPIED_AT_ONCE blocks on the tensors' device. `take` allocates host memory; with a GPU,
        the memory is pinned. `has_windows`: by tensor, whether its blocks are those of windows; None: of none."""
        first = tensors[0]
        self._device = first.device
        self._tensors = [tensor.view(-1, block_tokens * tensor.shape[1]) for tensor in tensors]  # [blocks, numbers]
        self._has_windows = [False] * len(tensors) if has_windows is None else list(has_windows)
        self._take = take
        self._sizes = [tensor.shape[1] for tensor in self._tensors]
        self._gathered = torch.empty((COPIED_AT_ONCE, sum(self._sizes)), dtype=first.dtype, device=self._device)
        self.block_bytes = self._gathered[0].numel() * first.element_size()
        self._platform = platform_of(self._device)
        widths = [tensor.shape[1] for tensor in tensors]
        kept = f"{len(widths)} layers of {widths[0]}" if len(set(widths)) == 1 else f"rows of {widths}"
        on = self._platform.name
        self.layout = f"{first.dtype} {block_tokens} tokens, {kept}, computed on {on} by torch {torch.__version__}"
        self._stream = self._platform.new_stream()
        # Tiers call copy_in on their own threads.
        self._lock = threading.Lock()
        self._going_out = GoingOut()

    def new_memory(self, num_blocks: int) -> Bytes:
        """See CacheBlocks."""
        return self._take(num_blocks * self.block_bytes).reshape(num_blocks, self.block_bytes)

    @torch.inference_mode()
    def copy_out(self, blocks: Sequence[int], to: Sequence[Bytes], windows: Sequence[int] = ()) -> Event:
        """See CacheBlocks."""
        with self._lock, self._platform.on(self._stream):
            for (ids, window_ids), memory in zip(self._parts(blocks, windows), _parts(to), strict=True):
                gathered = self._gathered[: len(memory)]
                for tensor, own, has_window in self._own(gathered):
                    own.copy_(tensor.index_select(0, window_ids if has_window else ids))
                for block, row in zip(gathered, memory, strict=True):
                    torch.from_numpy(row).copy_(_bytes_of(block), non_blocking=True)
            copy = self._event()
        self._going_out.add(copy, blocks, windows)
        return copy

    @torch.inference_mode()
    def copy_in(self, blocks: Sequence[int], sources: Sequence[Bytes], windows: Sequence[int] = ()) -> Event:
        """See CacheBlocks."""
        with self._lock, self._platform.on(self._stream):
            for (ids, window_ids), memory in zip(self._parts(blocks, windows), _parts(sources), strict=True):
                gathered = self._gathered[: len(memory)]
                for block, row in zip(gathered, memory, strict=True):
                    _bytes_of(block).copy_(torch.from_numpy(row), non_blocking=True)
                for tensor, own, has_window in self._own(gathered):
                    tensor.index_copy_(0, window_ids if has_window else ids, own)
            return self._event()

    def before_writing(self, blocks: Sequence[int], alive: Callable[[], None], windows: Sequence[int] = ()) -> None:
        """See CacheBlocks. Raises EngineDeadError if a copy does not end."""
        self._going_out.wait(alive, blocks, windows)

    def _own(self, gathered: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, bool]]:
        """Each tensor, the position of its blocks in the gather buffer, and whether its blocks are those of windows."""
        return zip(self._tensors, torch.split(gathered, self._sizes, 1), self._has_windows, strict=True)

    def _parts(self, blocks: Sequence[int], windows: Sequence[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The ids of COPIED_AT_ONCE blocks at a time, and those of windows, on the device."""
        for part, of_windows in zip(_parts(blocks), _parts(windows or blocks), strict=True):
            ids = torch.tensor([part, of_windows], dtype=torch.int64, pin_memory=self._platform.pins)
            on_device = ids.to(self._device, non_blocking=True)
            yield on_device[0], on_device[1]

    def _event(self) -> Event:
        event: Event = self._stream.record_event()
        return event


def _parts(several: Sequence[Each]) -> Iterator[Sequence[Each]]:
    for begin in range(0, len(several), COPIED_AT_ONCE):
        yield several[begin : begin + COPIED_AT_ONCE]


def _bytes_of(block: torch.Tensor) -> torch.Tensor:
    return block.view(torch.uint8).view(-1)

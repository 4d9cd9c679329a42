"""Blocks of a KV cache as bytes, to be copied out and in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ballast.model.kv_pool import KvPool, StatePool

Bytes = NDArray[np.uint8]


class Copy(Protocol):
    """Copies that were begun together."""

    def query(self) -> bool:
        """Whether they are done. Raises what the device has failed with."""


class CacheBlocks(Protocol):
    """A KV cache, by the scheduler's block ids. May be used by several threads; a block by one at a time. `windows`:
    the blocks of layers with a window, if these have blocks of their own; a cache without such layers ignores them."""

    @property
    def block_bytes(self) -> int:
        """Bytes that a block holds, a multiple of 8."""

    @property
    def layout(self) -> str:
        """Identifies the format of the bytes: equal texts mean equal formats."""

    def new_memory(self, num_blocks: int) -> Bytes:
        """Host memory [num_blocks, block_bytes] that copies are fast with; the system has it back when nothing refers
        to it. Raises MemoryError."""

    def copy_out(self, blocks: Sequence[int], to: Sequence[Bytes], windows: Sequence[int] = ()) -> Copy:
        """Begin to copy blocks to memory [block_bytes] of `new_memory`. What a step that is over has written is there
        to be copied, and stays until the copies are done; see `before_writing`."""

    def copy_in(self, blocks: Sequence[int], sources: Sequence[Bytes], windows: Sequence[int] = ()) -> Copy:
        """Begin to copy from such memory to blocks, after all that was begun before."""

    def before_writing(self, blocks: Sequence[int], alive: Callable[[], None], windows: Sequence[int] = ()) -> None:
        """To be called before a step that writes to `blocks` and `windows` begins: waits until none of them is copied
        out any more, and calls `alive` meanwhile."""


class CacheStates(Protocol):
    """Slots of recurrent state, by the scheduler's ids; as CacheBlocks."""

    @property
    def state_bytes(self) -> int:
        """Bytes of a slot, a multiple of 8."""

    @property
    def layout(self) -> str:
        """As of CacheBlocks."""

    def new_memory(self, num_states: int) -> Bytes:
        """Host memory [num_states, state_bytes]; as of CacheBlocks."""

    def copy_out(self, slots: Sequence[int], to: Sequence[Bytes]) -> Copy:
        """Begin to copy slots to memory [state_bytes]."""

    def copy_in(self, slots: Sequence[int], sources: Sequence[Bytes]) -> Copy:
        """Begin to copy from memory to slots."""

    def before_writing(self, slots: Sequence[int], alive: Callable[[], None]) -> None:
        """To be called before a step that writes to `slots` begins."""


STATE_SHARE = 4
"""1/STATE_SHARE of a tier's bytes is for recurrent states: two states for about 10,000 tokens of blocks."""


def num_states_in(num_bytes: int, state_bytes: int) -> int:
    """States that a tier of `num_bytes` holds in addition to blocks; 0 without states."""
    return num_bytes // STATE_SHARE // state_bytes if state_bytes else 0


class _Done:
    def query(self) -> bool:
        return True


DONE = _Done()
"""Copies that completed immediately."""


class PoolBlocks:
    """The blocks of a cache in host memory; implements CacheBlocks."""

    def __init__(self, pool: KvPool) -> None:
        planes = [plane for layer in pool.layers for plane in layer]
        self._planes = [plane.view(np.uint8).reshape(-1, pool.block_tokens * plane.strides[0]) for plane in planes]
        self._has_windows = [has_window for layer in pool.has_window_blocks for has_window in layer]
        """By plane, whether its blocks are those of windows."""
        self.block_bytes = sum(plane.shape[1] for plane in self._planes)
        numbers = next((plane.dtype.name for plane in planes), "")
        self.layout = f"{numbers} {pool.block_tokens} tokens, planes {[plane.shape[1] for plane in planes]}"

    def new_memory(self, num_blocks: int) -> Bytes:
        return np.empty((num_blocks, self.block_bytes), np.uint8)

    def copy_out(self, blocks: Sequence[int], to: Sequence[Bytes], windows: Sequence[int] = ()) -> Copy:
        for own, memory in self._places(blocks, to, windows):
            memory[:] = own
        return DONE

    def copy_in(self, blocks: Sequence[int], sources: Sequence[Bytes], windows: Sequence[int] = ()) -> Copy:
        for own, memory in self._places(blocks, sources, windows):
            own[:] = memory
        return DONE

    def before_writing(self, blocks: Sequence[int], alive: Callable[[], None], windows: Sequence[int] = ()) -> None:
        """Nothing is copied out any more."""

    def _places(
        self, blocks: Sequence[int], memories: Sequence[Bytes], windows: Sequence[int]
    ) -> Iterator[tuple[Bytes, Bytes]]:
        """The bytes of each block in each plane, and their place in memory."""
        for block, window, memory in zip(blocks, windows or blocks, memories, strict=True):
            begin = 0
            for plane, has_window in zip(self._planes, self._has_windows, strict=True):
                end = begin + plane.shape[1]
                yield plane[window if has_window else block], memory[begin:end]
                begin = end


class PoolStates:
    """The slots of recurrent state in host memory; implements CacheStates."""

    def __init__(self, pool: StatePool) -> None:
        self._states = [state.view(np.uint8) for layer in pool.layers for state in layer]
        self.state_bytes = pool.slot_bytes
        self.layout = f"float32 states {[state.shape[1] for state in self._states]}"

    def new_memory(self, num_states: int) -> Bytes:
        return np.empty((num_states, self.state_bytes), np.uint8)

    def copy_out(self, slots: Sequence[int], to: Sequence[Bytes]) -> Copy:
        for own, memory in self._places(slots, to):
            memory[:] = own
        return DONE

    def copy_in(self, slots: Sequence[int], sources: Sequence[Bytes]) -> Copy:
        for own, memory in self._places(slots, sources):
            own[:] = memory
        return DONE

    def before_writing(self, slots: Sequence[int], alive: Callable[[], None]) -> None:
        """Nothing is copied out any more."""

    def _places(self, slots: Sequence[int], memories: Sequence[Bytes]) -> Iterator[tuple[Bytes, Bytes]]:
        """The bytes of each slot in each layer, and their place in memory."""
        for slot, memory in zip(slots, memories, strict=True):
            begin = 0
            for state in self._states:
                end = begin + state.shape[1]
                yield state[slot], memory[begin:end]
                begin = end

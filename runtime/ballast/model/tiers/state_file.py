"""Recurrent states of a folder of blocks: a file of heads, and a file of contents.

A state belongs to a write of a block, so that it is lost with the block.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.model.tiers.file_heads import (
    num_contents,
    read_content,
    read_heads,
    stride_of,
    sum_of,
    write_all,
    write_content,
)

HEAD = np.dtype([("write", "<u8"), ("block_write", "<u8"), ("content_sum", "<u8"), ("block", "<i8"), ("sum", "<u8")])
STATE_HEAD_BYTES = HEAD.itemsize


class StateFile:
    """States by ids from 1 to `num_states`. A state is used by one thread at a time."""

    def __init__(self, heads_file: int, contents_file: int, num_states: int, state_bytes: int) -> None:
        """Raises OSError."""
        self._heads_file, self._contents_file = heads_file, contents_file
        self._heads = read_heads(heads_file, HEAD, num_states, num_contents(contents_file, state_bytes))
        os.ftruncate(contents_file, num_states * stride_of(state_bytes))
        self._last_write = int(self._heads["write"].max())

    @property
    def last_block_write(self) -> int:
        """The latest write of a block that has a state; 0 without states."""
        return int(self._heads["block_write"].max())

    def of_blocks(self, block_writes: NDArray[np.uint64]) -> dict[int, int]:
        """By block, its state, which was written last if it has several. `block_writes`: by block, the number of its
        write."""
        found: dict[int, int] = {}
        for state in np.argsort(self._heads["write"], kind="stable").tolist():
            head = self._heads[state]
            block = int(head["block"])
            if head["write"] and 0 < block < len(block_writes) and block_writes[block] == head["block_write"]:
                found[block] = state
        return found

    def write(self, state: int, block: int, block_write: int, content: NDArray[np.uint8]) -> None:
        """Write the state after a block. Raises OSError; then it holds nothing."""
        self.drop(state)
        head = self._heads[state : state + 1]
        write_content(self._contents_file, state, content)
        self._last_write += 1
        head["write"], head["block"], head["block_write"] = self._last_write, block, block_write
        head["content_sum"] = kernels.checksum(content)
        head["sum"] = sum_of(head)
        try:
            write_all(self._heads_file, head.tobytes(), state * HEAD.itemsize)
        except OSError:
            head["write"] = 0
            raise

    def drop(self, state: int) -> None:
        """A state holds nothing, on disk as well. Raises OSError."""
        self._heads["write"][state] = 0
        write_all(self._heads_file, bytes(HEAD.itemsize), state * HEAD.itemsize)

    def read(self, state: int, block: int, block_write: int, content: NDArray[np.uint8]) -> bool:
        """Fill `content` [state_bytes] with the state after a block; False where it is damaged or of another block.
        Raises OSError."""
        head = self._heads[state]
        is_of_block = head["write"] and (head["block"], head["block_write"]) == (block, block_write)
        if not is_of_block or not read_content(self._contents_file, state, content):
            return False
        return int(kernels.checksum(content)) == int(head["content_sum"])

"""Blocks in host memory beside a GPU. Copies run on the GPU's own; nobody waits for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from ballast._core import sched
from ballast.model.tiers.cache_blocks import Bytes, CacheBlocks, Copy
from ballast.model.tiers.tier import NOTHING, Done, Fetched, Restored

PIECE_BYTES = 256 << 20
"""Memory is taken in pieces of so much: a power of two, to which pinned memory is rounded up."""
MOST_BLOCKS = 1 << 18
"""As of the tier on disk."""
_POLL_S = 0.0005


class HostTier:
    """Implements KvTier."""

    name = "host"

    def __init__(self, cache: CacheBlocks, num_bytes: int) -> None:
        """Of `num_bytes` at most; there must be room for a block. Raises MemoryError."""
        self.block_bytes = cache.block_bytes
        self.num_blocks = min(MOST_BLOCKS, num_bytes // cache.block_bytes)
        self.most_storing = self.num_blocks
        self._cache = cache
        self._piece_blocks = max(1, PIECE_BYTES // cache.block_bytes)
        self._pieces = [
            cache.new_memory(min(self._piece_blocks, self.num_blocks - begin))
            for begin in range(0, self.num_blocks, self._piece_blocks)
        ]
        self._storing: deque[tuple[Copy, int]] = deque()
        self._fetching: deque[tuple[Copy, int, int]] = deque()

    def restored(self) -> Restored:
        """See KvTier: nothing is ever there at the start."""
        return NOTHING

    def store(self, stores: Sequence[sched.Transfer]) -> None:
        """See KvTier."""
        copy = self._cache.copy_out([each.block for each in stores], self._rows(stores))
        self._storing.append((copy, len(stores)))

    def drop(self, block: int) -> None:
        """See KvTier: nothing is ever restored."""

    def fetch(self, seq: int, fetches: Sequence[sched.Transfer]) -> None:
        """See KvTier."""
        copy = self._cache.copy_in([each.block for each in fetches], self._rows(fetches))
        self._fetching.append((copy, seq, len(fetches)))

    def cancel(self, seq: int) -> None:
        """See KvTier: a copy that is queued ends soon."""

    def poll(self) -> Done:
        """See KvTier."""
        done = Done()
        while self._storing and self._storing[0][0].query():
            _, count = self._storing.popleft()
            done.stored += [True] * count
        while self._fetching and self._fetching[0][0].query():
            _, seq, count = self._fetching.popleft()
            done.fetched.append(Fetched(seq, count))
        return done

    def close(self, limit_s: float) -> None:
        """See KvTier."""
        until = time.monotonic() + limit_s
        while (self._storing or self._fetching) and time.monotonic() < until:
            self.poll()
            time.sleep(_POLL_S)

    def _rows(self, transfers: Sequence[sched.Transfer]) -> list[Bytes]:
        return [self._row(each.tier_block - 1) for each in transfers]

    def _row(self, index: int) -> Bytes:
        row: Bytes = self._pieces[index // self._piece_blocks][index % self._piece_blocks]
        return row

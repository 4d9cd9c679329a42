"""Blocks in host memory for a GPU's cache. The GPU copies them asynchronously."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence

from ballast._core import sched
from ballast.model.tiers.cache_blocks import Bytes, CacheBlocks, CacheStates, Copy, num_states_in
from ballast.model.tiers.tier import NOTHING, Done, Fetched, Restored

log = logging.getLogger(__name__)

PIECE_BYTES = 256 << 20
"""Memory is allocated in chunks of this size."""
MAX_BLOCKS = 1 << 18
"""As of the tier on disk."""
_POLL_S = 0.0005


class HostTier:
    """Implements KvTier."""

    name = "host"

    takes_rested_states = False

    def __init__(self, cache: CacheBlocks, num_bytes: int, states: CacheStates | None = None) -> None:
        """Uses at most `num_bytes`, which must hold at least one block; with `states`, a quarter of it for them.

        If the system refuses part of it, the tier keeps half of the memory that it got, to leave some to others.
        Raises MemoryError if that is less than a block.
        """
        self.block_bytes = cache.block_bytes
        self._cache, self._states = cache, states
        self.state_bytes = 0 if states is None else states.state_bytes
        self.num_states = num_states_in(num_bytes, self.state_bytes)
        num_bytes -= self.num_states * self.state_bytes
        self._chunk_blocks = max(1, PIECE_BYTES // cache.block_bytes)
        self._chunks = _chunks(cache, min(MAX_BLOCKS, num_bytes // cache.block_bytes), self._chunk_blocks)
        self.num_blocks = self.most_storing = sum(map(len, self._chunks))
        self._state_rows = None if states is None or not self.num_states else states.new_memory(self.num_states)
        self.most_storing_states = self.num_states
        self._storing: deque[tuple[Copy, int]] = deque()
        self._storing_states: deque[tuple[Copy, int]] = deque()
        self._fetching: deque[tuple[Sequence[Copy], int, int]] = deque()

    @property
    def block_seconds(self) -> float:
        """See KvTier. Not measured, because it is far less than the time to compute a block."""
        return 0.0

    def restored(self) -> Restored:
        """See KvTier: nothing is ever there at the start."""
        return NOTHING

    def store(self, stores: Sequence[sched.Transfer]) -> None:
        """See KvTier."""
        windows = [each.window_block for each in stores]
        copy = self._cache.copy_out([each.block for each in stores], self._rows(stores), windows)
        self._storing.append((copy, len(stores)))

    def store_states(self, stores: Sequence[sched.Transfer]) -> None:
        """See KvTier."""
        assert self._states is not None
        assert self._state_rows is not None
        rows = [self._state_rows[each.tier_state - 1] for each in stores]
        self._storing_states.append((self._states.copy_out([each.state for each in stores], rows), len(stores)))

    def drop(self, block: int) -> None:
        """See KvTier: nothing is ever restored."""

    def fetch(self, seq: int, fetches: Sequence[sched.Transfer]) -> None:
        """See KvTier."""
        windows = [each.window_block for each in fetches]
        copies = [self._cache.copy_in([each.block for each in fetches], self._rows(fetches), windows)]
        last = fetches[-1]
        if self._states is not None and self._state_rows is not None and last.tier_state:
            copies.append(self._states.copy_in([last.state], [self._state_rows[last.tier_state - 1]]))
        self._fetching.append((copies, seq, len(fetches)))

    def cancel(self, seq: int) -> None:
        """See KvTier: a copy that is queued ends soon."""

    def poll(self) -> Done:
        """See KvTier."""
        done = Done()
        while self._storing and self._storing[0][0].query():
            _, count = self._storing.popleft()
            done.stored += [True] * count
        while self._storing_states and self._storing_states[0][0].query():
            _, count = self._storing_states.popleft()
            done.stored_states += [True] * count
        while self._fetching and all(copy.query() for copy in self._fetching[0][0]):
            _, seq, count = self._fetching.popleft()
            done.fetched.append(Fetched(seq, count))
        return done

    def close(self, limit_s: float) -> None:
        """See KvTier."""
        until = time.monotonic() + limit_s
        while (self._storing or self._storing_states or self._fetching) and time.monotonic() < until:
            self.poll()
            time.sleep(_POLL_S)

    def _rows(self, transfers: Sequence[sched.Transfer]) -> list[Bytes]:
        return [self._row(each.tier_block - 1) for each in transfers]

    def _row(self, index: int) -> Bytes:
        row: Bytes = self._chunks[index // self._chunk_blocks][index % self._chunk_blocks]
        return row


def _chunks(cache: CacheBlocks, num_blocks: int, chunk_blocks: int) -> list[Bytes]:
    chunks: list[Bytes] = []
    try:
        while (num_left := num_blocks - sum(map(len, chunks))) > 0:
            chunks.append(cache.new_memory(min(chunk_blocks, num_left)))
    except MemoryError as error:
        del chunks[len(chunks) // 2 :]
        if not chunks:
            raise
        taken = sum(chunk.nbytes for chunk in chunks)
        requested = num_blocks * cache.block_bytes
        log.warning(
            "only a part of kv_host_bytes is used",
            extra={"requested_bytes": requested, "taken_bytes": taken, "why": str(error).partition("\n")[0]},
        )
    return chunks

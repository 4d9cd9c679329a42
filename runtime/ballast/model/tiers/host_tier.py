"""Blocks in host memory for a GPU's cache. The GPU copies them asynchronously."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from ballast._core import sched
from ballast.model.tiers.cache_blocks import Bytes, CacheBlocks, CacheStates, Copy, num_states_in
from ballast.model.tiers.tier import NOTHING, Done, Fetched, Restored

log = logging.getLogger(__name__)

PIECE_BYTES = 256 << 20
"""Memory is allocated in chunks of this size."""
MAX_BLOCKS = 1 << 18
"""As of the tier on disk."""
MAX_STORING_STATES = 2
"""States that are on their way at a time: beginning the copies of one keeps the engine's thread for some tenths of a
millisecond."""
_POLL_S = 0.0005


def piece_sizes(num_bytes: int, state_bytes: int = 0) -> list[int]:
    """Bytes of each piece of memory that a tier of `num_bytes` allocates, but for a shorter one of blocks at the end:
    at least those for blocks, exactly those for recurrent states of `state_bytes`."""
    num_states = num_states_in(num_bytes, state_bytes)
    of_blocks = [PIECE_BYTES] * ((num_bytes - num_states * state_bytes) // PIECE_BYTES)
    if not num_states:
        return of_blocks
    in_piece = _in_piece(state_bytes)
    counts = [min(in_piece, num_states - first) for first in range(0, num_states, in_piece)]
    return of_blocks + [count * state_bytes for count in counts]


class HostTier:
    """Implements KvTier."""

    name = "host"

    takes_rested_states = False

    def __init__(self, cache: CacheBlocks, num_bytes: int, states: CacheStates | None = None) -> None:
        """Uses at most `num_bytes`; with `states`, a quarter of it for them. The rest must hold at least one block.

        If the system refuses part of the memory of blocks or of states, the tier keeps half of what it got, to leave
        some to others. Raises MemoryError if that is less than a block, or than a state.
        """
        self.block_bytes = cache.block_bytes
        self._cache, self._states = cache, states
        self.state_bytes = 0 if states is None else states.state_bytes
        num_states = num_states_in(num_bytes, self.state_bytes)
        num_bytes -= num_states * self.state_bytes
        # States first: pieces that fit them exactly may be there.
        self._kept = None if states is None else _Rows(states.new_memory, num_states, self.state_bytes)
        self.num_states = 0 if self._kept is None else len(self._kept)
        self._blocks = _Rows(cache.new_memory, min(MAX_BLOCKS, num_bytes // cache.block_bytes), cache.block_bytes)
        self.num_blocks = self.most_storing = len(self._blocks)
        self.most_storing_states = min(self.num_states, MAX_STORING_STATES)
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
        assert self._kept is not None
        rows = [self._kept.of(each.tier_state) for each in stores]
        self._storing_states.append((self._states.copy_out([each.state for each in stores], rows), len(stores)))

    def drop(self, block: int) -> None:
        """See KvTier: nothing is ever restored."""

    def fetch(self, seq: int, fetches: Sequence[sched.Transfer]) -> None:
        """See KvTier."""
        windows = [each.window_block for each in fetches]
        copies = [self._cache.copy_in([each.block for each in fetches], self._rows(fetches), windows)]
        last = fetches[-1]
        if self._states is not None and self._kept is not None and last.tier_state:
            copies.append(self._states.copy_in([last.state], [self._kept.of(last.tier_state)]))
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
        return [self._blocks.of(each.tier_block) for each in transfers]


class _Rows:
    """Places for blocks or for states, by ids from 1, in pieces of memory."""

    def __init__(self, new_memory: Callable[[int], Bytes], num_rows: int, row_bytes: int) -> None:
        """`new_memory` allocates a number of rows. If it refuses some, half of the pieces remain. Raises
        MemoryError."""
        self._in_piece = _in_piece(row_bytes)
        self._pieces: list[Bytes] = []
        try:
            while (num_left := num_rows - len(self)) > 0:
                self._pieces.append(new_memory(min(self._in_piece, num_left)))
        except MemoryError as error:
            del self._pieces[len(self._pieces) // 2 :]
            if not self._pieces:
                raise
            taken = sum(piece.nbytes for piece in self._pieces)
            log.warning(
                "only a part of kv_host_bytes is used",
                extra={
                    "requested_bytes": num_rows * row_bytes,
                    "taken_bytes": taken,
                    "why": str(error).partition("\n")[0],
                },
            )

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    def of(self, number: int) -> Bytes:
        """The place with an id."""
        row: Bytes = self._pieces[(number - 1) // self._in_piece][(number - 1) % self._in_piece]
        return row


def _in_piece(row_bytes: int) -> int:
    return max(1, PIECE_BYTES // row_bytes)

"""Blocks on disk: one thread writes them, another brings them back."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from ballast._core import sched
from ballast.awake_clock import AwakeClock
from ballast.model.tiers.block_file import BlockFile
from ballast.model.tiers.cache_blocks import CacheBlocks, CacheStates, Copy
from ballast.model.tiers.read_speed import ReadSpeed
from ballast.model.tiers.tier import Done, Fetched, Notify, Restored

log = logging.getLogger(__name__)

READ_AT_ONCE = 16
"""Blocks that are read before they are copied to the cache together: to a GPU, few copies cost as much as one."""
LIMIT_S = 15.0
"""Longest wait for the disk to read a block; far below what makes an engine count as dead."""
_COPY_POLL_S = 0.0002


@dataclass(slots=True)
class _Store:
    row: int
    """Row of the staging memory."""
    copy: Copy
    block: int
    parent: int
    tokens: NDArray[np.int32]
    salt: tuple[int, int]
    has_window: bool


@dataclass(slots=True)
class _StoreState:
    row: int
    copy: Copy
    state: int
    block: int


@dataclass(slots=True)
class _DropState:
    state: int


@dataclass(slots=True)
class _Fetch:
    seq: int
    blocks: list[tuple[int, int, int]]
    """(of the tier, of the cache, of layers with a window)."""
    state: tuple[int, int] | None
    """(of the tier, of the cache) the recurrent state after the last block."""
    is_state_damaged: bool = False
    num_done: int = 0
    is_given_up: bool = False
    """Nothing more is copied to the cache for it."""
    is_copying: bool = False
    """Some of its blocks are being copied to the cache, so the reader thread reports its end."""

    def brings_state(self, num_read: int) -> bool:
        """Whether the next `num_read` blocks are all that are left, with a state after them."""
        return self.state is not None and self.num_done + num_read == len(self.blocks)


class DiskTier:
    """Implements KvTier."""

    name = "disk"

    takes_rested_states = True

    def __init__(
        self,
        file: BlockFile,
        cache: CacheBlocks,
        most_storing: int,
        notify: Notify,
        states: CacheStates | None = None,
        most_storing_states: int = 1,
    ) -> None:
        """Raises MemoryError."""
        self.num_blocks, self.most_storing, self.block_bytes = file.num_blocks, most_storing, cache.block_bytes
        self._file, self._cache, self._notify = file, cache, notify
        self._states, self.state_bytes = states, 0 if states is None else states.state_bytes
        self.num_states = 0 if states is None else file.num_states
        self.most_storing_states = most_storing_states
        # The last row is for reading.
        self._state_rows = None if states is None else states.new_memory(most_storing_states + 1)
        self._free_state_rows = deque(range(most_storing_states))
        self._stored_states: deque[bool] = deque()
        self._rows = cache.new_memory(most_storing)
        self._free_rows = deque(range(most_storing))
        self._read_rows = cache.new_memory(READ_AT_ONCE)
        self._writes: SimpleQueue[_Store | _StoreState | _DropState | int | None] = SimpleQueue()
        self._reads: SimpleQueue[_Fetch | None] = SimpleQueue()
        self._stored: deque[bool] = deque()
        self._takes_more = True
        # Guards fetches, between the reader and the engine, which may give one up; and the speed.
        self._lock = threading.Lock()
        self._fetches: dict[int, _Fetch] = {}
        self._fetched: deque[Fetched] = deque()
        self._clock = AwakeClock.for_limit(LIMIT_S)
        self._last_read = 0.0
        self._speed = ReadSpeed()
        self._answers = True
        self._threads = [
            threading.Thread(target=self._write_all, name="ballast-kv-write", daemon=True),
            threading.Thread(target=self._read_all, name="ballast-kv-read", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def block_seconds(self) -> float:
        """See KvTier."""
        with self._lock:
            return self._speed.block_seconds(time.monotonic())

    def restored(self) -> Restored:
        """See KvTier."""
        return self._file.restored()

    def store(self, stores: Sequence[sched.Transfer]) -> None:
        """See KvTier."""
        rows = [self._free_rows.popleft() for _ in stores]
        windows = [each.window_block for each in stores]
        copy = self._cache.copy_out([each.block for each in stores], [self._rows[row] for row in rows], windows)
        for row, each in zip(rows, stores, strict=True):
            has_window = each.window_block != 0
            self._writes.put(_Store(row, copy, each.tier_block, each.parent, each.tokens.copy(), each.salt, has_window))

    def store_states(self, stores: Sequence[sched.Transfer]) -> None:
        """See KvTier."""
        assert self._states is not None
        assert self._state_rows is not None
        rows = [self._free_state_rows.popleft() for _ in stores]
        copy = self._states.copy_out([each.state for each in stores], [self._state_rows[row] for row in rows])
        for row, each in zip(rows, stores, strict=True):
            self._writes.put(_StoreState(row, copy, each.tier_state, each.tier_block))

    def drop(self, block: int) -> None:
        """See KvTier."""
        self._writes.put(block)

    def fetch(self, seq: int, fetches: Sequence[sched.Transfer]) -> None:
        """See KvTier."""
        last = fetches[-1]
        state = (last.tier_state, last.state) if last.tier_state else None
        fetch = _Fetch(seq, [(each.tier_block, each.block, each.window_block) for each in fetches], state)
        with self._lock:
            if not self._answers:
                self._fetched.append(Fetched(seq, 0))
                return
            if not self._fetches:
                self._last_read = self._clock.now()
            self._fetches[seq] = fetch
        self._reads.put(fetch)

    def cancel(self, seq: int) -> None:
        """See KvTier."""
        with self._lock:
            self._give_up(seq)

    def poll(self) -> Done:
        """See KvTier."""
        with self._lock:
            if self._fetches and self._answers and self._clock.now() - self._last_read > LIMIT_S:
                self._answers = False
                log.warning("kv_disk_dir does not answer", extra={"folder": str(self._file.path), "waited_s": LIMIT_S})
                for seq in list(self._fetches):
                    self._give_up(seq)
            done = Done(fetched=[self._fetched.popleft() for _ in range(len(self._fetched))])
            done.coming = [(seq, len(fetch.blocks) - fetch.num_done) for seq, fetch in self._fetches.items()]
        done.stored = [self._stored.popleft() for _ in range(len(self._stored))]
        done.stored_states = [self._stored_states.popleft() for _ in range(len(self._stored_states))]
        return done

    def close(self, limit_s: float) -> None:
        """See KvTier. What is still to be written after that is lost."""
        with self._lock:
            for seq in list(self._fetches):
                self._give_up(seq)
        self._writes.put(None)
        self._reads.put(None)
        until = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            self._file.close()

    def _give_up(self, seq: int) -> None:
        """With the lock."""
        fetch = self._fetches.pop(seq, None)
        if fetch is not None:
            fetch.is_given_up = True
            if not fetch.is_copying:
                self._fetched.append(Fetched(seq, fetch.num_done))

    def _write_all(self) -> None:
        while (work := self._writes.get()) is not None:
            if isinstance(work, int | _DropState):
                self._takes_more &= self._try(partial(self._drop_for_good, work))
                continue
            is_whole = self._takes_more and self._try(partial(self._write, work))
            self._takes_more = is_whole
            if isinstance(work, _StoreState):
                self._free_state_rows.append(work.row)
                self._stored_states.append(is_whole)
            else:
                self._free_rows.append(work.row)
                self._stored.append(is_whole)
            self._notify()

    def _write(self, store: _Store | _StoreState) -> None:
        _wait(store.copy)
        if isinstance(store, _StoreState):
            assert self._state_rows is not None
            self._file.write_state(store.state, store.block, self._state_rows[store.row])
            return
        self._file.write(store.block, store.parent, store.tokens, store.salt, self._rows[store.row], store.has_window)

    def _drop_for_good(self, dropped: int | _DropState) -> None:
        """A block or a state."""
        try:
            if isinstance(dropped, _DropState):
                self._file.drop_state(dropped.state)
            else:
                self._file.drop(dropped)
        except OSError:
            self._file.discard()
            raise

    def _try(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except (OSError, RuntimeError, ValueError) as error:
            log.warning(
                "kv_disk_dir accepts no more blocks", extra={"folder": str(self._file.path), "why": _why(error)}
            )
            return False
        return True

    def _read_all(self) -> None:
        while (fetch := self._reads.get()) is not None:
            is_whole, is_copied = True, True
            while is_whole and is_copied and fetch.num_done < len(fetch.blocks) and not fetch.is_given_up:
                chunk = fetch.blocks[fetch.num_done : fetch.num_done + READ_AT_ONCE]
                began = time.monotonic()
                num_read = self._read(fetch, chunk)
                num_states = fetch.brings_state(num_read) and self.state_bytes // self.block_bytes
                is_copied = num_read == 0 or self._copy(fetch, chunk[:num_read])
                with self._lock:
                    now = time.monotonic()
                    self._speed.note(num_read + num_states, now - began, now)
                self._notify()
                is_whole = num_read == len(chunk)
            with self._lock:
                if self._fetches.get(fetch.seq) is fetch:  # else it was given up, and the sequence may fetch again
                    del self._fetches[fetch.seq]
                    is_damaged, is_of_state = is_copied and not is_whole, fetch.is_state_damaged
                    self._fetched.append(
                        Fetched(fetch.seq, fetch.num_done, is_damaged and not is_of_state, is_damaged and is_of_state)
                    )
            self._notify()

    def _copy(self, fetch: _Fetch, chunk: Sequence[tuple[int, int, int]]) -> bool:
        """Copies what was read to the cache; whether it is there. The engine waits for none of it."""
        with self._lock:
            if fetch.is_given_up:
                return False
            fetch.is_copying = True
        num_copied = 0
        try:
            _, blocks, windows = zip(*chunk, strict=True)
            _wait(self._cache.copy_in(blocks, list(self._read_rows[: len(chunk)]), windows))
            if self._states is not None and self._state_rows is not None and fetch.brings_state(len(chunk)):
                assert fetch.state is not None
                _wait(self._states.copy_in([fetch.state[1]], [self._state_rows[-1]]))
            num_copied = len(chunk)
        except (RuntimeError, ValueError) as error:
            log.warning("blocks are recomputed instead", extra={"folder": str(self._file.path), "why": _why(error)})
        with self._lock:
            fetch.is_copying = False
            fetch.num_done += num_copied
            if self._fetches.get(fetch.seq) is not fetch:  # given up meanwhile
                self._fetched.append(Fetched(fetch.seq, fetch.num_done))
        return num_copied > 0

    def _read(self, fetch: _Fetch, chunk: Sequence[tuple[int, int, int]]) -> int:
        """Reads the tier's blocks, and the state after the last one; returns how many are whole before one that is
        not."""
        for count, (block, _, _) in enumerate(chunk):
            why = _why_damaged(partial(self._file.read, block, self._read_rows[count]))
            if why is None and fetch.state is not None and fetch.brings_state(count + 1):
                why = self._why_state_is_damaged(fetch, fetch.state[0], block)
            if why is None:
                self._last_read = self._clock.now()
                continue
            if not fetch.is_given_up:  # else it may have been written over meanwhile
                log.warning(
                    "a block on disk is recomputed instead",
                    extra={"folder": str(self._file.path), "block": block, "why": why},
                )
            return count
        return len(chunk)

    def _why_state_is_damaged(self, fetch: _Fetch, state: int, block: int) -> str | None:
        """Reads a state. If it is damaged, it is dropped on disk before anything that is sent to its place later."""
        rows = self._state_rows
        if rows is None:
            return None
        why = _why_damaged(partial(self._file.read_state, state, block, rows[-1]))
        if why is None:
            return None
        with self._lock:
            if not fetch.is_given_up:
                fetch.is_state_damaged = True
                self._writes.put(_DropState(state))
        return f"the state after it: {why}"


def _why_damaged(read: Callable[[], bool]) -> str | None:
    """Why `read` fails; None if it does not."""
    try:
        return None if read() else "damaged"
    except OSError as error:
        return _why(error)


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _wait(copy: Copy) -> None:
    while not copy.query():
        time.sleep(_COPY_POLL_S)

"""The interface of a tier of the KV cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ballast._core import sched
from ballast.model.tiers.cache_blocks import CacheBlocks, CacheStates


@dataclass(frozen=True, slots=True)
class Restored:
    """Blocks of an earlier process, in the format of `sched.Scheduler.restore`."""

    blocks: NDArray[np.int32]  # [n]
    parents: NDArray[np.int32]  # [n]
    tokens: NDArray[np.int32]  # [n · block_tokens]
    salts: NDArray[np.uint64]  # [n, 2]
    have_windows: Sequence[bool] = ()  # [n], whether they hold the keys of layers with a window; empty: none does
    states: Sequence[int] = ()  # [n], the recurrent state after each, 0: none; empty: after none


_NO_IDS = np.empty(0, np.int32)
NOTHING = Restored(_NO_IDS, _NO_IDS, _NO_IDS, np.empty((0, 2), np.uint64))


class Fetched(NamedTuple):
    """A fetch that is over."""

    seq: int
    num_blocks: int
    """Number of blocks that arrived."""
    is_damaged: bool = False
    """Whether the fetch ended because the next block is damaged."""
    is_state_damaged: bool = False
    """Whether the last block alone is missing, because the state after it is damaged. If blocks are missing for neither
    reason, the fetch was cancelled."""


@dataclass(slots=True)
class Done:
    """Operations that ended since the last poll."""

    stored: list[bool] = field(default_factory=list)
    """For each finished store, in the order of the requests: whether it succeeded."""
    stored_states: list[bool] = field(default_factory=list)
    """The same of recurrent states."""
    fetched: list[Fetched] = field(default_factory=list)
    coming: list[tuple[int, int]] = field(default_factory=list)
    """(sequence, blocks still to read) of fetches in progress, as far as known."""


class KvTier(Protocol):
    """A place for blocks, by ids from 1 to `num_blocks`. All methods are called by one thread, and none waits for a
    copy or a disk but `close`."""

    name: str
    num_blocks: int
    most_storing: int
    """Most stores that are under way at a time."""
    block_bytes: int
    num_states: int
    """Recurrent states that it holds in addition to blocks, by ids from 1."""
    most_storing_states: int
    takes_rested_states: bool
    """Whether it takes only those of conversations at rest."""
    state_bytes: int

    @property
    def block_seconds(self) -> float:
        """Measured seconds for reading a block back; 0 if unknown."""

    def restored(self) -> Restored:
        """The blocks that the tier holds at start. Call it once, before any other method."""

    def store(self, stores: Sequence[sched.Transfer]) -> None:
        """Begin to store blocks of the cache."""

    def store_states(self, stores: Sequence[sched.Transfer]) -> None:
        """Begin to store recurrent states after blocks that the tier holds, or that were sent before."""

    def drop(self, block: int) -> None:
        """A block is not to be restored later, nor what follows it."""

    def fetch(self, seq: int, fetches: Sequence[sched.Transfer]) -> None:
        """Begin to bring blocks of a sequence to the cache, in their order. The last one may have a state, which is
        brought along: the block has arrived when both have."""

    def cancel(self, seq: int) -> None:
        """Nobody wants what is fetched for a sequence any more; the fetch ends as soon as may be."""

    def poll(self) -> Done:
        """The operations that ended since the last call."""

    def close(self, limit_s: float) -> None:
        """Finish pending operations within `limit_s` and close the tier."""


Notify = Callable[[], None]
"""Called by a tier, from any thread, when `poll` has something new."""


@dataclass(frozen=True, slots=True)
class CacheTiers:
    """A runner's cache and its tiers, the fastest first."""

    cache: CacheBlocks
    tiers: Sequence[KvTier]
    news: threading.Event
    """Set by the tiers; see Notify."""
    states: CacheStates | None = None
    """The cache's recurrent states; None: it has none."""

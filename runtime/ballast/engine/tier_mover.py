"""Copies blocks between the KV cache and its tiers as the scheduler requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated

import numpy as np

from ballast._core import sched
from ballast.metric import Counter, Gauge
from ballast.model.tiers.tier import CacheTiers, Fetched

log = logging.getLogger(__name__)

CLOSE_S = 10.0
"""How long `close` waits for blocks that are being written to disk."""
PATIENCE_S = 15.0
"""How long an otherwise idle engine waits for the end of a store."""
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class TierNumbers:
    """The numbers of one tier. The names are part of `/debug/state`."""

    name: str
    capacity_tokens: Annotated[
        int, Gauge("kv_tier_capacity_tokens", "Tokens that host memory or disk can hold in addition to the KV cache.")
    ]
    cached_tokens: Annotated[int, Gauge("kv_tier_cached_tokens", "Tokens that host memory or disk holds.")]
    hit_tokens: Annotated[
        int, Counter("kv_tier_hit_tokens", "Tokens whose KV was read from host memory or disk instead of computed.")
    ]
    dropped_tokens: Annotated[
        int,
        Counter(
            "kv_tier_dropped_tokens",
            "Tokens evicted from the KV cache without a copy in the tier, which was full or too slow.",
        ),
    ]
    states: Annotated[int, Gauge("kv_tier_recurrent_states", "Recurrent states that host memory or disk holds.")]
    stored_bytes: Annotated[int, Counter("kv_tier_stored_bytes", "Bytes of KV copied to host memory or disk.")]
    fetched_bytes: Annotated[int, Counter("kv_tier_fetched_bytes", "Bytes of KV read back from host memory or disk.")]


@dataclass(slots=True)
class _Fetch:
    """The blocks that one sequence waits for."""

    began: float
    expected: list[tuple[int, int]]
    """(tier, blocks) in the sequence's order; each tier once."""
    arrived: dict[int, Fetched]
    """Results by tier, for the tiers that are done."""
    state_bytes: dict[int, int] = field(default_factory=dict)
    """By tier, the size of the recurrent state that it brings along."""


class TierMover:
    """Not thread-safe; the tiers have their own threads."""

    def __init__(self, scheduler: sched.Scheduler, of: CacheTiers, clock: Callable[[], float] = time.monotonic) -> None:
        self._scheduler, self._tiers, self._cache, self._news = scheduler, of.tiers, of.cache, of.news
        self._states = of.states
        self._clock = clock
        self._fetches: dict[int, _Fetch] = {}
        self._stored_bytes, self._fetched_bytes = [0] * len(of.tiers), [0] * len(of.tiers)
        self._num_storing, self._last_stored = 0, 0.0
        self._waited_s = 0.0
        for index, tier in enumerate(of.tiers):
            found = tier.restored()
            scheduler.restore(
                index, found.blocks, found.parents, found.tokens, found.salts, found.have_windows, found.states
            )
            now = scheduler.stats().tiers[index]
            log.info(
                "KV tier",
                extra={
                    "tier": tier.name,
                    "capacity_tokens": now.capacity_tokens,
                    "restored_tokens": now.cached_tokens,
                    "restored_states": now.states,
                    "bytes": tier.num_blocks * tier.block_bytes + tier.num_states * tier.state_bytes,
                },
            )
            if now.cached_tokens and tier.num_states and not now.states:
                log.warning("KV tier has no recurrent states: its tokens are computed again", extra={"tier": tier.name})

    def numbers(self, stats: sched.Stats) -> tuple[TierNumbers, ...]:
        """One entry per tier; `stats` are the scheduler's."""
        return tuple(
            TierNumbers(
                tier.name,
                of.capacity_tokens,
                of.cached_tokens,
                of.fetched_tokens,
                of.dropped_tokens,
                of.states,
                stored,
                fetched,
            )
            for tier, of, stored, fetched in zip(
                self._tiers, stats.tiers, self._stored_bytes, self._fetched_bytes, strict=True
            )
        )

    @property
    def waited_s(self) -> float:
        """Seconds that sequences have waited for blocks of tiers, added up."""
        return self._waited_s + sum(self._clock() - fetch.began for fetch in self._fetches.values())

    @property
    def is_moving(self) -> bool:
        """Whether blocks are being fetched or stored, so that `settle` will have something to report."""
        is_storing = self._num_storing > 0 and self._clock() - self._last_stored < PATIENCE_S
        return bool(self._fetches) or is_storing

    def begin(self) -> None:
        """Begin the transfers that the scheduler has requested; see `sched.Scheduler.take_transfers`."""
        for (tier, move), several in groupby(self._scheduler.take_transfers(), lambda each: (each.tier, each.move)):
            if move in (sched.Move.STORE, sched.Move.STORE_STATE):
                stores = list(several)
                self._last_stored = self._last_stored if self._num_storing else self._clock()
                self._num_storing += len(stores)
                if move == sched.Move.STORE:
                    self._tiers[tier].store(stores)
                else:
                    self._tiers[tier].store_states(stores)
            elif move == sched.Move.DROP:
                for each in several:
                    self._tiers[tier].drop(each.tier_block)
            else:
                for seq, fetches in _by_sequence(several):
                    fetch = self._fetches.setdefault(seq, _Fetch(self._clock(), [], {}))
                    fetch.expected.append((tier, len(fetches)))
                    fetch.state_bytes[tier] = self._tiers[tier].state_bytes if fetches[-1].tier_state else 0
                    self._tiers[tier].fetch(seq, fetches)

    def settle(self) -> None:
        """Report the transfers completed since the last call to the scheduler."""
        self._news.clear()
        for index, tier in enumerate(self._tiers):
            done = tier.poll()
            if num_stored := len(done.stored) + len(done.stored_states):
                self._num_storing -= num_stored
                self._last_stored = self._clock()
            for is_whole in done.stored:
                self._stored_bytes[index] += is_whole * tier.block_bytes
                self._scheduler.stored(index, is_whole=is_whole)
            for is_whole in done.stored_states:
                self._stored_bytes[index] += is_whole * tier.state_bytes
                self._scheduler.stored_state(index, is_whole=is_whole)
            for fetched in done.fetched:
                self._fetches[fetched.seq].arrived[index] = fetched
            for seq, num_blocks in [*done.coming, *((fetched.seq, 0) for fetched in done.fetched)]:
                self._scheduler.coming(seq, index, num_blocks)
            self._scheduler.measured(index, tier.block_seconds)
        for seq in [seq for seq, fetch in self._fetches.items() if len(fetch.arrived) == len(fetch.expected)]:
            self._end(seq, self._fetches.pop(seq))
        for seq in self._fetches:
            if not self._scheduler.is_worth_fetching(seq):
                self.cancel(seq)  # blocks that have arrived are used
        self.begin()

    def _end(self, seq: int, fetch: _Fetch) -> None:
        num_blocks, is_damaged, is_state_damaged = 0, False, False
        for tier, requested in fetch.expected:
            arrived = fetch.arrived[tier]
            num_blocks += arrived.num_blocks
            self._fetched_bytes[tier] += arrived.num_blocks * self._tiers[tier].block_bytes
            self._fetched_bytes[tier] += fetch.state_bytes[tier] if arrived.num_blocks == requested else 0
            is_damaged, is_state_damaged = arrived.is_damaged, arrived.is_state_damaged
            if arrived.num_blocks < requested:
                break
        self._waited_s += self._clock() - fetch.began
        self._scheduler.fetched(seq, num_blocks, is_damaged=is_damaged, is_state_damaged=is_state_damaged)

    def wait(self, timeout_s: float) -> None:
        """Wait until a transfer completes."""
        self._news.wait(timeout_s)

    def cancel(self, seq: int) -> None:
        """Cancel the fetches of a sequence."""
        if seq in self._fetches:
            for tier, _ in self._fetches[seq].expected:
                self._tiers[tier].cancel(seq)

    def before_step(self, plan: sched.Plan, block_tokens: int, alive: Callable[[], None]) -> None:
        """Wait until the blocks that the step overwrites are copied out. Must be called before a step begins."""
        blocks, windows = (np.unique(slots // block_tokens).tolist() for slots in (plan.slots, plan.window_slots))
        self._cache.before_writing(blocks, alive, windows)
        if self._states is not None:
            self._states.before_writing(np.union1d(plan.states_out, plan.save_slots).tolist(), alive)

    def rest(self) -> bool:
        """Nothing has run for a while: store the states that tiers take of conversations at rest. Returns whether there
        is something to store."""
        self._scheduler.rest()
        self.begin()
        return self.is_moving

    def close(self) -> None:
        """Finish transfers, and store the blocks and states of ended requests, within CLOSE_S."""
        self.rest()
        until = self._clock() + CLOSE_S
        while self._scheduler.stats().unsent and self.is_moving and self._clock() < until:
            self.wait(_LOOK_S)
            self.settle()
        for tier in self._tiers:
            tier.close(max(0.0, until - self._clock()))


def _by_sequence(transfers: Iterator[sched.Transfer]) -> Iterator[tuple[int, list[sched.Transfer]]]:
    for seq, several in groupby(transfers, lambda each: each.seq):
        yield seq, list(several)

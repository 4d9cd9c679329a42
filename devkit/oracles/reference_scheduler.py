"""A plain model of the scheduler's required behaviour. It drives a Scheduler and checks every plan and commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ballast._core import sched

NULL_BLOCK = 0
MAX_IDLE_TOKENS = 1024
"""Most tokens in a decode-lane step without decode rows, if chunk_size allows no more and there are two lanes."""
SNAPSHOT_DISTANCE = 8192
"""Distance between snapshots within long prompts, in tokens. A multiple of the tests' block sizes."""
WRONG = -1
"""Stands for the prefix hash of tokens that a failed step has written."""


@dataclass
class Expected:
    """Expected state of one live request."""

    seq: int
    tokens: list[int]
    prefix_hashes: list[int]
    """One per token: identifies this token and all tokens before it; the token's KV must hold it."""
    prompt_tokens: int
    max_tokens: int
    min_tokens: int
    stop_tokens: frozenset[int]
    priority: int = 0
    leader: int | None = None
    scores_prompt: bool = False
    client: int = 0
    salt: tuple[int, int] = (0, 0)
    turn: tuple[int, int] = (0, 0)
    """Its fair-share round, and its number within the round."""
    admitted_before: bool = False
    running: bool = False
    has_slot: bool = False
    """Whether it counts towards max_batch_size: it runs and is not fetching."""
    is_forgotten: bool = False
    """Its first block is no longer shared, because a failed request has read it."""
    num_computed: int = 0
    draft_tokens: list[int] = field(default_factory=list)
    """Draft tokens for its next decode row, as far as they can be computed."""
    draft_token: int | None = None
    """While tokens are sampled: the draft token at the position that is sampled."""
    cached_tokens: int = 0
    is_fetching: bool = False
    fetches_first: bool = False
    """Whether fetched tokens count among `cached_tokens`."""
    snapshots_at: tuple[int, ...] = ()
    snapshot_before: frozenset[int] = frozenset()
    num_known: int = 0
    """Tokens in full blocks that it shared with earlier requests when it started."""

    @property
    def num_generated(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def decodes(self) -> bool:
        """Whether the next step must compute a token of this request."""
        return self.has_slot and self.lacks_one_token

    @property
    def lacks_one_token(self) -> bool:
        """Whether only the last sampled token is left to compute."""
        return self.num_generated > 0 and self.num_computed == len(self.tokens) - 1

    def append(self, token: int) -> int:
        """Add a token; return its Finish value."""
        self.prefix_hashes.append(hash((self.prefix_hashes[-1], token)))
        self.tokens.append(token)
        if self.num_generated >= self.min_tokens and token in self.stop_tokens:
            return sched.Finish.STOP
        return sched.Finish.LENGTH if self.num_generated == self.max_tokens else sched.Finish.NONE


NO_SALT = (0, 0)


def prefix_hashes(tokens: Sequence[int], salt: tuple[int, int] = NO_SALT) -> list[int]:
    """One hash per token, of the token, everything before it and the salt."""
    hashes: list[int] = []
    for token in tokens:
        hashes.append(hash((hashes[-1] if hashes else hash(salt), token)))
    return hashes


@dataclass
class Row:
    """One row of a plan, unpacked."""

    request: Expected
    begin: int
    end: int
    blocks: NDArray[np.int32]
    samples: int
    """Number of trailing tokens whose logits are sampled."""
    draft_tokens: list[int]
    written: list[int]
    """The prefix hash of each token."""
    computed: int
    """Number of tokens with correct KV after the commit."""
    window_blocks: NDArray[np.int32]
    """Like `blocks`, for layers with a window; empty without such layers."""
    states_left: list[tuple[int, int]] = field(default_factory=list)
    """Recurrent state slots that the row writes, each with the number of its tokens processed before the write."""

    @property
    def is_part_way(self) -> bool:
        """Whether tokens remain to be computed after this row."""
        return not self.samples

    def sampled_by(self, next_token: Callable[[Expected], int]) -> list[int]:
        """One token for each of its logits."""
        tokens = []
        for index in range(self.samples):
            self.request.draft_token = self.draft_tokens[index] if index < len(self.draft_tokens) else None
            tokens.append(next_token(self.request))
        self.request.draft_token = None
        return tokens

    def append(self, sampled: Sequence[int]) -> list[tuple[int, int, int]]:
        """Append the tokens that a commit adds to the request; return (seq, token, Finish) for each."""
        added = []
        for index, token in enumerate(sampled):
            finish = self.request.append(token)
            added.append((self.request.seq, token, finish))
            if finish != sched.Finish.NONE or self.draft_tokens[index : index + 1] != [token]:
                break
            self.computed += 1
        return added


@dataclass
class Outstanding:
    """A lane's plan between `begin` and `end`."""

    plan: sched.Plan
    rows: list[Row]
    aborted: set[int] = field(default_factory=set)

    @property
    def seqs(self) -> set[int]:
        """The requests in the plan."""
        return {row.request.seq for row in self.rows}

    def blocks_written(self, block_tokens: int) -> set[int]:
        """Ids of the blocks that the plan writes to."""
        return set((self.plan.slots // block_tokens).tolist())


@dataclass
class Fetch:
    """The transfers that a request waits for."""

    transfers: list[sched.Transfer]
    is_aborted: bool = False
    is_forgotten: bool = False
    """A row with this prefix has failed during the fetch, so its blocks are forgotten."""


@dataclass
class Record:
    """Metadata of a stored block."""

    parent: int
    tokens: tuple[int, ...]
    salt: tuple[int, int]
    store: int
    """Number of the store."""
    parent_store: int
    """Number of the parent's store."""
    has_window: bool = False
    is_dropped: bool = False


@dataclass
class Tier:
    """A stand-in for a tier's content, with a delay between store and arrival."""

    kv: NDArray[np.int64]
    """[blocks + 1, 2, block_tokens] the prefix hash of each token: row 1 for layers with a window, or WRONG."""
    storing: list[tuple[int, int, NDArray[np.int64]]] = field(default_factory=list)
    """Pending stores: block, number of the store, and the block's content."""
    records: dict[int, Record] = field(default_factory=dict)
    """By block: the metadata that a file stores with the content. In the order of the stores, so parents come first."""
    states: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    """[states + 1] the prefix hash of the last token before each recurrent state, or WRONG."""
    storing_states: list[tuple[int, tuple[int, int], int]] = field(default_factory=list)
    """Pending state stores: state, (block, number of that block's store), and the content."""
    blocks_of_states: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By state: its block, and the number of that block's store. In the order of arrival."""
    _num_whole: int | None = None
    """None after a change."""

    def begin_store(self, block: int, record: Record, content: NDArray[np.int64]) -> None:
        """Start the store of a block."""
        self.records.pop(block, None)
        self.records[block] = record
        self.storing.append((block, record.store, content))
        self._num_whole = None

    def end_store(self, *, is_whole: bool) -> None:
        """Complete the oldest pending store of a block, or lose it."""
        block, store, content = self.storing.pop(0)
        self.kv[block] = content if is_whole else WRONG
        record = self.records[block]
        record.is_dropped |= not is_whole and record.store == store
        self._num_whole = None

    def begin_state_store(self, state: int, block: int, content: int) -> None:
        """Start the store of a state. The slot's earlier state becomes invalid immediately."""
        self.blocks_of_states.pop(state, None)
        self.storing_states.append((state, (block, self.records[block].store), content))

    def end_state_store(self, *, is_whole: bool) -> None:
        """Complete the oldest pending store of a state, or lose it."""
        state, of_block, content = self.storing_states.pop(0)
        self.states[state] = content if is_whole else WRONG
        if is_whole:
            self.blocks_of_states[state] = of_block

    def drop(self, block: int) -> None:
        """The scheduler no longer uses this block."""
        self.records[block].is_dropped = True
        self._num_whole = None

    @property
    def num_whole(self) -> int:
        """Number of stored blocks that do not follow a dropped block."""
        if self._num_whole is None:
            on_their_way = {store for _, store, _ in self.storing}
            stores = {0: 0}  # by block; 0 is the parent of first blocks
            for block, record in self.records.items():
                if not record.is_dropped and stores.get(record.parent) == record.parent_store:
                    stores[block] = record.store
            self._num_whole = len(stores) - 1 - len(on_their_way.intersection(stores.values()))
        return self._num_whole


@dataclass
class Totals:
    """Counters that must match the scheduler's, and counters that show what a run has exercised."""

    preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    steps: int = 0
    predicted: int = 0
    prefill_steps: int = 0
    """Steps of the prefill lane; also counted in `steps`."""
    joined: int = 0
    """Requests that were admitted ahead of others that waited."""
    overtaken: int = 0
    """Requests first admitted while an earlier one of the same priority waited for its fair-share round."""
    starved: int = 0
    """Decode rows that had to wait for blocks held by the prefill lane or by fetching requests."""
    fetched_blocks: int = 0
    stored_blocks: int = 0
    stored_states: int = 0
    fetched_states: int = 0
    damaged_blocks: int = 0
    damaged_states: int = 0
    lost_blocks: int = 0
    restored_blocks: int = 0
    drafted_tokens: int = 0
    right_draft_tokens: int = 0
    aborted_fetches: int = 0
    given_up_fetches: int = 0


@dataclass
class ReferenceScheduler:
    """Owns a Scheduler. Every method raises AssertionError if the scheduler violates a requirement."""

    config: sched.SchedulerConfig
    looks_ahead: bool = False
    """Whether each step requests the next plan while it runs."""
    live: dict[int, Expected] = field(default_factory=dict)
    """By sequence id; sorted by priority, round and arrival."""
    totals: Totals = field(default_factory=Totals)
    finds_snapshots: bool = False
    """Whether requests must begin at the deepest requested snapshot. For caches and slots without evictions, without
    tiers and without failing rows."""
    now_s: float | None = None
    """The time passed to plans and commits; with None, no time is passed and costs do not change."""

    def __post_init__(self) -> None:
        self.scheduler = sched.Scheduler(self.config)
        self._rounds: dict[int, int] = {}
        """The current fair-share round, by priority; only for priorities with live requests."""
        self._num_added = 0
        self.outstanding: dict[int, Outstanding] = {}
        """By lane; plans without rows are not kept."""
        self._predicted: list[list[int]] | None = None
        self._published: set[int] = set()
        """Prefix hashes of first blocks that were computed in successful steps and not forgotten since. No request may
        read a prefix that begins with another block."""
        self._forgotten = False
        """Whether any block was ever forgotten: followers may then find less."""
        # A stand-in for the KV cache: each slot holds the prefix hash of the token written there.
        self._kv = np.zeros((self.config.num_blocks + 1) * self.config.block_tokens, dtype=np.int64)
        self._blocks = self._kv.reshape(-1, self.config.block_tokens)
        # The same for layers with a window.
        self._window, num_window_blocks = self.config.window or (0, 0)
        self._window_kv = np.zeros((num_window_blocks + 1) * self.config.block_tokens, dtype=np.int64)
        self._window_blocks = self._window_kv.reshape(-1, self.config.block_tokens)
        # The same for recurrent state: each slot holds the prefix hash of the last token before it.
        self._states = np.full(self.config.state_slots + 1, WRONG, dtype=np.int64)
        # Prefix hashes of the last tokens of computed blocks, and of blocks with a snapshot.
        self._known: set[int] = set()
        self._snapshots: set[int] = set()
        self.tiers = [
            Tier(
                np.zeros((blocks + 1, 2, self.config.block_tokens), np.int64),
                states=np.full(num_states + 1, WRONG, np.int64),
            )
            for (blocks, _), (num_states, *_) in zip(self.config.tiers, self.config.state_tiers, strict=True)
        ]
        self.fetches: dict[int, Fetch] = {}
        """By sequence id, in the order of the fetch requests."""
        self._num_stores = 0
        self._is_measured = False

    def add(
        self,
        seq: int,
        prompt: Sequence[int],
        max_tokens: int,
        stop_tokens: Collection[int],
        min_tokens: int = 0,
        *,
        priority: int = 0,
        leader: int | None = None,
        scores_prompt: bool = False,
        client: int = 0,
        salt: tuple[int, int] = NO_SALT,
        snapshots_at: Sequence[int] = (),
        snapshot_before: Collection[int] = (),
    ) -> bool:
        """Queue a request. Returns False if the scheduler must reject it: it can never fit, or its priority number is
        lower than its leader's."""
        fits = len(prompt) + max_tokens - 1 <= self.config.num_blocks * self.config.block_tokens
        follows = leader is None or self.live[leader].priority <= priority
        try:
            self.scheduler.add(
                seq,
                np.array(prompt, dtype=np.int32),
                max_tokens,
                np.array(sorted(stop_tokens), dtype=np.int32),
                min_tokens,
                priority=priority,
                leader=leader,
                scores_prompt=scores_prompt,
                client=client,
                salt=salt,
                snapshots_at=snapshots_at,
                snapshot_before=sorted(snapshot_before),
            )
        except ValueError:
            assert not (fits and follows)
            return False
        assert fits
        assert follows
        self.live[seq] = Expected(
            seq,
            list(prompt),
            prefix_hashes(prompt, salt),
            len(prompt),
            max_tokens,
            min_tokens,
            frozenset(stop_tokens),
            priority,
            leader,
            scores_prompt,
            client,
            salt,
            self._turn(client, priority),
            snapshots_at=tuple(snapshots_at),
            snapshot_before=frozenset(snapshot_before),
        )
        self._num_added += 1
        self._sort()
        return True

    def _sort(self) -> None:
        self.live = dict(sorted(self.live.items(), key=lambda item: (item[1].priority, item[1].turn)))

    def _turn(self, client: int, priority: int) -> tuple[int, int]:
        """Each client gets one slot per round; each choice of a request uses one."""
        waiting = [each.turn[0] for each in self._same_queue(client, priority) if not each.running]
        return max([self._rounds.get(priority, 0), *waiting]) + 1, self._num_added

    def _same_queue(self, client: int, priority: int) -> list[Expected]:
        return [each for each in self.live.values() if (each.client, each.priority) == (client, priority)]

    def _remove(self, seq: int) -> None:
        """Remove a finished request. If its round is in the future, the client's next request moves into its slot."""
        gone = self.live.pop(seq)
        later = [each for each in self._same_queue(gone.client, gone.priority) if each.turn >= gone.turn]
        if gone.turn[0] > self._rounds.get(gone.priority, 0):
            turns = [gone.turn, *(each.turn for each in later)]
            for each, turn in zip(later, turns, strict=False):
                each.turn = turn
            self._sort()
        if all(each.priority != gone.priority for each in self.live.values()):
            self._rounds.pop(gone.priority, None)

    def abort(self, seq: int) -> None:
        """Abort at any time; a request in an outstanding plan ends with that plan."""
        assert self.scheduler.abort(seq) == (seq in self.live)
        for outstanding in self.outstanding.values():
            if seq in outstanding.seqs:
                outstanding.aborted.add(seq)
                break
        else:
            if seq in self.fetches:
                self.fetches[seq].is_aborted = True
            elif seq in self.live:
                self._remove(seq)
                self.totals.aborted += 1
        self._check_between_steps()

    def propose(self, seq: int, draft_tokens: Sequence[int]) -> None:
        """Propose draft tokens. They must be rejected unless the sequence decodes in the next step."""
        request = self.live.get(seq)
        is_outstanding = any(seq in outstanding.seqs for outstanding in self.outstanding.values())
        decodes = request is not None and request.lacks_one_token and not (is_outstanding or request.is_fetching)
        try:
            self.scheduler.propose(seq, np.array(draft_tokens, dtype=np.int32))
        except ValueError:
            assert not decodes
            return
        assert request is not None
        assert decodes
        most = 0 if self.config.state_slots else request.max_tokens - request.num_generated - 1
        request.draft_tokens = list(draft_tokens)[:most]
        self.scheduler.check()

    def step(
        self,
        next_token: Callable[[Expected], int],
        abort_during_step: Callable[[list[int]], list[int]] = lambda _: [],
        fail_rows: Callable[[list[int]], Mapping[int, bool]] = lambda _: {},
    ) -> sched.Plan:
        """One plan of the decode lane and its commit. In between, `abort_during_step` gets the live ids and returns
        those to abort; `fail_rows` gets the ids of the rows and returns those that fail, with a flag whether the blocks
        that they have read are forgotten."""
        plan = self.begin(sched.Lane.DECODE)
        for seq in abort_during_step(list(self.live)):
            self.abort(seq)
        if plan.num_requests:
            self.end(sched.Lane.DECODE, next_token, fail_rows)
        return plan

    def begin(self, lane: int) -> sched.Plan:
        """Request a plan for a lane that has none outstanding."""
        self._assign_slots()
        plan = self.scheduler.plan(lane, now_s=self.now_s)
        self.scheduler.check()
        self._check_preempted(plan)
        self._assign_slots()
        waiting = [request for request in self.live.values() if not request.running]
        self._begin_transfers()
        rows = self._rows(plan)
        self._check_policy(lane, plan, rows, waiting)
        self._check_order(rows, waiting)
        self._check_memory(lane, plan, rows)
        if rows:
            self.outstanding[lane] = Outstanding(plan, rows)
        elif not self.outstanding and not self.config.has_prefill_lane:
            assert not self.live or self.fetches, "something can always run"
        if lane == sched.Lane.DECODE:
            self._look_ahead(plan)
        return plan

    def end(
        self,
        lane: int,
        next_token: Callable[[Expected], int],
        fail_rows: Callable[[list[int]], Mapping[int, bool]] = lambda _: {},
    ) -> None:
        """Commit a lane's outstanding plan."""
        outstanding = self.outstanding.pop(lane)
        plan, rows = outstanding.plan, outstanding.rows
        failed = fail_rows(plan.seqs.tolist())
        for seq, forget in failed.items():
            self.scheduler.fail(seq, forget=forget)
        aborted = outstanding.aborted | failed.keys()
        self.totals.aborted += len(aborted)

        bounds = plan.query_indptr.tolist()
        for row, (first, last) in zip(rows, pairwise(bounds), strict=True):
            self._kv[plan.slots[first:last]] = row.written
            if self._window:
                self._window_kv[plan.window_slots[first:last]] = row.written
        for row, left in zip(rows, _states_left(plan), strict=True):
            for slot, num_tokens in left:
                self._states[slot] = row.written[num_tokens - 1]
        of_rows = [row.sampled_by(next_token) for row in rows]
        sampled = [token for tokens in of_rows for token in tokens]
        if self.now_s is not None:
            self.now_s += 1.0 + 0.05 * plan.num_tokens
        committed = self.scheduler.commit(np.array(sampled, dtype=np.int32), lane, now_s=self.now_s)
        added = [
            each
            for row, tokens in zip(rows, of_rows, strict=True)
            if row.request.seq not in aborted
            for each in row.append(tokens)
        ]
        self._begin_transfers()
        self._note_published(rows, failed)
        if self.finds_snapshots:
            self._note_snapshots(rows, aborted)
        self._check_committed(rows, added, aborted, committed)
        self.totals.steps += 1
        self.totals.prefill_steps += lane == sched.Lane.PREFILL
        self._check_between_steps()

    def run_dry(self, next_token: Callable[[Expected], int], max_steps: int) -> None:
        """Step until no request is live; then no block may be held. A prefill step lasts as long as three decode
        steps."""
        for count in range(max_steps):
            if not self.live:
                break
            if self.config.has_prefill_lane and sched.Lane.PREFILL not in self.outstanding:
                self.begin(sched.Lane.PREFILL)
            ran = self.step(next_token).num_requests > 0
            if sched.Lane.PREFILL in self.outstanding and (count % 3 == 0 or not ran):
                self.end(sched.Lane.PREFILL, next_token)
                ran = True
            if self.fetches and (count % 2 == 0 or not ran):
                self.end_fetch()
                ran = True
            self.end_stores(2)
            self.end_state_stores(1)
            assert ran or self._one_lane_can_run(), "something can always run"
        assert not self.live, f"{len(self.live)} requests are still live after {max_steps} steps"
        assert not self.fetches
        assert self.step(next_token).num_requests == 0
        assert self.scheduler.stats().used_tokens == 0

    def _one_lane_can_run(self) -> bool:
        """Whether either lane has a step now; nothing is outstanding."""
        return not self.live or any(
            self.begin(lane).num_requests > 0 or self.fetches for lane in (sched.Lane.DECODE, sched.Lane.PREFILL)
        )

    def _begin_transfers(self) -> None:
        """Execute the scheduler's transfers: copy stores immediately, and record pending fetches."""
        last_seq = None
        transfers = self.scheduler.take_transfers()
        kept: dict[int, int] = {}
        for each in transfers:
            tier = self.tiers[each.tier]
            assert each.tier_block >= 1
            if each.move == sched.Move.STORE:
                content = np.stack([self._blocks[each.block], np.full(self.config.block_tokens, WRONG)])
                if each.window_block:
                    content[1] = self._window_blocks[each.window_block]
                assert WRONG not in content[: 2 if each.window_block else 1], "data written by a failed step is stored"
                assert _hash_of_first(each, tier) == content[0, 0], "a block is stored with the wrong tokens"
                self._num_stores += 1
                parent_store = tier.records[each.parent].store if each.parent else 0
                has_window = each.window_block != 0
                record = Record(
                    each.parent, tuple(each.tokens.tolist()), each.salt, self._num_stores, parent_store, has_window
                )
                tier.begin_store(each.tier_block, record, content)
            elif each.move == sched.Move.STORE_STATE:
                assert each.tier_state >= 1
                content_of_state = int(self._states[each.state])
                assert content_of_state == _hash_of_last(each.tier_block, tier), (
                    "a state is stored with the wrong block"
                )
                tier.begin_state_store(each.tier_state, each.tier_block, content_of_state)
            elif each.move == sched.Move.DROP:
                tier.drop(each.tier_block)
            else:
                request = self.live[each.seq]
                if each.seq not in self.fetches:
                    (computed,) = (line[3] for line in self.scheduler.describe() if line[0] == each.seq)
                    self._admit(request, computed)
                    request.is_fetching = True
                    self.fetches[each.seq] = Fetch([])
                    last_seq = each.seq
                    kept[each.seq] = self._num_kept(request)
                assert each.seq == last_seq, "a request's fetches must be consecutive"
                self.fetches[each.seq].transfers.append(each)
                size = self.config.block_tokens
                end = request.num_computed + len(self.fetches[each.seq].transfers) * size
                assert end < len(request.tokens), "at least one token must remain to be computed"
                for own in tier.kv[each.tier_block][: 2 if each.window_block else 1]:
                    assert own.tolist() == request.prefix_hashes[end - size : end], (
                        "the fetched block is missing or has other content"
                    )
                if each.tier_state:
                    assert tier.states[each.tier_state] == request.prefix_hashes[end - 1], "the wrong state is fetched"
        for seq, num_blocks in kept.items():
            *others, last = self.fetches[seq].transfers
            assert (last.state > 0) == (last.tier_state > 0) == (self.config.state_slots > 0)
            assert not any(each.state or each.tier_state for each in others)
            num_found = self.live[seq].num_computed // self.config.block_tokens + len(self.fetches[seq].transfers)
            # Tiers may lack window blocks for a longer prefix, or a state after it.
            needs_more = self._window > 0 or self.config.state_slots > 0
            is_less_allowed = (self._is_measured or needs_more) and num_found < num_blocks
            assert is_less_allowed or num_found == num_blocks, "the fetched prefix is not the one that tiers hold"

    def _num_kept(self, request: Expected) -> int:
        """Leading full blocks that a fetching request finds: first in the cache, then in each tier."""
        size = self.config.block_tokens
        end = request.num_computed // size
        for tier in self.tiers:
            on_their_way = {store for _, store, _ in tier.storing}
            children = {
                (record.parent, record.parent_store, record.tokens, record.salt): (block, record.store)
                for block, record in tier.records.items()
                if not record.is_dropped and record.store not in on_their_way
            }
            block, store, depth = 0, 0, 0
            while (depth + 1) * size < len(request.tokens):
                content = tuple(request.tokens[depth * size : (depth + 1) * size])
                if (found := children.get((block, store, content, request.salt))) is None:
                    break
                (block, store), depth = found, depth + 1
            end = max(end, depth)
        return end

    def end_fetch(self, seq: int | None = None, num_blocks: int | None = None, *, is_damaged: bool = True) -> None:
        """Complete the fetch of `seq`, or the oldest one. It stops after `num_blocks`: the next block is damaged, or
        the fetch is cancelled. None: all blocks arrive whole."""
        seq = next(iter(self.fetches)) if seq is None else seq
        fetch, request = self.fetches.pop(seq), self.live[seq]
        size = self.config.block_tokens
        num_blocks = len(fetch.transfers) if num_blocks is None else min(num_blocks, len(fetch.transfers))
        for index, each in enumerate(fetch.transfers):
            whole, in_window = self.tiers[each.tier].kv[each.tier_block]
            begin = request.num_computed + index * size
            assert whole.tolist() == request.prefix_hashes[begin : begin + size], "a block was lost during the fetch"
            self._blocks[each.block] = whole if index < num_blocks else WRONG
            if each.window_block:
                self._window_blocks[each.window_block] = in_window if index < num_blocks else WRONG
            if each.state:
                state = self.tiers[each.tier].states[each.tier_state]
                assert state == request.prefix_hashes[begin + size - 1], "a state was lost during the fetch"
                self._states[each.state] = state if index < num_blocks else WRONG
        is_damaged = is_damaged and num_blocks < len(fetch.transfers)
        last = fetch.transfers[-1]
        # Of some, only the state is damaged.
        is_of_state = is_damaged and bool(last.state) and num_blocks + 1 == len(fetch.transfers) and seq % 2 == 0
        num_states = self.scheduler.stats().tiers[last.tier].states
        self.scheduler.fetched(seq, num_blocks, is_damaged=is_damaged and not is_of_state, is_state_damaged=is_of_state)
        if is_of_state:
            assert num_states - self.scheduler.stats().tiers[last.tier].states in (0, 1)
            self.tiers[last.tier].blocks_of_states.pop(last.tier_state, None)
        self.totals.damaged_blocks += is_damaged
        self.totals.damaged_states += is_of_state
        self.totals.given_up_fetches += num_blocks < len(fetch.transfers) and not is_damaged
        request.is_fetching = False
        if fetch.is_aborted:
            self._remove(seq)
            self.totals.aborted += 1
            self.totals.aborted_fetches += 1
        else:
            (computed,) = (line[3] for line in self.scheduler.describe() if line[0] == seq)
            num_tokens = computed - request.num_computed
            # It is computed instead where it may be wrong.
            is_useless = (self._window > 0 or self.config.state_slots > 0) and num_blocks < len(fetch.transfers)
            allowed = {0} if fetch.is_forgotten or is_useless else {num_blocks * size}
            assert num_tokens in (allowed | {0} if self.totals.damaged_blocks else allowed)
            request.num_computed = computed
            self.totals.fetched_blocks += num_tokens // size
            self.totals.fetched_states += num_tokens > 0 and self.config.state_slots > 0
            if request.fetches_first:
                request.cached_tokens += num_tokens
                self.totals.prefix_hit_tokens += num_tokens
            assert self.scheduler.cached_tokens(seq) == request.cached_tokens
        self._begin_transfers()
        self._check_between_steps()

    def measure(self, tier: int, block_seconds: float) -> None:
        """Report a tier's measured time per block: fewer blocks may be fetched afterwards."""
        if tier < len(self.tiers):
            self._is_measured = True
            self.scheduler.measured(tier, block_seconds)
            for seq, fetch in self.fetches.items():
                self.scheduler.is_worth_fetching(seq)
                num_coming = sum(each.tier == tier for each in fetch.transfers)
                if seq % 2:  # for some requests, half of the blocks are arriving
                    self.scheduler.coming(seq, tier, num_coming // 2)
            self.scheduler.check()

    def end_stores(self, count: int, tier: int = 0, *, is_whole: bool = True) -> None:
        """Complete the oldest `count` stores of a tier, or all if there are fewer."""
        for _ in range(min(count, len(self.tiers[tier].storing) if tier < len(self.tiers) else 0)):
            self.tiers[tier].end_store(is_whole=is_whole)
            self.totals.stored_blocks += is_whole
            self.totals.lost_blocks += not is_whole
            self.scheduler.stored(tier, is_whole=is_whole)
            self._begin_transfers()
            self._check_between_steps()

    def end_state_stores(self, count: int, tier: int = 0, *, is_whole: bool = True) -> None:
        """Like `end_stores`, for recurrent states. States arrive after the blocks sent before them."""
        for _ in range(count):
            if tier >= len(self.tiers) or not self.tiers[tier].storing_states:
                return
            _, of_block, _ = self.tiers[tier].storing_states[0]
            while of_block[1] in (store for _, store, _ in self.tiers[tier].storing):
                self.end_stores(1, tier)
            self.tiers[tier].end_state_store(is_whole=is_whole)
            self.totals.stored_states += is_whole
            self.scheduler.stored_state(tier, is_whole=is_whole)
            self._begin_transfers()
            self._check_between_steps()

    def rest(self) -> None:
        """Idle for a while."""
        self.scheduler.rest()
        self._begin_transfers()
        self._check_between_steps()

    def restart(self) -> None:
        """Replace the scheduler and restore the last tier; no request may be live."""
        assert not self.live
        kept = self.tiers[-1]
        while kept.storing or kept.storing_states:
            self.end_stores(1, len(self.tiers) - 1)
            self.end_state_stores(1, len(self.tiers) - 1)
        published, num_stores = self._published, self._num_stores
        self.totals = Totals()
        self.__post_init__()
        self._num_stores = num_stores
        tier = self.tiers[-1] = Tier(kept.kv, states=kept.states)
        self._published = published
        order: list[int] = []
        for block, record in kept.records.items():
            is_first = record.parent == 0
            if not record.is_dropped and (
                is_first or (record.parent in order and kept.records[record.parent].store == record.parent_store)
            ):
                tier.records[block] = record
                order.insert(0, block)
        states_of_blocks = {of_block: state for state, of_block in kept.blocks_of_states.items()}
        states = [states_of_blocks.get((block, kept.records[block].store), 0) for block in order]
        tier.blocks_of_states = {
            state: (block, kept.records[block].store) for block, state in zip(order, states, strict=True) if state
        }
        self.scheduler.restore(
            len(self.tiers) - 1,
            np.array(order, np.int32),
            np.array([kept.records[block].parent for block in order], np.int32),
            np.array([kept.records[block].tokens for block in order], np.int32).reshape(-1),
            np.array([kept.records[block].salt for block in order], np.uint64).reshape(-1, 2),
            [kept.records[block].has_window for block in order],
            states,
        )
        self.totals.restored_blocks = len(order)
        self._check_between_steps()

    def _look_ahead(self, plan: sched.Plan) -> None:
        if plan.was_predicted:
            assert _tables(plan) == self._predicted
            self.totals.predicted += 1
        predicted = self.scheduler.plan_ahead() if self.looks_ahead else None
        self.scheduler.check()
        self._predicted = None if predicted is None else _tables(predicted)
        if predicted is not None:
            assert plan.num_tokens == plan.num_requests, "the next positions depend on which draft tokens are accepted"
            assert predicted.seqs.tolist() == plan.seqs.tolist()
            assert predicted.kv_lens.tolist() == (plan.kv_lens + 1).tolist()

    def _note_published(self, rows: list[Row], failed: Mapping[int, bool]) -> None:
        """Record that no request may read tokens that a failed row wrote, nor, if forgotten, tokens that it read."""
        size = self.config.block_tokens
        num_computed = {request.seq: request.num_computed for request in self.live.values()}
        for row in rows:
            first_block = row.request.prefix_hashes[size - 1 : size]
            if row.request.seq not in failed:
                num_computed[row.request.seq] = row.computed
                if row.begin < size <= row.computed:
                    self._published.update(first_block)
                continue
            for slot, _ in row.states_left:
                self._states[slot] = WRONG
            for position in range(row.begin, row.end):
                self._kv[row.blocks[position // size] * size + position % size] = WRONG
                if self._window:
                    self._window_kv[row.window_blocks[position // size] * size + position % size] = WRONG
            if failed[row.request.seq] and row.begin >= size and not row.request.is_forgotten:
                self._forgotten = True
                self._published.difference_update(first_block)
                for seq, fetch in self.fetches.items():
                    fetch.is_forgotten |= self.live[seq].prefix_hashes[size - 1 : size] == first_block
                for other in self.live.values():
                    shares = num_computed[other.seq] >= size and other.prefix_hashes[size - 1 : size] == first_block
                    other.is_forgotten |= shares

    def _note_snapshots(self, rows: list[Row], aborted: Collection[int]) -> None:
        """Record the snapshots that a step takes in rows without draft tokens."""
        size = self.config.block_tokens
        for row in rows:
            request, hashes = row.request, row.request.prefix_hashes
            ends = range((row.begin // size + 1) * size, row.computed + 1, size)
            self._known.update(hashes[end - 1] for end in ends)
            if request.seq in aborted:
                continue
            wanted = {count // size * size for count in (*request.snapshots_at, request.prompt_tokens - 1)}
            wanted |= {request.num_known, *range(SNAPSHOT_DISTANCE, request.prompt_tokens + 1, SNAPSHOT_DISTANCE)}
            taken = {end for end in wanted.intersection(ends) if end <= request.prompt_tokens}
            is_finished = row.samples > 0 and (
                request.num_generated == request.max_tokens
                or (request.tokens[-1] in request.stop_tokens and request.num_generated >= request.min_tokens)
            )
            opens = row.samples > 0 and request.tokens[-1] in request.snapshot_before
            if is_finished or opens:
                taken.add(row.computed // size * size)
            if opens:
                request.snapshot_before = frozenset()
            self._snapshots.update(hashes[end - 1] for end in taken - {0})

    def _begins_at(self, request: Expected) -> int:
        """Number of the request's tokens that precede the deepest snapshot."""
        ends = range(self.config.block_tokens, len(request.tokens), self.config.block_tokens)
        hashes = request.prefix_hashes
        missing = (end for end in ends if request.scores_prompt or hashes[end - 1] not in self._known)
        request.num_known = next(missing, ends[-1] + self.config.block_tokens if ends else self.config.block_tokens)
        request.num_known -= self.config.block_tokens
        return max((end for end in ends if end <= request.num_known and hashes[end - 1] in self._snapshots), default=0)

    def _assign_slots(self) -> None:
        """Requests that have fetched their blocks get slots before waiting requests."""
        for request in self.live.values():
            if request.running and not request.is_fetching and self._num_slots_used() < self.config.max_batch_size:
                request.has_slot = True

    def _num_slots_used(self) -> int:
        return sum(request.has_slot for request in self.live.values())

    def _check_preempted(self, plan: sched.Plan) -> None:
        for seq in plan.preempted.tolist():
            held = {each for outstanding in self.outstanding.values() for each in outstanding.seqs}
            held |= self.fetches.keys()
            running = [request for request in self.live.values() if request.running and request.seq not in held]
            assert running[-1].seq == seq, "only the last running request may be preempted"
            running[-1].running, running[-1].has_slot, running[-1].num_computed = False, False, 0
            running[-1].draft_tokens = []
            self.totals.preemptions += 1

    def _rows(self, plan: sched.Plan) -> list[Row]:
        """The plan's rows; also counts first admissions."""
        indptr, kv_indptr = plan.query_indptr.tolist(), plan.kv_indptr.tolist()
        assert len(indptr) == len(kv_indptr) == plan.num_requests + 1
        assert (indptr[-1], kv_indptr[-1]) == (plan.num_tokens, plan.kv_indices.size)
        all_positions, token_ids, kv_indices = plan.positions.tolist(), plan.token_ids.tolist(), plan.kv_indices
        rows = []
        logits_at: list[int] = []
        states_left = _states_left(plan)
        whole = zip(plan.seqs.tolist(), plan.kv_lens.tolist(), plan.samples.tolist(), strict=True)
        for index, (seq, kv_len, samples) in enumerate(whole):
            request = self.live[seq]
            tokens = slice(indptr[index], indptr[index + 1])
            positions = all_positions[tokens]
            begin, end = positions[0], positions[-1] + 1
            assert positions == list(range(begin, end))
            drafted = request.draft_tokens[: max(0, end - len(request.tokens))]
            assert token_ids[tokens] == (request.tokens + drafted)[begin:end]
            assert kv_len == end
            assert samples == (0 if end < len(request.tokens) else 1 + len(drafted))
            logits_at += range(tokens.stop - samples, tokens.stop)
            if not request.running:
                self._admit(request, begin)
                request.has_slot = True
            assert request.has_slot, "a request runs before it has a slot"
            assert begin == request.num_computed, "a row continues exactly where its request stopped"
            blocks = kv_indices[kv_indptr[index] : kv_indptr[index + 1]]
            assert len(blocks) == -(-end // self.config.block_tokens)
            hashes = request.prefix_hashes.copy()
            for token in drafted:
                hashes.append(hash((hashes[-1], token)))
            window_blocks = plan.window_indices[kv_indptr[index] : kv_indptr[index + 1]]
            written, computed = hashes[begin:end], end - len(drafted)
            left = states_left[index] if states_left else []
            rows.append(Row(request, begin, end, blocks, samples, drafted, written, computed, window_blocks, left))
        assert plan.logits_at.tolist() == logits_at
        self._cut_draft_tokens(rows)
        return rows

    def _cut_draft_tokens(self, rows: list[Row]) -> None:
        """Check that a row has all proposed draft tokens, unless the step is full or no block is free."""
        num_drafted = sum(len(row.draft_tokens) for row in rows)
        most = self.config.chunk_size - self.config.max_batch_size
        assert num_drafted <= most
        stats = self.scheduler.stats()
        is_full = num_drafted == most or stats.used_tokens == stats.capacity_tokens
        for row in rows:
            assert is_full or len(row.draft_tokens) == len(row.request.draft_tokens)
            row.request.draft_tokens = row.draft_tokens
        self.totals.drafted_tokens += num_drafted

    def _admit(self, request: Expected, num_cached: int) -> None:
        assert num_cached % self.config.block_tokens == 0
        assert (self.config.prefix_cache and not request.scores_prompt) or num_cached == 0
        if request.leader in self.live:
            leader = self.live[request.leader]
            assert leader.num_generated > 0 or self._is_aborted(leader.seq), (
                "a follower starts before its leader's prompt is computed"
            )
            full_blocks = (request.prompt_tokens - 1) // self.config.block_tokens
            # A preempted leader may have lost its prompt's blocks and computes them again in the same step.
            is_computed = leader.running and leader.num_computed >= leader.prompt_tokens
            is_cached = self.config.prefix_cache and not self._forgotten
            if (
                is_cached
                and is_computed
                and not request.admitted_before
                and not (self._window or self.config.state_slots)
            ):
                assert num_cached == full_blocks * self.config.block_tokens, "a follower shares its leader's prompt"
        if num_cached:
            first_block = request.prefix_hashes[self.config.block_tokens - 1]
            assert first_block in self._published, "this request uses unpublished blocks"
        if self.finds_snapshots:
            assert num_cached == self._begins_at(request), "a request begins at the deepest snapshot"
        request.running, request.num_computed, request.is_forgotten = True, num_cached, False
        request.fetches_first = not request.admitted_before
        if not request.admitted_before:
            earlier = (each for each in self.live.values() if not each.running and each.priority == request.priority)
            self.totals.overtaken += any(
                each.turn[1] < request.turn[1] and each.turn > request.turn for each in earlier
            )
            request.admitted_before, request.cached_tokens = True, num_cached
            self._rounds[request.priority] = max(self._rounds.get(request.priority, 0), request.turn[0])
            reads_cache = self.config.prefix_cache and not request.scores_prompt
            self.totals.prefix_query_tokens += request.prompt_tokens if reads_cache else 0
            self.totals.prefix_hit_tokens += num_cached
        assert self.scheduler.cached_tokens(request.seq) == request.cached_tokens

    def _is_aborted(self, seq: int) -> bool:
        """Whether a request was aborted and ends with its outstanding plan."""
        fetch = self.fetches.get(seq)
        return (fetch is not None and fetch.is_aborted) or any(
            seq in outstanding.aborted for outstanding in self.outstanding.values()
        )

    def _check_policy(self, lane: int, plan: sched.Plan, rows: list[Row], waiting: list[Expected]) -> None:
        planned = [row.request.seq for row in rows]
        assert len(set(planned)) == len(planned) <= self.config.max_batch_size
        assert set(planned).isdisjoint(plan.preempted.tolist())
        others = {seq for outstanding in self.outstanding.values() for seq in outstanding.seqs}
        assert set(planned).isdisjoint(others), "a request is in two lanes at the same time"
        assert self.fetches.keys().isdisjoint(planned), "a request runs before its blocks have arrived"
        decode, prefill = planned[: plan.num_decode], planned[plan.num_decode :]
        order = list(self.live)
        for group in (decode, prefill):
            assert sorted(group, key=order.index) == group
        assert all(row.end - row.begin == 1 + len(row.draft_tokens) for row in rows[: plan.num_decode])
        assert not any(row.draft_tokens for row in rows[plan.num_decode :])
        assert plan.num_tokens <= (self.config.chunk_size if decode else self.config.prefill_chunk_size)
        if not decode and lane == sched.Lane.DECODE and self.config.has_prefill_lane:
            assert plan.num_tokens <= max(self.config.chunk_size, MAX_IDLE_TOKENS)
        scored = [row.end - row.begin for row in rows[plan.num_decode :] if row.request.scores_prompt]
        assert sum(scored) <= self.config.chunk_size
        runs = [request for request in self.live.values() if request.has_slot]
        assert len(runs) <= self.config.max_batch_size
        assert sum(request.running for request in self.live.values()) - len(runs) <= self.config.max_batch_size
        if lane == sched.Lane.PREFILL:
            assert not decode
            assert not scored
            return
        # Every decoding request advances in every step, unless the prefill lane or a fetch holds the blocks it needs.
        starved = {request.seq for request in runs if request.decodes} - set(planned) - others
        if starved:
            assert others or self.fetches
            stats = self.scheduler.stats()
            assert stats.used_tokens == stats.capacity_tokens
            assert not any(request.running for request in waiting), "a request takes blocks while another lacks them"
            self.totals.starved += len(starved)
        # The first running request advances as well.
        if runs and not self.config.has_prefill_lane:
            assert runs[0].seq in planned or runs[0].seq in starved

    def _check_order(self, rows: list[Row], waiting: list[Expected]) -> None:
        """Check the order: priority, round, arrival. Requests that wait for something other than room may be skipped,
        if enough room remains for the first of them."""
        admitted = [request.seq for request in waiting if request.running]
        passed = []
        for index, request in enumerate(waiting):
            is_passed = not request.running and any(later.seq in admitted for later in waiting[index:])
            passed += [request] if is_passed else []
        if not passed:
            return
        self.totals.joined += 1
        left = [len(row.request.tokens) - row.begin for row in rows if row.is_part_way]
        for request in passed:
            follows = request.leader in self.live and self.live[request.leader].num_generated == 0
            lacks_slots = self.config.state_slots > 0 and bool(self.tiers)  # to fetch a state
            assert follows or left or lacks_slots or self.config.has_prefill_lane or self._as_many_fetch_as_may(), (
                "a request that waits only for room is skipped"
            )
        if self.config.has_prefill_lane and not self.tiers:
            num_skipped = sum(not self._waits_for_leader(request) for request in passed)
            assert self.scheduler.stats().running + num_skipped <= self.config.max_batch_size, (
                "later requests take the slots of requests that wait for the other lane"
            )
        size = self.config.block_tokens
        # No blocks are reserved for followers whose leader comes later in the queue.
        kept_for = [request for request in passed if not self._leader_waits(request, waiting)]
        if not kept_for:
            return
        first = kept_for[0]
        at_most = first.prompt_tokens + first.max_tokens - 1
        num_blocks = min(-(-len(first.tokens) // size) + 1, -(-at_most // size))
        stats = self.scheduler.stats()
        assert stats.used_tokens + num_blocks * size <= stats.capacity_tokens, (
            "blocks are reserved for the first skipped request"
        )
        # A slot is reserved, too, unless the request will fetch, which only the scheduler knows.
        assert self.tiers or stats.running < self.config.max_batch_size

    def _waits_for_leader(self, request: Expected) -> bool:
        return request.leader in self.live and self.live[request.leader].num_generated == 0

    def _as_many_fetch_as_may(self) -> bool:
        unplaced = [request for request in self.live.values() if request.running and not request.has_slot]
        return len(unplaced) == self.config.max_batch_size

    def _leader_waits(self, follower: Expected, waiting: list[Expected]) -> bool:
        """Whether it was skipped while its leader also waited."""
        leader = self.live.get(-1 if follower.leader is None else follower.leader)
        if leader is None or leader.num_generated > 0 or (leader.has_slot and leader not in waiting):
            return False
        return not leader.has_slot or waiting.index(leader) > waiting.index(follower)

    def _check_memory(self, lane: int, plan: sched.Plan, rows: list[Row]) -> None:
        slots = plan.slots
        assert len(set(slots.tolist())) == slots.size, "no two tokens may be written to one slot"
        block_tokens = self.config.block_tokens
        assert slots.size == 0 or (slots.min() >= block_tokens and slots.max() < self._kv.size)
        readers = Counter(plan.kv_indices.tolist())
        assert NULL_BLOCK not in readers
        written = set((slots // block_tokens).tolist())
        assert all(readers[block] == 1 for block in written), "a shared block is written to"
        for other in self.outstanding.values():
            assert written.isdisjoint(other.plan.kv_indices.tolist()), (
                "the other lane's step reads blocks that this one writes"
            )
            assert other.blocks_written(block_tokens).isdisjoint(readers), (
                "this step reads blocks that the other one writes"
            )

        within = np.arange(block_tokens)
        for row in rows:
            table = (row.blocks[:, None] * block_tokens + within).ravel()[: row.begin]
            seen = self._kv[table]
            assert seen.tolist() == row.request.prefix_hashes[: row.begin], "a row reads another sequence's KV"
        self._check_windows(plan, rows)
        self._check_states(plan, rows)
        # A request has blocks for all its tokens, shared or not, from the step in which it is admitted.
        running = [request for request in self.live.values() if request.running]
        used = self.scheduler.stats().used_tokens
        assert used >= len(readers) * block_tokens
        most = sum(-(-(len(request.tokens) + max(1, len(request.draft_tokens))) // block_tokens) for request in running)
        assert used <= most * block_tokens

    def _check_states(self, plan: sched.Plan, rows: list[Row]) -> None:
        """Check the states that layers with recurrent state read and write."""
        if not self.config.state_slots:
            assert not any(each.size for each in (plan.states_in, plan.states_out, plan.save_indptr))
            return
        read = plan.states_in.tolist()
        left = _states_left(plan)
        assert len(read) == len(left) == len(rows)
        written = [slot for of_row in left for slot, _ in of_row]
        assert len(set(written)) == len(written), "no two states may be written to one slot"
        assert all(0 < slot <= self.config.state_slots for slot in written)
        for other in self.outstanding.values():
            others = {slot for of_row in _states_left(other.plan) for slot, _ in of_row}
            assert others.isdisjoint([*read, *written]), "the other lane's step writes a state that this one uses"
            assert set(other.plan.states_in.tolist()).isdisjoint(written), (
                "the other lane's step reads a state that this one writes"
            )
        fetched = {each.state for fetch in self.fetches.values() for each in fetch.transfers if each.state}
        assert fetched.isdisjoint([*read, *written]), "a step uses a slot that a fetch writes"
        for index, (row, slot) in enumerate(zip(rows, read, strict=True)):
            before = row.request.prefix_hashes[row.begin - 1] if row.begin else None
            assert (self._states[slot] if slot else None) == before, "a row reads another sequence's state"
            of_others = {each for other in (*left[:index], *left[index + 1 :]) for each, _ in other}
            assert not slot or slot not in of_others, "a row reads a state that another row writes"
            assert slot not in [each for each, _ in left[index][:-1]], "only the last state may replace the first"
            ends = [num_tokens for _, num_tokens in left[index]]
            assert ends == sorted(set(ends))
            assert ends[-1] == row.end - row.begin
            assert all((row.begin + end) % self.config.block_tokens == 0 for end in ends[:-1])

    def _check_windows(self, plan: sched.Plan, rows: list[Row]) -> None:
        """Check the blocks that layers with a window read and write."""
        size, slots = self.config.block_tokens, plan.window_slots
        if not self._window:
            assert slots.size == plan.window_indices.size == 0
            return
        assert slots.size == plan.num_tokens
        assert plan.window_indices.size == plan.kv_indices.size
        assert len(set(slots.tolist())) == slots.size, "no two tokens may be written to one slot"
        readers = Counter(plan.window_indices.tolist())
        assert all(readers[block] == 1 for block in (slots // size).tolist()), "a shared block is written to"
        tables = [(row.window_blocks[:, None] * size + np.arange(size)).ravel() for row in rows]
        written = [table[row.begin : row.end] for row, table in zip(rows, tables, strict=True)]
        assert slots.tolist() == [slot for of_row in written for slot in of_row.tolist()]
        for row, table in zip(rows, tables, strict=True):
            first = max(0, row.begin + 1 - self._window)
            is_kept = row.window_blocks != NULL_BLOCK
            assert is_kept.tolist() == [index >= first // size for index in range(len(row.window_blocks))]
            seen = self._window_kv[table[first : row.begin]]
            assert seen.tolist() == row.request.prefix_hashes[first : row.begin], "a window shows another sequence's KV"

    def _check_committed(
        self, rows: list[Row], expected: list[tuple[int, int, int]], aborted: set[int], committed: sched.Committed
    ) -> None:
        for row in rows:
            row.request.num_computed = row.computed
            row.request.draft_tokens = []
            self.totals.right_draft_tokens += row.computed - (row.end - len(row.draft_tokens))
        got = zip(committed.seqs.tolist(), committed.tokens.tolist(), committed.finish.tolist(), strict=True)
        assert list(got) == expected
        finished = [seq for seq, _, finish in expected if finish != sched.Finish.NONE]
        self.totals.finished += len(finished)
        for seq in [*finished, *aborted]:
            self._remove(seq)

    def _check_between_steps(self) -> None:
        self.scheduler.check()
        stats = self.scheduler.stats()
        running = self._num_slots_used()
        assert (stats.running, stats.waiting) == (running, len(self.live) - running)
        assert stats.preemptions == self.totals.preemptions
        assert stats.prefix_query_tokens == self.totals.prefix_query_tokens
        assert stats.prefix_hit_tokens == self.totals.prefix_hit_tokens
        assert stats.used_tokens + stats.cached_tokens <= stats.capacity_tokens
        assert self.live or stats.used_tokens == stats.window_used_tokens == stats.state_slots_used == 0
        assert stats.window_used_tokens <= min(stats.used_tokens, self._most_window_tokens())
        assert stats.window_used_tokens + stats.window_cached_tokens <= self._window_kv.size - self.config.block_tokens
        for tier, of in zip(self.tiers, stats.tiers, strict=True):
            assert of.cached_tokens <= tier.num_whole * self.config.block_tokens, (
                "a tier counts blocks that serve no request"
            )
        assert [(seq, tokens, computed) for seq, _, tokens, computed, _ in self.scheduler.describe()] == [
            (request.seq, len(request.tokens), request.num_computed)
            for request in sorted(self.live.values(), key=lambda request: not request.running)
        ]

    def _most_window_tokens(self) -> int:
        """Capacity that the requests' window blocks may need, in tokens."""
        size, tokens = self.config.block_tokens, 0
        for request in self.live.values():
            if request.running and self._window:
                seen = -(-(self._window - 1) // size) * size
                drafted = max(1, len(request.draft_tokens))
                most = len(request.tokens) + drafted if request.lacks_one_token else request.num_computed
                for outstanding in self.outstanding.values():
                    most = max([most, *(row.end + 1 for row in outstanding.rows if row.request is request)])
                end = -(-most // size) * size
                tokens += min(end, seen + end - request.num_computed // size * size)
                tokens += seen if request.is_fetching else 0
        return tokens


def _hash_of_first(store: sched.Transfer, tier: Tier) -> int:
    """Expected hash of a block's first token, from the tokens of the blocks before it and its salt."""
    chain: list[tuple[int, ...]] = []
    parent = store.parent
    while parent:
        chain.insert(0, tier.records[parent].tokens)
        parent = tier.records[parent].parent
    before = [token for tokens in chain for token in tokens]
    return prefix_hashes([*before, int(store.tokens[0])], store.salt)[-1]


def _hash_of_last(block: int, tier: Tier) -> int:
    """The prefix hash of the last token of a tier's block."""
    chain: list[tuple[int, ...]] = []
    salt = tier.records[block].salt
    while block:
        assert not tier.records[block].is_dropped
        chain.insert(0, tier.records[block].tokens)
        block = tier.records[block].parent
    return prefix_hashes([token for tokens in chain for token in tokens], salt)[-1]


def _states_left(plan: sched.Plan) -> list[list[tuple[int, int]]]:
    """For each row, the recurrent state slots that it writes and after how many of its tokens; the last after all."""
    if not plan.save_indptr.size:
        return [[] for _ in range(plan.num_requests)]
    saves = list(zip(plan.save_slots.tolist(), plan.save_ends.tolist(), strict=True))
    lasts = zip(plan.states_out.tolist(), np.diff(plan.query_indptr).tolist(), strict=True)
    return [
        [*saves[first:end], last] for (first, end), last in zip(pairwise(plan.save_indptr.tolist()), lasts, strict=True)
    ]


def _tables(plan: sched.Plan) -> list[list[int]]:
    arrays = (
        *(plan.seqs, plan.query_indptr, plan.positions, plan.slots, plan.kv_indptr, plan.kv_indices, plan.kv_lens),
        *(plan.window_slots, plan.window_indices),
    )
    return [array.tolist() for array in arrays]

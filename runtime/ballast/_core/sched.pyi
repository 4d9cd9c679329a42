"""Continuous batching over a paged, shared KV space. Not thread-safe: one engine thread owns a Scheduler."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import _I32 as I32
from . import PybindObject

MAX_IDLE_TOKENS: int
"""Maximum tokens of a decode-lane step without decoding requests, if there is a prefill lane and chunk_size is
smaller."""
EARLIER_TOKENS: int
"""Tokens before each row that a plan lists in addition."""

def num_window_blocks(
    *,
    window: int,
    num_blocks: int,
    block_tokens: int,
    max_batch_size: int,
    step_tokens: int,
    keeps_borders: bool = True,
    has_tiers: bool = False,
) -> int:
    """Number of blocks, at most `num_blocks`, for layers in which a token attends to `window` tokens. It is enough for
    the windows of `max_batch_size` requests, for the tokens that steps of `step_tokens` tokens write, which are all
    steps that can be outstanding at the same time, with `has_tiers` for as many requests that fetch, and with
    `keeps_borders` for borders of cached prefixes. Raises ValueError for a number below 1."""

def num_state_slots(
    *, capacity_tokens: int, max_batch_size: int, least_snapshots: int, num_snapshots: int | None = None
) -> int:
    """Number of slots of recurrent state: two for each of `max_batch_size` requests, and `num_snapshots` more; None: as
    many again, `least_snapshots`, or one for each 8,192 tokens of a cache of `capacity_tokens`, whichever is most.

    Raises ValueError for a negative number."""

class SchedulerConfig(PybindObject):
    def __init__(
        self,
        *,
        num_blocks: int,
        block_tokens: int,
        max_batch_size: int,
        chunk_size: int,
        prefill_chunk_size: int,
        prefix_cache: bool = True,
        decode_costs: Sequence[tuple[int, float]] = ...,
        prefill_costs: Sequence[tuple[int, float]] = ...,
        prefill_lane_tokens: int | None = None,
        joint_tokens: tuple[int, int] | None = None,
        max_stall_s: float | None = None,
        tiers: Sequence[tuple[int, int]] = ...,
        window: tuple[int, int] | None = None,
        state_slots: int = 0,
        state_tiers: Sequence[tuple[int, int, bool, int]] = ...,
    ) -> None:
        """`num_blocks`: usable blocks, with ids 1…num_blocks; block 0 is the null block.

        `chunk_size`: token budget of a step with decoding requests; `prefill_chunk_size`: of any other step.
        `decode_costs` and `prefill_costs`: (tokens, seconds) of steps of each lane, ascending. Without `prefill_costs`
        all steps run in one lane. `prefill_lane_tokens`: minimum tokens of a prompt that uses the prefill lane; None:
        the planner compares the costs. `joint_tokens`: minimum and maximum tokens of decode-lane steps with prompts
        that use the link to the device, as passes do, so that no pass begins at the same time; None: no such steps.
        `max_stall_s`: maximum seconds that prompts may add to a step with decoding requests, by `decode_costs`; None: 3
        times the step without them (1 time if there are two lanes), and more if more prompts wait than requests decode.
        `tiers`: copies of the prefix cache's blocks outside the device, the fastest first, each with its number of
        blocks and its maximum number of concurrent transfers. `window`: the number of tokens that a token attends to in
        sliding-window layers, which free blocks behind their windows, and the number of usable blocks of these layers,
        from `num_window_blocks`; None: no layer has a window.
        `state_slots`: usable slots of recurrent state, from `num_state_slots`; 0: no layer has such a state. It cannot
        be combined with a window. `state_tiers`: of each tier, the number of states that it keeps, its maximum number
        of concurrent transfers, whether it takes only those of conversations at rest, and the number of blocks that
        take as long to fetch as a state; empty: tiers keep none.
        Raises ValueError naming the field for invalid values.
        """
    @property
    def num_blocks(self) -> int: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def max_batch_size(self) -> int: ...
    @property
    def chunk_size(self) -> int: ...
    @property
    def prefill_chunk_size(self) -> int: ...
    @property
    def prefix_cache(self) -> bool: ...
    @property
    def prefill_lane_tokens(self) -> int | None: ...
    @property
    def joint_tokens(self) -> tuple[int, int] | None: ...
    @property
    def max_stall_s(self) -> float | None: ...
    @property
    def decode_costs(self) -> list[tuple[int, float]]: ...
    @property
    def prefill_costs(self) -> list[tuple[int, float]]: ...
    @property
    def has_prefill_lane(self) -> bool: ...
    @property
    def window(self) -> tuple[int, int] | None: ...
    @property
    def tiers(self) -> list[tuple[int, int]]: ...
    @property
    def state_slots(self) -> int: ...
    @property
    def state_tiers(self) -> list[tuple[int, int, bool, int]]: ...

class Lane(PybindObject):
    """The two lanes of steps. Each has at most one outstanding step; steps of both run concurrently."""

    DECODE: int  # 0
    """Decoding requests, and prompts that are computed alongside them; without a prefill lane, all work."""
    PREFILL: int  # 1
    """Passes over prompts only, in which a device streams the experts by itself."""

class Finish(PybindObject):
    """Values of `Committed.finish`."""

    NONE: int  # 0
    STOP: int  # 1
    LENGTH: int  # 2

class Plan(PybindObject):
    """The plan of one step as a structure of arrays. Every array is a read-only view of C++ memory (no copy), which
    lives as long as the view. Rows: first decoding requests, then prefill chunks, each group in the requests' order."""

    @property
    def num_requests(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_decode(self) -> int:
        """The first num_decode rows decode. Each has one token, and its draft tokens after it."""
    @property
    def seqs(self) -> NDArray[np.int64]:
        """[requests]"""
    @property
    def query_indptr(self) -> I32:
        """[requests + 1], row r owns tokens query_indptr[r]:query_indptr[r + 1]."""
    @property
    def earlier_ids(self) -> I32:
        """[3 rows], the tokens before each row, the nearest last; -1 before the first one of a sequence."""
    @property
    def token_ids(self) -> I32:
        """[tokens]"""
    @property
    def positions(self) -> I32:
        """[tokens], position in the sequence."""
    @property
    def slots(self) -> I32:
        """[tokens], block * block_tokens + offset: where this token's KV is written."""
    @property
    def kv_indptr(self) -> I32:
        """[requests + 1], row r reads blocks kv_indices[kv_indptr[r]:kv_indptr[r + 1]]."""
    @property
    def kv_indices(self) -> I32:
        """Block ids, in sequence order."""
    @property
    def window_slots(self) -> I32:
        """[tokens], the counterpart of `slots` for sliding-window layers; empty if the configuration has no window."""
    @property
    def window_indices(self) -> I32:
        """The counterpart of `kv_indices` for these layers: 0 for blocks that no token of the row attends to there."""
    @property
    def states_in(self) -> I32:
        """[requests], the slot with the recurrent state before the row's tokens, 0 for zeros; empty if the
        configuration has no slots."""
    @property
    def states_out(self) -> I32:
        """[requests], the slot for the state after the row's tokens: another one, or one that no other row reads."""
    @property
    def save_indptr(self) -> I32:
        """[requests + 1], row r also leaves states in save_slots[save_indptr[r]:save_indptr[r + 1]]."""
    @property
    def save_ends(self) -> I32:
        """[saves], how many of the row's tokens precede the state; ascending."""
    @property
    def save_slots(self) -> I32:
        """[saves]"""
    @property
    def kv_lens(self) -> I32:
        """[requests], KV length in tokens once this step has run."""
    @property
    def samples(self) -> I32:
        """[requests], number of the row's last tokens whose logits are sampled: 0 if the row leaves prompt tokens to
        compute, otherwise 1 more than its draft tokens."""
    @property
    def logits_at(self) -> NDArray[np.int64]:
        """Indices of the tokens whose logits are sampled, ascending."""
    @property
    def preempted(self) -> NDArray[np.int64]:
        """Sequences preempted while planning this step (for logs)."""
    @property
    def was_predicted(self) -> bool:
        """Whether `plan_ahead` returned the same plan, except for token_ids."""

class Committed(PybindObject):
    """The tokens that a step added, in plan order: one per sampled row, or several if draft tokens were correct. The
    views are valid until the next commit()."""

    @property
    def seqs(self) -> NDArray[np.int64]:
        """[added tokens]"""
    @property
    def tokens(self) -> I32:
        """[added tokens]"""
    @property
    def finish(self) -> NDArray[np.uint8]:
        """[added tokens], Finish values; a finished sequence is already freed."""

class Move(PybindObject):
    """Values of `Transfer.move`."""

    STORE: int  # 0
    DROP: int  # 1
    FETCH: int  # 2
    STORE_STATE: int  # 3

class Transfer(PybindObject):
    """A transfer of one block of a tier, whose block ids are 1…num_blocks. A tier executes its transfers in the order
    of the requests."""

    @property
    def move(self) -> int:
        """STORE: copy a block from the cache to the tier, before a later step or fetch writes to it. DROP: the content
        of the tier's block, and of the blocks that follow it, must never be restored. FETCH: copy the tier's block to a
        block of the cache. STORE_STATE: copy the recurrent state after such a block to the tier."""
    @property
    def tier(self) -> int:
        """Index of the tier."""
    @property
    def tier_block(self) -> int: ...
    @property
    def block(self) -> int:
        """The cache's block; 0 for DROP."""
    @property
    def window_block(self) -> int:
        """The block of layers with a window, if these have blocks of their own. 0 for STORE: it is gone. 0 for FETCH:
        it is not needed, and what is copied to the null block is never read."""
    @property
    def parent(self) -> int:
        """For STORE: the tier's block with the preceding tokens, 0 at the start."""
    @property
    def tokens(self) -> I32:
        """[block_tokens], for STORE."""
    @property
    def salt(self) -> tuple[int, int]:
        """For STORE: see `Scheduler.add`."""
    @property
    def seq(self) -> int:
        """For FETCH: the sequence that needs the block. All fetches of one sequence are consecutive, by position."""
    @property
    def tier_state(self) -> int:
        """For STORE_STATE: where the tier keeps the state. For FETCH: the state that comes with the block, 0: none."""
    @property
    def state(self) -> int:
        """The slot of that state in the cache."""

class TierStats(PybindObject):
    @property
    def capacity_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int:
        """Tokens in blocks that the tier holds."""
    @property
    def fetched_tokens(self) -> int:
        """Total tokens that were fetched back to the cache."""
    @property
    def dropped_tokens(self) -> int:
        """Total tokens that the cache evicted without a copy in this tier."""
    @property
    def states(self) -> int:
        """Recurrent states that the tier holds."""

class Stats(PybindObject):
    @property
    def waiting(self) -> int:
        """Requests without a slot in the batch: queued, preempted or fetching."""
    @property
    def running(self) -> int:
        """Requests that have one of the max_batch_size slots."""
    @property
    def capacity_tokens(self) -> int: ...
    @property
    def used_tokens(self) -> int:
        """Tokens in blocks that live requests hold."""
    @property
    def cached_tokens(self) -> int:
        """Tokens in blocks that no request holds and that the prefix cache can still serve."""
    @property
    def window_used_tokens(self) -> int:
        """Sliding-window layers: tokens in blocks that requests read or write."""
    @property
    def window_cached_tokens(self) -> int:
        """Sliding-window layers: tokens in blocks that no request reads, kept for the prefix cache."""
    @property
    def preemptions(self) -> int:
        """Total number of preemptions."""
    @property
    def prefix_query_tokens(self) -> int:
        """Total prompt tokens looked up."""
    @property
    def prefix_hit_tokens(self) -> int:
        """Total prompt tokens served from the cache, or from tiers."""
    @property
    def prefix_cut_tokens(self) -> int:
        """Total prompt tokens that the cache or a tier knew but could not serve, because no state or window is there
        after them."""
    @property
    def snapshots(self) -> int:
        """Recurrent states that are kept for later requests."""
    @property
    def snapshot_hits(self) -> int:
        """Total number of times that a request began at one, of the cache or of a tier."""
    @property
    def snapshots_evicted(self) -> int:
        """Total recurrent states that were kept until the cache needed their slots."""
    @property
    def state_slots(self) -> int:
        """Slots of recurrent state in the cache."""
    @property
    def state_slots_used(self) -> int:
        """Slots of recurrent state that requests hold."""
    @property
    def fetching(self) -> int:
        """The part of `waiting` whose blocks are being fetched from tiers."""
    @property
    def unsent(self) -> int:
        """Ended requests with blocks, and snapshots, that remain to be sent to tiers."""
    @property
    def tiers(self) -> list[TierStats]:
        """One entry per tier, in the order of the configuration."""

class QueueState(PybindObject):
    """The load at one point in time; it does not follow later changes of the scheduler."""

    def arrive(self, priority: int, client: int, prompt_tokens: int, max_tokens: int) -> None:
        """Add a request that the scheduler does not have yet; `prompt_tokens` does not include tokens in the prefix
        cache."""
    def predicted_wait_s(
        self,
        priority: int,
        client: int,
        prompt_tokens: int,
        max_tokens: int,
        *,
        horizon_s: float,
        elapsed_s: float = 0.0,
    ) -> float:
        """Seconds until the first step of a request that arrives `elapsed_s` after this state was taken, from a
        simulation of the planner with its costs. A value beyond `horizon_s` may be too small. 0 if no costs are
        known."""

class Scheduler(PybindObject):
    def __init__(self, config: SchedulerConfig) -> None: ...
    def add(
        self,
        seq: int,
        prompt: I32,
        max_tokens: int,
        stop_tokens: I32,
        min_tokens: int = 0,
        *,
        priority: int = 0,
        leader: int | None = None,
        scores_prompt: bool = False,
        client: int = 0,
        salt: tuple[int, int] = ...,
        snapshots_at: Sequence[int] = ...,
        snapshot_before: Sequence[int] = ...,
    ) -> None:
        """Queue a sequence. Sequences with a lower `priority` number are served first; within a priority, clients share
        the batch fairly, and within a client the earlier sequence is served first.

        `leader`, a live sequence with the same prompt, computes it first; this sequence then reads its full blocks from
        the prefix cache. `salt`: two 64-bit words; blocks of the cache and of tiers are shared only among sequences
        with the same salt. With `scores_prompt` the model computes every prompt token, at most chunk_size per step.
        `snapshots_at`: ascending numbers of prompt tokens that later prompts are likely to repeat, and
        `snapshot_before`: tokens of the reply that these may not repeat; snapshots of recurrent state are wanted at the
        end of the last full block before them, in the reply before the first such token only.
        Raises ValueError if the prompt is empty, the id is already live, the leader is not live or has a larger
        `priority` or another salt, prompt + max_tokens can never fit, or `snapshots_at` is not ascending within the
        prompt."""
    def abort(self, seq: int) -> bool:
        """Free a sequence in any state; between plan() and commit() this happens at commit(). Returns False if the id
        is not live."""
    def fail(self, seq: int, *, forget: bool) -> None:
        """Report, between plan() and commit(), that a row failed. At commit() its sequence is freed, and the results
        that the step computed for it are not published. With `forget`, blocks that it read or wrote before are not
        served to other sequences either: use it if the numbers themselves are wrong.

        Raises ValueError if the sequence has no row in an outstanding plan."""
    def propose(self, seq: int, draft_tokens: I32) -> None:
        """Set draft tokens: guesses of the tokens that follow the last one of a decoding sequence. Its row in the next
        plan computes all of them, and `commit` keeps the correct ones. They are cut to max_tokens, to the free blocks,
        and to chunk_size - max_batch_size for all sequences together; a preempted sequence loses them.

        Raises ValueError if the sequence does not decode in the next step."""
    def plan(self, lane: int = 0, *, now_s: float | None = None) -> Plan:
        """Decide the next step of a lane. An empty plan (num_requests == 0) means that the lane can run nothing now.
        `now_s`: seconds of a monotonic clock, from which the planner derives the progress of the other lane's step. If
        it is also passed to commit(), the costs adapt to measured steps.

        Raises RuntimeError if the lane's previous plan was not empty and has not been committed, or if the lane does
        not exist."""
    def plan_ahead(self) -> Plan | None:
        """Predict the decode lane's next plan, assuming that no request arrives, aborts or ends. Call it while a plan
        of decoding requests only is outstanding. The blocks of the plan are already allocated; token ids are 0,
        `samples` and `logits_at` are empty. Returns None if the next plan cannot be predicted, for example if a row has
        draft tokens."""
    def commit(self, tokens: I32, lane: int = 0, *, now_s: float | None = None) -> Committed:
        """Complete the lane's planned step: `tokens` has one token per entry of `Plan.logits_at`. A row with draft
        tokens keeps its first token, and each further one while the sampled token before it equals the draft token.

        Raises ValueError if their number differs, and RuntimeError if there is no plan. Sequences that were aborted or
        failed since plan() count among the rows, and are omitted from the result."""
    def take_transfers(self) -> list[Transfer]:
        """The transfers requested since the last call. Call it after each call of plan, commit, fetched and stored, and
        start the transfers before the next plan. Empty without tiers."""
    def fetched(self, seq: int, num_blocks: int, *, is_damaged: bool = False, is_state_damaged: bool = False) -> None:
        """Report that all FETCH transfers of a sequence have ended and the first `num_blocks` of them succeeded; the
        remaining tokens are computed. `is_damaged`: the next block is damaged, and is never served again.
        `is_state_damaged`: the next block is the last one, and only the recurrent state after it is damaged. A sequence
        that was aborted in the meantime ends now.

        Raises ValueError if the sequence fetches nothing, or fewer blocks."""
    def measured(self, tier: int, block_seconds: float) -> None:
        """Report the measured seconds for reading a block back from a tier; 0: unknown. The scheduler does not fetch
        blocks that it expects to compute faster. Raises ValueError for an unknown tier."""
    def coming(self, seq: int, tier: int, num_blocks: int) -> None:
        """Report that a tier still has `num_blocks` blocks to read for a sequence; later fetches wait for them.

        Raises ValueError if the sequence fetches nothing, if the tier is unknown or if fewer blocks were reported
        before."""
    def is_worth_fetching(self, seq: int) -> bool:
        """Whether the scheduler, with its current estimates, would still fetch all blocks that a sequence is fetching.
        Raises ValueError if it fetches nothing."""
    def stored(self, tier: int, *, is_whole: bool) -> None:
        """Complete the oldest pending STORE of a tier. If it failed (`is_whole` is false), no further blocks are sent
        to the tier.

        Raises ValueError if the tier is unknown, and RuntimeError if it has no pending STORE."""
    def stored_state(self, tier: int, *, is_whole: bool) -> None:
        """As `stored`, of the oldest pending STORE_STATE."""
    def rest(self) -> None:
        """Report that nothing has run for a while: the states of all conversations are sent to tiers that take those
        at rest."""
    def restore(
        self,
        tier: int,
        blocks: I32,
        parents: I32,
        tokens: I32,
        salts: NDArray[np.uint64],
        have_windows: Sequence[bool] = ...,
        states: Sequence[int] = ...,
    ) -> None:
        """Register blocks that an earlier process left in a tier, before anything is added: `blocks` [n] with their
        `parents` [n], `tokens` [n · block_tokens] and `salts` [n, 2], children before their parents, in order of
        eviction. `have_windows` [n]: whether a block holds the keys of layers with a window; empty: none does.
        `states` [n]: where the tier keeps the recurrent state after it, 0: nowhere; empty: after none.

        Raises ValueError if ids repeat, or if a parent is missing or has another salt."""
    def cached_tokens(self, seq: int) -> int:
        """Prompt tokens of a live sequence that the prefix cache and tiers served when it was first admitted; 0 before
        its admission.

        Raises ValueError if the id is not live."""
    def stats(self) -> Stats: ...
    def snapshot_positions(self, most: int) -> list[int]:
        """The number of tokens before each snapshot of recurrent state, at most `most`, those used last first."""
    def costs(self) -> dict[str, list[tuple[int, float]]]:
        """Current costs as (tokens, seconds) of steps: `decode`, `decode_in_pass` for decode-lane steps while a pass is
        outstanding, `prefill`, and `prefill_during_decode` for passes while the decode lane computes. Lists are empty
        if nothing was measured."""
    def next_prompt_step_s(self) -> float:
        """Seconds that the prompts of the next waiting requests take; 0 if no request waits or no costs are known."""
    def queue_state(
        self, *, mean_reply_tokens: float | None = None, prompt_share: float = 1.0, now_s: float | None = None
    ) -> QueueState:
        """A copy of the load for estimates. `mean_reply_tokens`: expected length of a reply; None: max_tokens of the
        request. `prompt_share`: the fraction of a prompt that the prefix cache does not have, 0…1."""
    def check(self) -> None:
        """Raise InvariantError if any invariant is broken. Runs when the engine goes idle and in every test."""
    def describe(self, max_waiting: int | None = None) -> list[tuple[int, str, int, int, int]]:
        """One (seq, state, num_tokens, num_computed_tokens, num_blocks) per live sequence: first running sequences,
        then at most `max_waiting` waiting ones, each in order."""

"""Continuous batching over a paged, shared KV space. Not thread-safe: one engine thread owns a Scheduler."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import _I32 as I32
from . import PybindObject

MOST_IDLE_TOKENS: int
"""Most tokens of a decode-lane step in which nothing decodes, if there is a prefill lane and chunk_size is smaller."""

def num_window_blocks(
    *,
    window: int,
    num_blocks: int,
    block_tokens: int,
    max_batch_size: int,
    step_tokens: int,
    keeps_borders: bool = True,
) -> int:
    """Number of blocks, `num_blocks` at most, of layers in which a token sees `window` tokens: enough for what
    `max_batch_size` requests see and steps of `step_tokens` tokens write, and, with `keeps_borders`, for borders of
    cached prefixes."""

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
    ) -> None:
        """`num_blocks` usable blocks with ids 1…num_blocks; block 0 is the null block.

        `chunk_size` is the token budget of a step in which something decodes, `prefill_chunk_size` of any other.
        `decode_costs` and `prefill_costs`: (tokens, seconds) of steps of either lane, ascending. Without
        `prefill_costs` there is one lane, in which everything runs. `prefill_lane_tokens`: the fewest tokens of a
        prompt that uses the prefill lane; None: the planner compares the costs. `joint_tokens`:
        the fewest and most tokens of decode-lane steps with prompts that use the link to the device, as passes do, so
        no pass begins meanwhile; None: they never use it. `max_stall_s`: the most seconds that
        prompts may add to a step in which something decodes, by `decode_costs`; None: 3 times the step without them,
        or once if there are two lanes, and more if more prompts wait than requests decode. `tiers`: copies of the
        prefix cache's blocks outside the device, the fastest first, each with its number of blocks and the most that
        are in transfer at a time. `window`: the tokens that a token sees in layers that free what is behind their
        windows, and the number of usable blocks of these layers, from `num_window_blocks`; None: all layers keep all.
        Windows exclude tiers and a prefill lane. Raises ValueError naming the field for values that cannot work.
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

class Lane(PybindObject):
    """The two lanes of steps. Each has at most one outstanding step; steps of both run concurrently."""

    DECODE: int  # 0
    """Decoding requests, and prompts that are computed alongside them; without a prefill lane, everything."""
    PREFILL: int  # 1
    """Passes over prompts only, where a device streams the experts by itself."""

class Finish(PybindObject):
    """Values of `Committed.finish`."""

    NONE: int  # 0
    STOP: int  # 1
    LENGTH: int  # 2

class Plan(PybindObject):
    """One step's decision as structure of arrays. Every array is a read-only view of C++ memory (no copy), which
    lives as long as the view. Rows: first those that decode, then prefill chunks, each group in the requests' order."""

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
        """[tokens], as `slots`, of layers that free what is behind their windows; empty if the configuration has no
        window."""
    @property
    def window_indices(self) -> I32:
        """As `kv_indices`, of these layers: 0 for blocks that no token of the row sees there."""
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
        """`plan_ahead` said the same of it, token_ids aside."""

class Committed(PybindObject):
    """The tokens that a step added, in plan order: one per sampled row, or several if draft tokens were right. Views
    valid until the next commit()."""

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

class Transfer(PybindObject):
    """A transfer of one block of a tier, whose ids are 1…num_blocks. A tier executes its transfers in the order of the
    requests."""

    @property
    def move(self) -> int:
        """STORE: copy a block of the cache out, before a later step or fetch writes to it. DROP: what the tier's block
        holds, and what follows it, is never to be restored. FETCH: copy it to a block of the cache."""
    @property
    def tier(self) -> int:
        """Index of the tier."""
    @property
    def tier_block(self) -> int: ...
    @property
    def block(self) -> int:
        """The cache's; 0 of a DROP."""
    @property
    def parent(self) -> int:
        """Of a STORE: the tier's block with the tokens before, 0 at the start."""
    @property
    def tokens(self) -> I32:
        """[block_tokens] of a STORE."""
    @property
    def salt(self) -> tuple[int, int]:
        """Of a STORE: as of `Scheduler.add`."""
    @property
    def seq(self) -> int:
        """Of a FETCH: for whom. All of one sequence follow each other, by position."""

class TierStats(PybindObject):
    @property
    def capacity_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int:
        """Tokens in blocks that are there."""
    @property
    def fetched_tokens(self) -> int:
        """Total that came back."""
    @property
    def dropped_tokens(self) -> int:
        """Total that the cache gave up without having sent it there."""

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
        """Tokens in blocks that some live request holds."""
    @property
    def cached_tokens(self) -> int:
        """Tokens in blocks that no request holds and that the prefix cache can still serve."""
    @property
    def window_used_tokens(self) -> int:
        """Of layers that free what is behind their windows: tokens in blocks that some request sees or writes."""
    @property
    def window_cached_tokens(self) -> int:
        """Of these layers: tokens in blocks that no request sees, kept for the prefix cache."""
    @property
    def preemptions(self) -> int:
        """Total."""
    @property
    def prefix_query_tokens(self) -> int:
        """Total prompt tokens looked up."""
    @property
    def prefix_hit_tokens(self) -> int:
        """Total prompt tokens served from the cache, or from tiers."""
    @property
    def fetching(self) -> int:
        """Of `waiting`, those whose blocks are on their way from tiers."""
    @property
    def unsent(self) -> int:
        """Requests that have ended and of which blocks are still to be sent to tiers."""
    @property
    def tiers(self) -> list[TierStats]:
        """One for each tier, as configured."""

class QueueState(PybindObject):
    """The load at one moment, independent of the scheduler from then on."""

    def arrive(self, priority: int, client: int, prompt_tokens: int, max_tokens: int) -> None:
        """Add a request that the scheduler does not know yet; `prompt_tokens` without those in the prefix cache."""
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
        """Seconds until the first step of a request that arrives `elapsed_s` after this state was taken: the planner
        run forward on its costs. A value beyond `horizon_s` may be too small. 0 if no costs are known."""

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
    ) -> None:
        """Queue a sequence. The lower `priority` is served first; within a priority, clients share the batch fairly,
        and within a client the earlier sequence is served first.

        `leader`, a live sequence with the same prompt, computes it first; this one then takes its full blocks from the
        prefix cache. `salt`: two 64-bit words; blocks of the cache and of tiers are shared only among sequences with
        the same salt. With `scores_prompt` every prompt token goes through the model, at most chunk_size per step.
        Raises ValueError when it is empty, its id is live, its leader is not or has a larger `priority` or another
        salt, or prompt + max_tokens can never fit."""
    def abort(self, seq: int) -> bool:
        """Free a sequence in any state; between plan() and commit() this happens at commit().
        False when the id is not live."""
    def fail(self, seq: int, *, forget: bool) -> None:
        """Between plan() and commit(): a row went wrong. At commit() its sequence is freed, and what the step computed
        for it is not published. With `forget`, nothing that it read or wrote before is served to others either: for
        numbers that are wrong in themselves.

        ValueError when the sequence is no row of an outstanding plan."""
    def propose(self, seq: int, draft_tokens: I32) -> None:
        """Set draft tokens: guesses of the tokens that follow the last one of a sequence that decodes. Its row in the
        next plan computes all of them, and `commit` keeps those that were right. They are cut to max_tokens, to the
        free blocks, and to chunk_size - max_batch_size for all sequences together; a sequence that is preempted loses
        them.

        ValueError when the sequence does not decode in the next step."""
    def plan(self, lane: int = 0, *, now_s: float | None = None) -> Plan:
        """Decide the next step of a lane. An empty plan (num_requests == 0) means that nothing can run in it now.
        `now_s`, seconds of a monotonic clock, says how far the other lane's step is; with it in commit() as well, the
        costs follow the steps.

        RuntimeError when the lane's previous plan was not empty and has not been committed, or there is no such
        lane."""
    def plan_ahead(self) -> Plan | None:
        """What the decode lane's next plan will be unless a request comes, goes or ends; to be asked for while a plan
        that only decodes is outstanding. Its blocks are taken already; token ids are 0, `samples` and `logits_at` are
        empty. None where the next plan cannot be predicted, for example if a row has draft tokens."""
    def commit(self, tokens: I32, lane: int = 0, *, now_s: float | None = None) -> Committed:
        """Account for the lane's planned step: `tokens` holds a token for each of `Plan.logits_at`. A row with draft
        tokens keeps its first one, and each next one while the sampled token before it equals the draft token.

        ValueError when their number differs, RuntimeError when there is no plan. Sequences that were aborted or have
        failed since plan() count among the rows, and are left out of what is returned."""
    def take_transfers(self) -> list[Transfer]:
        """What is to be moved since the last call; to be asked for after each call of plan, commit, fetched and stored,
        and to be begun before the next plan. Empty without tiers."""
    def fetched(self, seq: int, num_blocks: int, *, is_damaged: bool = False) -> None:
        """All FETCHes of a sequence are over, `num_blocks` of them well; what comes then is computed. `is_damaged`: the
        next block is, and is never served again. A sequence that was aborted meanwhile ends now.

        ValueError if the sequence fetches nothing, or fewer blocks."""
    def measured(self, tier: int, block_seconds: float) -> None:
        """Report the measured seconds for reading a block back from a tier; 0: unknown. The scheduler does not fetch
        blocks that it expects to compute faster. ValueError for an unknown tier."""
    def coming(self, seq: int, tier: int, num_blocks: int) -> None:
        """Report that a tier still has `num_blocks` blocks to read for a sequence; later fetches wait for them.

        ValueError when it fetches nothing, when there is no such tier or when there were fewer before."""
    def is_worth_fetching(self, seq: int) -> bool:
        """Whether all that a sequence fetches would be fetched by what is known now. ValueError when it fetches
        nothing."""
    def stored(self, tier: int, *, is_whole: bool) -> None:
        """The oldest STORE of a tier is over. If it was lost, nothing more is sent to the tier.

        ValueError when there is no such tier, RuntimeError when nothing is on its way to it."""
    def restore(self, tier: int, blocks: I32, parents: I32, tokens: I32, salts: NDArray[np.uint64]) -> None:
        """Tell what an earlier process has left in a tier, before anything is added: `blocks` [n] with their `parents`
        [n], `tokens` [n · block_tokens] and `salts` [n, 2], children before their parents, in the order in which they
        are given up.

        ValueError when ids repeat, a parent is missing or has another salt."""
    def cached_tokens(self, seq: int) -> int:
        """Prompt tokens of a live sequence that the prefix cache and tiers served when it was first admitted, 0 before.

        ValueError when the id is not live."""
    def stats(self) -> Stats: ...
    def costs(self) -> dict[str, list[tuple[int, float]]]:
        """(tokens, seconds) of steps as of now: `decode`, `decode_in_pass` for decode-lane steps while a pass is
        outstanding, `prefill`, and `prefill_during_decode` for passes while the decode lane computes. Empty lists if
        nothing was measured."""
    def next_prompt_step_s(self) -> float:
        """Seconds that the prompts of the next waiting requests take; 0 if none waits or no costs are known."""
    def queue_state(
        self, *, mean_reply_tokens: float | None = None, prompt_share: float = 1.0, now_s: float | None = None
    ) -> QueueState:
        """A copy of the load for estimates. `mean_reply_tokens`: expected length of a reply; None: as long as its
        max_tokens allows. `prompt_share`: the share of a prompt that the prefix cache does not have, 0…1."""
    def check(self) -> None:
        """Raise InvariantError when any invariant is broken. Runs when the engine goes idle and in every test."""
    def describe(self, max_waiting: int | None = None) -> list[tuple[int, str, int, int, int]]:
        """One (seq, state, num_tokens, num_computed_tokens, num_blocks) per live sequence: those that run, then those
        that wait, `max_waiting` of them at most; each in their order."""

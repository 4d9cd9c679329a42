"""Continuous batching over a paged, shared KV space. Not thread-safe: one engine thread owns a Scheduler."""

import numpy as np
from numpy.typing import NDArray

class SchedulerConfig:
    def __init__(
        self,
        *,
        num_blocks: int,
        block_tokens: int,
        max_batch_size: int,
        chunk_size: int,
        prefill_chunk_size: int,
        max_queue: int,
        prefix_cache: bool = True,
    ) -> None:
        """`num_blocks` usable blocks; block 0, the null block, comes on top: ids run 1…num_blocks.

        `chunk_size` is the token budget of a step in which something decodes, `prefill_chunk_size` of any other.
        Raises ValueError naming the field for values that cannot work.
        """
    num_blocks: int
    block_tokens: int
    max_batch_size: int
    chunk_size: int
    prefill_chunk_size: int
    max_queue: int
    prefix_cache: bool

class Finish:
    """Values of `Committed.finish`."""

    NONE: int  # 0
    STOP: int  # 1
    LENGTH: int  # 2

class Plan:
    """One step's decision as structure of arrays. Every array is a read-only view of C++ memory (no copy), valid
    until the next plan(). Rows: first those that decode, then prefill chunks, each group by priority and arrival."""

    num_requests: int
    num_tokens: int
    num_decode: int  # the first num_decode rows carry one token each
    seqs: NDArray[np.int64]  # [requests]
    query_indptr: NDArray[np.int32]  # [requests + 1], row r owns tokens query_indptr[r]:query_indptr[r + 1]
    token_ids: NDArray[np.int32]  # [tokens]
    positions: NDArray[np.int32]  # [tokens], position in the sequence
    slots: NDArray[np.int32]  # [tokens], block * block_tokens + offset: where this token's KV is written
    kv_indptr: NDArray[np.int32]  # [requests + 1], row r reads blocks kv_indices[kv_indptr[r]:kv_indptr[r + 1]]
    kv_indices: NDArray[np.int32]  # block ids, in sequence order
    kv_lens: NDArray[np.int32]  # [requests], KV length in tokens once this step has run
    samples: NDArray[np.uint8]  # [requests], 1 where the row's last token yields a sampled token
    preempted: NDArray[np.int64]  # sequences preempted while planning this step (for logs)
    was_foreseen: bool  # token_ids aside, this is what foresee() said of it

class Committed:
    """What a step meant for each sampled row, in plan order. Views valid until the next commit()."""

    seqs: NDArray[np.int64]  # [sampled rows]
    tokens: NDArray[np.int32]  # [sampled rows]
    finish: NDArray[np.uint8]  # [sampled rows], Finish values; a finished sequence is already freed

class Stats:
    waiting: int  # requests queued, preempted ones included
    running: int
    capacity_tokens: int
    used_tokens: int  # tokens in blocks that some live request holds
    cached_tokens: int  # tokens in blocks that nobody holds but the prefix cache can still serve
    preemptions: int  # total
    prefix_query_tokens: int  # total prompt tokens looked up
    prefix_hit_tokens: int  # total prompt tokens served from the cache

class QueueFullError(RuntimeError): ...

class Scheduler:
    def __init__(self, config: SchedulerConfig) -> None: ...
    def add(
        self,
        seq: int,
        prompt: NDArray[np.int32],
        max_tokens: int,
        stop_tokens: NDArray[np.int32],
        min_tokens: int = 0,
        *,
        priority: int = 0,
        leader: int | None = None,
        scores_prompt: bool = False,
    ) -> None:
        """Queue a sequence; the lower `priority` is served first, and within one the earlier.

        `leader`, a live sequence with the same prompt, computes it first; this one then takes its full blocks from the
        prefix cache. With `scores_prompt` every prompt token goes through the model, at most chunk_size in a step.
        Raises ValueError when it is empty, its id is live, its leader is not, or prompt + max_tokens can never fit;
        QueueFullError when max_queue requests wait."""
    def abort(self, seq: int) -> bool:
        """Free a sequence in whatever state it is; between plan() and commit() this happens at commit().
        False when the id is not live."""
    def plan(self) -> Plan:
        """Decide the next step. An empty plan (num_requests == 0) means that nothing can run: nothing waits.

        RuntimeError when the previous plan was not empty and has not been committed."""
    def foresee(self) -> Plan | None:
        """The next plan, while this one, which only decodes, is outstanding: what it will be unless a request comes,
        goes or ends. Token ids are 0, `samples` is empty. Its blocks are taken already. None where it is known to be
        another."""
    def commit(self, tokens: NDArray[np.int32]) -> Committed:
        """Account for the planned step: `tokens` holds one token for each row with samples == 1, in plan order.

        ValueError when their number differs, RuntimeError when there is no plan. Sequences aborted since plan()
        count among the rows, and are left out of what is returned."""
    def cached_tokens(self, seq: int) -> int:
        """Prompt tokens of a live sequence that the prefix cache served when it was first admitted, 0 before.

        ValueError when the id is not live."""
    def stats(self) -> Stats: ...
    def check(self) -> None:
        """Raise InvariantError when any invariant is broken. Runs when the engine goes idle and in every test."""
    def describe(self) -> list[tuple[int, str, int, int, int]]:
        """One (seq, state, num_tokens, num_computed_tokens, num_blocks) per live sequence: those that
        run, then those that wait, each by priority and arrival."""

"""The model's input for one step, as views of the scheduler's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballast._core import sched

States = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of R requests. The arrays are read-only views of the plan and keep its memory alive."""

    token_ids: NDArray[np.int32]  # [T]
    positions: NDArray[np.int32]  # [T]
    slots: NDArray[np.int32]  # [T], where each token's KV goes
    query_indptr: NDArray[np.int32]  # [R + 1], tokens of each request
    kv_indptr: NDArray[np.int32]  # [R + 1], blocks of each request
    kv_indices: NDArray[np.int32]  # block ids
    sampled: NDArray[
        np.int64
    ]  # [S], the tokens whose logits are computed, ascending; more than R where prompts are scored or tokens drafted
    window_slots: NDArray[np.int32] | None = None  # [T], as `slots`, of layers that free what is behind their windows
    window_indices: NDArray[np.int32] | None = None  # as `kv_indices`, of these layers; None: there are none
    states: States | None = None
    """Slots of recurrent state: `Plan.states_in`, `states_out`, `save_indptr`, `save_ends` and `save_slots`; None: it
    is zeros and not kept."""
    earlier_ids: NDArray[np.int32] | None = None
    """[3 R], the tokens before each request's first in this step, the nearest last, or -1 before its begin. None: there
    are none."""
    num_decode: int = 0  # the first requests, which decode: one token each, or more if tokens are drafted

    @property
    def is_decode(self) -> bool:
        """Whether each token can be computed as a separate request: all requests decode, or have one token."""
        num_requests = self.query_indptr.size - 1
        return num_requests in (self.token_ids.size, self.num_decode)

    @classmethod
    def from_plan(cls, plan: sched.Plan, logits_at: Sequence[int] | None = None) -> Batch:
        """View a plan as a batch. `logits_at`: indices of the tokens whose logits are computed; None: those that are
        sampled."""
        return cls(
            token_ids=plan.token_ids,
            positions=plan.positions,
            slots=plan.slots,
            query_indptr=plan.query_indptr,
            kv_indptr=plan.kv_indptr,
            kv_indices=plan.kv_indices,
            sampled=plan.logits_at if logits_at is None else np.array(logits_at, dtype=np.int64),
            window_slots=plan.window_slots if plan.window_indices.size else None,
            window_indices=plan.window_indices if plan.window_indices.size else None,
            states=(plan.states_in, plan.states_out, plan.save_indptr, plan.save_ends, plan.save_slots)
            if plan.save_indptr.size
            else None,
            earlier_ids=plan.earlier_ids,
            num_decode=plan.num_decode,
        )


def padding(num_tokens: int, block_tokens: int) -> Batch:
    """A batch of one request whose tokens read and write the null block only."""
    positions = np.arange(num_tokens, dtype=np.int32)
    num_blocks = -(-num_tokens // block_tokens)
    return Batch(
        token_ids=np.zeros(num_tokens, np.int32),
        positions=positions,
        slots=positions % np.int32(block_tokens),
        query_indptr=np.array([0, num_tokens], np.int32),
        kv_indptr=np.array([0, num_blocks], np.int32),
        kv_indices=np.zeros(num_blocks, np.int32),
        sampled=np.array([num_tokens - 1], np.int64),
    )

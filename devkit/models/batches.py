"""Batches of requests whose blocks are scattered over the cache."""

from __future__ import annotations

import itertools

import numpy as np

from ballast.model.batch import Batch

BLOCK_TOKENS = 16


def batch_of(rows: list[tuple[int, int]]) -> Batch:
    """A batch of requests: (tokens cached before, tokens added), in scattered blocks."""
    rng = np.random.default_rng(3)
    num_blocks = [-(-(before + added) // BLOCK_TOKENS) for before, added in rows]
    order = rng.permutation(sum(num_blocks)).astype(np.int32) + 1
    bounds = np.array([0, *itertools.accumulate(num_blocks)], np.int32)
    begins = np.array([0, *itertools.accumulate(added for _, added in rows)], np.int32)
    positions = np.concatenate([np.arange(before, before + added) for before, added in rows]).astype(np.int32)
    request = np.repeat(np.arange(len(rows)), [added for _, added in rows])
    slots = order[bounds[request] + positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
    return Batch(
        token_ids=rng.integers(0, 300, begins[-1]).astype(np.int32),
        positions=positions,
        slots=slots.astype(np.int32),
        query_indptr=begins,
        kv_indptr=bounds,
        kv_indices=order,
        sampled=np.arange(begins[-1]),
    )

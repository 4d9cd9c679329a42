"""Shared keys of neighbouring tokens in torch's operations, token after token."""

from __future__ import annotations

import itertools

import torch

from ballast.model.hybrid.pointwise.pools import PooledTokens, PoolMemory
from ballast.model.hybrid.steps.step import Step
from devkit.kernels.torch_recurrence import states_left


def keep_pools(tokens: PooledTokens, memory: PoolMemory, step: Step) -> None:
    """See `Pointwise.keep_pools`."""
    rows, pool = step.states, len(tokens.offset)
    assert rows is not None
    before = [memory.states[slot].clone() for slot in rows.before.tolist()]
    for row, (begin, end) in enumerate(itertools.pairwise(rows.begins.tolist())):
        num_open = int(step.positions[begin]) % pool
        kept = before[row][:num_open] if rows.before[row] else before[row][:0]
        left = dict(states_left(rows, row))
        for token in range(begin, end):
            added = torch.stack([tokens.keys[token], tokens.gates[token]])
            kept = torch.cat([kept, added[None]])
            if int(step.positions[token]) % pool == pool - 1:
                shares = (kept[:, 1] + tokens.offset[pool - len(kept) :]).softmax(0)
                shared = (shares * kept[:, 0]).sum(0)
                memory.keys[int(step.slots[token]) // pool] = shared.to(memory.keys.dtype)
                kept = kept[:0]
            if token + 1 in left:
                state = memory.states[left[token + 1]]
                state.zero_()
                state[: len(kept)] = kept

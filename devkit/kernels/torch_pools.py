"""Shared keys of neighbouring tokens in torch's operations, token after token."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from ballast.model.hybrid.pointwise.pools import BlockTokens, PooledTokens, PoolMemory
from ballast.model.hybrid.steps.step import Step


def keep_pools(tokens: PooledTokens, memory: PoolMemory, step: Step) -> None:
    """See `Pointwise.keep_pools`."""
    pool = len(tokens.offset)

    def shared(kept: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        shares = (kept[:, 1] + tokens.offset[pool - len(kept) :]).softmax(0)
        return (shares * kept[:, 0]).sum(0)

    _keep(torch.stack([tokens.keys, tokens.gates], 1), memory, step, shared)


def keep_blocks(
    tokens: BlockTokens,
    memory: PoolMemory,
    step: Step,
    finish: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """See `Pointwise.keep_blocks`. `finish` norms and rotates a mean, by the position of its first token."""
    pool = memory.states.shape[1] + 1
    _keep(tokens.keys, memory, step, lambda kept, last: finish(kept.sum(0) / pool, last - (pool - 1)))


def _keep(
    added: torch.Tensor,
    memory: PoolMemory,
    step: Step,
    shared: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """`added`: by token, an entry of a state. `shared`: the key of a pool of entries, the last of which has this
    position."""
    rows, pool = step.states, memory.states.shape[1] + 1
    assert rows is not None
    before = [memory.states[slot].clone() for slot in rows.before.tolist()]
    for row, (begin, end) in enumerate(itertools.pairwise(rows.begins.tolist())):
        num_open = int(step.positions[begin]) % pool
        kept = before[row][:num_open] if rows.before[row] else before[row][:0]
        left = dict(rows.left_by(row))
        for token in range(begin, end):
            kept = torch.cat([kept, added[token][None]])
            if int(step.positions[token]) % pool == pool - 1:
                key = shared(kept, step.positions[token])
                memory.keys[int(step.slots[token]) // pool] = key.to(memory.keys.dtype)
                kept = kept[:0]
            if token + 1 in left:
                state = memory.states[left[token + 1]]
                state.zero_()
                state[: len(kept)] = kept

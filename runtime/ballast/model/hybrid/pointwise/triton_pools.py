"""Writes the keys of pools on a GPU."""

from __future__ import annotations

import torch

from ballast.model.hybrid.pointwise import pool_kernels
from ballast.model.hybrid.pointwise.pools import PooledTokens, PoolMemory
from ballast.model.hybrid.recurrent.triton_states import launch_for_rows
from ballast.model.hybrid.shared_kernels.power_of_two import padded
from ballast.model.hybrid.steps.step import Step


def keep_pools(tokens: PooledTokens, memory: PoolMemory, step: Step) -> None:
    """See `Pointwise.keep_pools`."""
    rows, keys, gates = step.states, tokens.keys, tokens.gates
    assert rows is not None, "steps of models with pools have states"
    pool, width = tokens.offset.shape
    pool_kernels.write_pools[(len(keys),)](
        *(keys, gates, tokens.offset, memory.states, step.positions, step.slots, rows.owners),
        *(rows.begins, rows.before, memory.keys),
        KEY=width,
        POOL=pool,
        PADDED_KEY=padded(width),
    )
    leave_states(keys, gates, memory, step)


def leave_states(keys: torch.Tensor, gates: torch.Tensor | None, memory: PoolMemory, step: Step) -> None:
    """Write the states of incomplete pools that a step's rows leave; `keys` and `gates`: [T, K] each."""
    rows, width = step.states, keys.shape[1]
    assert rows is not None, "steps of models with pools have states"
    sizes = {"PARTS": 1 if gates is None else 2, "KEY": width, "POOL": memory.states.shape[1] + 1}
    sizes["PADDED_KEY"] = padded(width)
    # Any pointer, if there are no gates.
    given = keys, keys if gates is None else gates, memory.states, step.positions
    launch_for_rows(pool_kernels.leave_pools, given, rows, sizes)

"""The memory behind the scheduler's block ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballast._core import sched
from ballast.config.options import KvTypeOption
from ballast.model.layers.plane import KvType, Plane, State


def kept_type(requested: KvTypeOption, *, on_gpu: bool) -> KvType:
    """The type of a cache for a value of `--kv_type`."""
    if requested != "auto":
        return requested
    return "fp16" if on_gpu else "fp32"


def num_kv_blocks(cache_lens: int, block_tokens: int) -> int:
    """The number of usable blocks for `cache_lens` tokens, rounded up."""
    return -(-cache_lens // block_tokens)


def num_window_blocks(
    window: int | None,
    num_blocks: int,
    block_tokens: int,
    max_batch_size: int,
    step_tokens: int,
    *,
    has_tiers: bool,
) -> int | None:
    """The number of usable blocks of planes of which a window is read; None where these are no fewer than
    `num_blocks`, so that nothing is gained. `step_tokens`: see `outstanding_tokens`; `has_tiers`: whether requests may
    fetch from tiers."""
    if window is None or window >= num_blocks * block_tokens:
        return None
    found = sched.num_window_blocks(
        window=window,
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        max_batch_size=max_batch_size,
        step_tokens=step_tokens,
        has_tiers=has_tiers,
    )
    return found if found < num_blocks else None


def outstanding_tokens(chunk_size: int, prefill_chunk_size: int, *, has_lanes: bool) -> int:
    """Maximum tokens of the steps that can be outstanding at the same time. `has_lanes`: whether long prompts may have
    steps of their own."""
    if not has_lanes:
        return max(chunk_size, prefill_chunk_size)
    return prefill_chunk_size + max(chunk_size, min(prefill_chunk_size, sched.MAX_IDLE_TOKENS))


_NUMBERS: dict[KvType, type[np.floating[Any]]] = {"fp32": np.float32, "fp16": np.float16}


class KvPool:
    """The planes of every layer on a CPU: rows of float32 or float16, one of each token.

    Slot s belongs to block s // block_tokens; block 0, the null block, comes on top of `num_blocks`. Pages are
    taken from the system when first written.
    """

    def __init__(
        self,
        planes: Sequence[Sequence[Plane]],
        num_blocks: int,
        block_tokens: int,
        num_window_blocks: int | None = None,
        kv_type: KvType = "fp32",
    ) -> None:
        """`planes`: of each layer. `kv_type`: fp32 or fp16. `num_window_blocks`: number of usable blocks of those of
        which a window is read; None: `num_blocks`."""
        num_slots = (num_blocks + 1) * block_tokens
        num_window_slots = num_slots if num_window_blocks is None else (num_window_blocks + 1) * block_tokens
        self.block_tokens = block_tokens
        self.has_window_blocks = [
            [plane.window is not None and num_window_blocks is not None for plane in of_layer] for of_layer in planes
        ]
        """Of each layer, by plane, whether its blocks are those of windows."""
        self.layers: list[list[NDArray[np.floating[Any]]]] = [  # of each, its planes [slots, width]
            [
                np.zeros((num_slots if plane.window is None else num_window_slots, plane.width), _NUMBERS[kv_type])
                for plane in of_layer
            ]
            for of_layer in planes
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        return sum(plane.nbytes for planes in self.layers for plane in planes)


HOST_SNAPSHOTS, GPU_SNAPSHOTS = 32, 6
"""Fewest snapshots of recurrent state by default. A conversation has up to three. In a GPU's memory, the conversation
of one user keeps its own while another request runs, such as one for a title; the tier in host memory keeps more."""


def num_state_slots(
    states: Sequence[Sequence[State]],
    capacity_tokens: int,
    max_batch_size: int,
    num_snapshots: int | None = None,
    *,
    on_gpu: bool,
) -> int:
    """The number of usable slots of recurrent state, for requests and for `num_snapshots`, by default the usual number
    for a cache of `capacity_tokens`; 0 for a model without such state. `states`: of each layer."""
    if not any(states):
        return 0
    return sched.num_state_slots(
        capacity_tokens=capacity_tokens,
        max_batch_size=max_batch_size,
        least_snapshots=GPU_SNAPSHOTS if on_gpu else HOST_SNAPSHOTS,
        num_snapshots=num_snapshots,
    )


class StatePool:
    """The recurrent states of every layer: rows of float32, one of each slot. Slot 0, which reads as zeros and keeps
    nothing, comes on top of `num_slots`. Pages are taken from the system when first written."""

    def __init__(self, states: Sequence[Sequence[State]], num_slots: int) -> None:
        """`states`: of each layer."""
        self.num_slots = num_slots
        self.layers: list[list[NDArray[np.float32]]] = [  # of each, its states [slots, numbers]
            [np.zeros((num_slots + 1, state.size), dtype=np.float32) for state in of_layer] for of_layer in states
        ]
        self.slot_bytes = sum(state[0].nbytes for of_layer in self.layers for state in of_layer)

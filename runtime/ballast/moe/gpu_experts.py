"""Chooses the routed experts that a GPU keeps in its memory. Pure.

The host keeps a copy too, except of layers that are whole on the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

GpuExperts = tuple[tuple[int, ...], ...]
"""Ascending ids of experts, by routed layer."""


def choose_gpu_experts(
    uses: NDArray[np.int64],
    expert_bytes: Sequence[int],
    *,
    capacity_bytes: int,
    most: int | None = None,
    always: Set[int] = frozenset(),
    never: Set[int] = frozenset(),
    spreads: bool = False,
) -> GpuExperts:
    """The experts with the most uses per byte, until `capacity_bytes` are full or `most` experts are chosen.

    `uses` [layers, E]: how often each expert was chosen. Among equals, the lowest layer is filled first, because a
    layer with all experts on the GPU does not need the CPU; if it `spreads`, all layers get the same number.
    `expert_bytes`: bytes of one expert, by layer. All experts of the layers in `always` are selected first, even beyond
    the capacity, and none of the layers in `never`."""
    num_layers, num_experts = uses.shape
    chosen = {(layer, expert) for layer in always for expert in range(num_experts)}
    left = capacity_bytes - sum(expert_bytes[layer] for layer, _ in chosen)
    others = [
        (layer, expert)
        for layer in range(num_layers)
        for expert in range(num_experts)
        if layer not in always and layer not in never
    ]

    def order(candidate: tuple[int, int]) -> tuple[float, tuple[int, int]]:
        return -uses[candidate] / expert_bytes[candidate[0]], candidate[::-1] if spreads else candidate

    others.sort(key=order)
    for candidate in others:
        if most is not None and len(chosen) >= most:
            break
        size = expert_bytes[candidate[0]]
        if size <= left:
            chosen.add(candidate)
            left -= size
    return tuple(
        tuple(expert for expert in range(num_experts) if (layer, expert) in chosen) for layer in range(num_layers)
    )

"""Which routed experts lie in a GPU's memory, besides the host's where that is not all of a layer's. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

Residents = tuple[tuple[int, ...], ...]
"""By routed layer, ascending ids."""


def choose_residents(
    uses: NDArray[np.int64],
    expert_bytes: Sequence[int],
    *,
    room_bytes: int,
    most: int | None = None,
    always: Set[int] = frozenset(),
    never: Set[int] = frozenset(),
) -> Residents:
    """The experts that are used most for the bytes they take, until `room_bytes` are full or `most` experts chosen.

    `uses` [layers, E]: how often each was chosen. Of equal ones the lower layer is filled first: a layer that is whole
    hands nothing to the CPU. `expert_bytes`: of one expert, by layer. All experts of the layers `always` are taken
    first, whatever the room; none of the layers `never`.
    """
    num_layers, num_experts = uses.shape
    chosen = {(layer, expert) for layer in always for expert in range(num_experts)}
    left = room_bytes - sum(expert_bytes[layer] for layer, _ in chosen)
    others = [
        (layer, expert)
        for layer in range(num_layers)
        for expert in range(num_experts)
        if layer not in always and layer not in never
    ]
    others.sort(key=lambda place: (-uses[place] / expert_bytes[place[0]], place))
    for place in others:
        if most is not None and len(chosen) >= most:
            break
        size = expert_bytes[place[0]]
        if size <= left:
            chosen.add(place)
            left -= size
    return tuple(
        tuple(expert for expert in range(num_experts) if (layer, expert) in chosen) for layer in range(num_layers)
    )

"""Decides which experts in a GPU's memory are replaced by others that are used more. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CERTAINTY = 4.0
"""Standard deviations by which the heat of two experts must differ. Random routing that prefers no expert reaches
about 3.7 between the extremes of a layer, and must not move experts."""

MAX_OF_LAYER = 8
"""Maximum moves of a layer in one decision."""


@dataclass(frozen=True, slots=True)
class Move:
    """Replaces the expert in a slot of a layer."""

    layer: int
    slot: int
    evicted: int
    admitted: int


def choose_moves(heat: NDArray[np.float64], slots: NDArray[np.int32], most: int) -> list[Move]:
    """At most `most` moves, and MAX_OF_LAYER of each layer, the largest gain first. A move's gain is the difference in
    heat.

    `heat` [layers, E]; `slots` [layers, E]: the slot of each expert, -1 for experts that are not in the GPU's memory.
    In each layer, the hottest expert outside replaces the coldest one inside, the second hottest the second coldest and
    so on, as long as their heat differs by more than chance explains. So all moves are of different experts and slots,
    and a layer without slots, or with all experts, has none."""
    num_pairs = min(most, MAX_OF_LAYER, slots.shape[1])
    if num_pairs == 0 or slots.shape[0] == 0:
        return []
    is_inside = slots >= 0
    coldest = _least(np.where(is_inside, heat, np.inf), num_pairs)
    hottest = _least(np.where(is_inside, np.inf, -heat), num_pairs)
    is_pair = np.take_along_axis(is_inside, coldest, 1) & ~np.take_along_axis(is_inside, hottest, 1)
    cold, hot = np.take_along_axis(heat, coldest, 1), np.take_along_axis(heat, hottest, 1)
    gain = hot - cold
    layers, places = np.nonzero(is_pair & (gain > CERTAINTY * np.sqrt(hot + cold + 1.0)))
    order = np.argsort(-gain[layers, places], kind="stable")[:most]
    moves = []
    for layer, place in zip(layers[order].tolist(), places[order].tolist(), strict=True):
        evicted, admitted = int(coldest[layer, place]), int(hottest[layer, place])
        moves.append(Move(layer, int(slots[layer, evicted]), evicted, admitted))
    return moves


def _least(values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """[layers, count]: the places of the least values of each row, ascending by value."""
    places = np.argpartition(values, count - 1, axis=1)[:, :count]
    order = np.argsort(np.take_along_axis(values, places, 1), axis=1, kind="stable")
    found: NDArray[np.int64] = np.take_along_axis(places, order, 1)
    return found

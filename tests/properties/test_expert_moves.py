"""Which experts in a GPU's memory are replaced: never more than slots, never one that is already moving, towards those
that are used, and nothing without a preference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ballast.moe.expert_heat import LIFE_TOKENS, ExpertHeat, heat_of_uses
from ballast.moe.expert_moves import choose_moves


def first_slots(num_layers: int, num_experts: int, num_slots: int) -> NDArray[np.int32]:
    """Slots in which the first experts of each layer are."""
    slots = np.full((num_layers, num_experts), -1, np.int32)
    slots[:, :num_slots] = np.arange(num_slots)
    return slots


def apply(slots: NDArray[np.int32], heat: NDArray[np.float64], most: int) -> int:
    moves = choose_moves(heat, slots, most)
    for move in moves:
        slots[move.layer, move.evicted], slots[move.layer, move.admitted] = -1, move.slot
    return len(moves)


def routed(rng: np.random.Generator, weights: NDArray[np.float64], num_used: int, num_tokens: int) -> NDArray[np.int64]:
    """Uses [layers, E] of tokens that select experts in proportion to `weights` [layers, E]."""
    keys = np.log(weights) + rng.gumbel(size=(num_tokens, *weights.shape))
    chosen = np.argpartition(-keys, num_used, axis=2)[:, :, :num_used]
    num_layers, num_experts = weights.shape
    return np.stack([np.bincount(chosen[:, layer].ravel(), minlength=num_experts) for layer in range(num_layers)])


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 12), st.integers(0, 20))
def test_moves_are_of_different_experts_and_slots(seed: int, num_slots: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    slots, heat = first_slots(3, 12, num_slots), rng.exponential(200, (3, 12))
    slots = rng.permuted(slots, axis=1)
    moves = choose_moves(heat, slots, most)
    assert len(moves) <= most
    assert len({(move.layer, move.slot) for move in moves}) == len(moves)
    assert len({(move.layer, move.admitted) for move in moves}) == len(moves)
    for move in moves:
        assert slots[move.layer, move.evicted] == move.slot >= 0
        assert slots[move.layer, move.admitted] == -1
        assert heat[move.layer, move.admitted] > heat[move.layer, move.evicted]
    gains = [heat[move.layer, move.admitted] - heat[move.layer, move.evicted] for move in moves]
    assert gains == sorted(gains, reverse=True)
    apply(slots, heat, most)
    assert [sorted(row[row >= 0]) for row in slots] == [list(range(num_slots))] * 3


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 11))
def test_repeated_decisions_reach_the_experts_used_most_and_then_stop(seed: int, num_slots: int) -> None:
    rng = np.random.default_rng(seed)
    heat = rng.permuted(np.tile(np.arange(12) * 1000.0, (4, 1)), axis=1)
    slots = first_slots(4, 12, num_slots)
    decisions = 0
    while apply(slots, heat, 5):
        decisions += 1
        assert decisions <= 12
    inside = [sorted(row[own >= 0].tolist()) for row, own in zip(heat, slots, strict=True)]
    assert inside == [(np.arange(12)[-num_slots:] * 1000.0).tolist()] * 4


@pytest.mark.parametrize(("num_experts", "num_used", "num_slots"), [(128, 8, 48), (256, 8, 16), (512, 10, 64)])
def test_routing_without_preference_moves_hardly_anything(num_experts: int, num_used: int, num_slots: int) -> None:
    rng, slots = np.random.default_rng(0), first_slots(4, num_experts, num_slots)
    heat = ExpertHeat(np.zeros(slots.shape), num_used)
    num_moves = 0
    for _ in range(150):
        heat.add(routed(rng, np.ones(slots.shape), num_used, 16))
        num_moves += apply(slots, heat.values, 64)
    assert num_moves <= 4, "of 2400 tokens"


def test_skewed_routing_is_followed_when_it_changes() -> None:
    rng, slots, hits = np.random.default_rng(1), first_slots(4, 128, 32), []
    heat = ExpertHeat(np.zeros(slots.shape), 8)
    zipf = np.tile(1.0 / np.arange(1, 129), (4, 1))
    for _ in range(2):
        weights = rng.permuted(zipf, axis=1)
        for _ in range(200):
            uses = routed(rng, weights, 8, 16)
            hits.append(uses[slots >= 0].sum() / uses.sum())
            heat.add(uses)
            apply(slots, heat.values, 16)
    before, changed, after = np.mean(hits[180:200]), np.mean(hits[200:203]), np.mean(hits[380:])
    assert changed < 0.35 < 0.6 < min(before, after)


def test_heat_counts_uses_and_forgets_them_after_its_life() -> None:
    heat = ExpertHeat(np.zeros((2, 4)), 2)
    heat.add(np.array([[3, 1, 0, 0], [0, 0, 0, 0]]))
    assert heat.values.tolist() == [[3, 1, 0, 0], [0, 0, 0, 0]]
    heat.add(np.array([[0, 0, LIFE_TOKENS, LIFE_TOKENS], [0, 0, 0, 1]]))
    np.testing.assert_allclose(heat.values[0], [3 / np.e, 1 / np.e, LIFE_TOKENS, LIFE_TOKENS])
    assert heat.values[1].tolist() == [0, 0, 0, 1]


def test_uses_of_a_profile_become_the_heat_of_a_long_time() -> None:
    uses = np.array([[4000, 0, 2000, 2000], [3, 5, 0, 0]]) * 10
    heat = heat_of_uses(uses, 2)
    np.testing.assert_allclose(heat[0], np.array([1.0, 0, 0.5, 0.5]) * LIFE_TOKENS)
    assert heat[1].tolist() == uses[1].tolist()

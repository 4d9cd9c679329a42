"""The gated delta rule and the short convolution against plain arithmetic, and in any division into steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.model.batch import States
from devkit.kernels.isas import FAST_ISAS, isa_params

Floats = NDArray[np.float32]

ISAS = isa_params(*FAST_ISAS, "reference")
NUM_SLOTS = 12


class Sizes(NamedTuple):
    """Of the delta rule."""

    num_heads: int
    num_key_heads: int
    key_width: int
    value_width: int
    heads_alternate: bool
    decays_rows: bool = False
    """Whether each row of a state has a decay, else each head."""


SIZES = [
    *(Sizes(6, 2, 64, 32, False), Sizes(6, 2, 64, 32, True), Sizes(2, 2, 128, 128, False), Sizes(1, 1, 4, 96, True)),
    *(Sizes(3, 3, 64, 64, False, decays_rows=True), Sizes(4, 2, 4, 32, True, decays_rows=True)),
]


class Inputs(NamedTuple):
    """Of the delta rule, by token."""

    queries: Floats
    keys: Floats
    values: Floats
    decays: Floats
    betas: Floats


class Row(NamedTuple):
    """One sequence's tokens of a step, and its slots."""

    tokens: range
    slot_in: int
    slot_out: int
    saves: tuple[tuple[int, int], ...] = ()
    """(tokens before it, slot)"""


def inputs_of(sizes: Sizes, num_tokens: int, seed: int = 0) -> Inputs:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Floats:
        return rng.standard_normal((num_tokens, *shape), np.float32)

    keys = normal(sizes.num_key_heads, sizes.key_width)
    decayed = (sizes.num_heads, sizes.key_width) if sizes.decays_rows else (sizes.num_heads,)
    return Inputs(
        normal(sizes.num_key_heads, sizes.key_width) * np.float32(0.1),
        keys / np.linalg.norm(keys, axis=-1, keepdims=True),
        normal(sizes.num_heads, sizes.value_width),
        rng.uniform(0.2, 1.0, (num_tokens, *decayed)).astype(np.float32),
        rng.uniform(0.0, 1.0, (num_tokens, sizes.num_heads)).astype(np.float32),
    )


def slots_of(rows: list[Row]) -> States:
    def array(numbers: Iterator[int]) -> NDArray[np.int32]:
        return np.fromiter(numbers, np.int32)

    return (
        array(row.slot_in for row in rows),
        array(row.slot_out for row in rows),
        array(iter(np.cumsum([0, *(len(row.saves) for row in rows)]))),
        array(end for row in rows for end, _ in row.saves),
        array(slot for row in rows for _, slot in row.saves),
    )


def indptr_of(rows: list[Row]) -> NDArray[np.int32]:
    return np.cumsum([0, *(len(row.tokens) for row in rows)]).astype(np.int32)


def run(sizes: Sizes, inputs: Inputs, rows: list[Row], states: Floats, isa: str, num_threads: int = 1) -> Floats:
    """The tokens of all rows, in their order; replaces the states."""
    taken = Inputs(*(np.concatenate([each[row.tokens] for row in rows]) for each in inputs))
    out = np.full_like(taken.values, np.nan)
    kernels.delta_rule(
        kernels.ThreadPool(num_threads),
        **taken._asdict(),
        token_indptr=indptr_of(rows),
        slots=slots_of(rows),
        states=states,
        out=out,
        heads_alternate=sizes.heads_alternate,
        isa=isa,
    )
    return out


def empty_states(sizes: Sizes) -> Floats:
    return np.full((NUM_SLOTS, sizes.num_heads, sizes.key_width, sizes.value_width), np.nan, np.float32)


def expected(sizes: Sizes, inputs: Inputs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What each token gives, and the state after it, in double precision."""
    ratio = sizes.num_heads // sizes.num_key_heads
    heads = np.arange(sizes.num_heads)
    key_heads = heads % sizes.num_key_heads if sizes.heads_alternate else heads // ratio
    state = np.zeros((sizes.num_heads, sizes.key_width, sizes.value_width))
    outs, states = [], []
    for query, key, value, decay, beta in zip(*(each.astype(np.float64) for each in inputs), strict=True):
        key, query = key[key_heads], query[key_heads]
        state = state * decay.reshape(sizes.num_heads, -1, 1)
        change = (value - np.einsum("hk,hkv->hv", key, state)) * beta[:, None]
        state = state + key[:, :, None] * change[:, None, :]
        outs.append(np.einsum("hk,hkv->hv", query, state))
        states.append(state)
    return np.stack(outs), np.stack(states)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_delta_rule_is_what_it_says(sizes: Sizes, isa: str):
    inputs, states = inputs_of(sizes, 150), empty_states(sizes)
    out = run(sizes, inputs, [Row(range(150), 0, 3, ((7, 5), (64, 6)))], states, isa)
    outs, all_states = expected(sizes, inputs)
    np.testing.assert_allclose(out, outs, rtol=1e-4, atol=2e-6)
    for slot, num_tokens in ((3, 150), (5, 7), (6, 64)):
        np.testing.assert_allclose(states[slot], all_states[num_tokens - 1], rtol=1e-4, atol=1e-5)
    assert np.isnan(states[[slot for slot in range(NUM_SLOTS) if slot not in (3, 5, 6)]]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sizes", SIZES)
def test_a_token_does_not_depend_on_steps_rows_and_threads(sizes: Sizes, isa: str):
    inputs = inputs_of(sizes, 160)
    whole = empty_states(sizes)
    alone = run(sizes, inputs, [Row(range(160), 0, 1, ((73, 9), (109, 10)))], whole, isa)
    states, first = empty_states(sizes), [Row(range(20), 0, 2, ((1, 4), (9, 5))), Row(range(160), 0, 3)]
    begun = run(sizes, inputs, first, states, isa, num_threads=2)
    np.testing.assert_array_equal(begun, np.concatenate([alone[:20], alone]))
    # From the state after the step, in place; and from a state that it left on its way, which stays.
    saved = Row(range(9, 160), 5, 7, ((21, 8), (64, 9), (100, 10)))
    second = [Row(range(20, 160), 2, 2), Row(range(9, 30), 5, 6), saved]
    kept = states[5].copy()
    resumed = run(sizes, inputs, second, states, isa, num_threads=3)
    np.testing.assert_array_equal(resumed, np.concatenate([alone[20:], alone[9:30], alone[9:]]))
    np.testing.assert_array_equal(states[5], kept)
    for slot in (2, 3, 7):
        np.testing.assert_array_equal(states[slot], whole[1])
    np.testing.assert_array_equal(states[6], states[8])
    np.testing.assert_array_equal(states[9:11], whole[9:11])
    one_by_one = empty_states(sizes)
    for token in range(160):
        slot_in = 0 if token == 0 else 1 + (token - 1) % 2
        out = run(sizes, inputs, [Row(range(token, token + 1), slot_in, 1 + token % 2)], one_by_one, isa)
        np.testing.assert_array_equal(out[0], alone[token])


@pytest.mark.parametrize("isa", ISAS)
def test_without_slots_rows_begin_at_zeros_and_leave_nothing(isa: str):
    sizes = SIZES[0]
    inputs, states = inputs_of(sizes, 150), empty_states(sizes)
    out = np.empty_like(inputs.values)
    kernels.delta_rule(
        kernels.ThreadPool(1),
        **inputs._asdict(),
        token_indptr=np.array([0, 150], np.int32),
        states=states,
        out=out,
        heads_alternate=False,
        isa=isa,
    )
    np.testing.assert_array_equal(out, run(sizes, inputs, [Row(range(150), 0, 1)], empty_states(sizes), isa))
    assert np.isnan(states).all()


def convolve(x: Floats, weights: Floats, rows: list[Row], states: Floats, isa: str) -> Floats:
    taken = np.concatenate([x[row.tokens] for row in rows])
    out = np.full_like(taken, np.nan)
    kernels.short_conv(
        kernels.ThreadPool(2),
        x=taken,
        weights=weights,
        token_indptr=indptr_of(rows),
        slots=slots_of(rows),
        states=states,
        out=out,
        isa=isa,
    )
    return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("taps", [2, 4])
@pytest.mark.parametrize("channels", [8, 1080])
def test_the_convolution_sees_the_last_tokens(channels: int, taps: int, isa: str):
    rng = np.random.default_rng(1)
    x, weights = rng.standard_normal((40, channels), np.float32), rng.standard_normal((taps, channels), np.float32)
    before = np.concatenate([np.zeros((taps - 1, channels)), x.astype(np.float64)])
    sums = sum(before[tap : tap + 40] * weights[tap] for tap in range(taps))
    states = np.full((NUM_SLOTS, taps - 1, channels), np.nan, np.float32)
    whole = convolve(x, weights, [Row(range(40), 0, 1, ((1, 2), (17, 3)))], states, isa)
    np.testing.assert_allclose(whole, sums / (1 + np.exp(-sums)), rtol=1e-4, atol=1e-5)
    for slot, num_tokens in ((1, 40), (2, 1), (3, 17)):
        np.testing.assert_array_equal(states[slot], before[num_tokens : num_tokens + taps - 1].astype(np.float32))
    # In steps of one and more tokens, in place and from states that stay.
    rows = [Row(range(17, 40), 3, 4), Row(range(1, 2), 2, 2), Row(range(17, 19), 3, 5)]
    resumed = convolve(x, weights, rows, states, isa)
    np.testing.assert_array_equal(resumed, np.concatenate([whole[17:], whole[1:2], whole[17:19]]))
    np.testing.assert_array_equal(states[4], states[1])
    resumed = convolve(x, weights, [Row(range(2, 40), 2, 2)], states, isa)
    np.testing.assert_array_equal(resumed, whole[2:])


def test_rows_that_do_not_fit_are_rejected():
    sizes = SIZES[0]
    inputs = inputs_of(sizes, 4)
    for rows, problem in (
        ([Row(range(4), 0, NUM_SLOTS)], "expected 0 to 11"),
        ([Row(range(4), -1, 1)], "state slot -1"),
        ([Row(range(4), 0, 1, ((5, 2),))], "after 5 tokens"),
        ([Row(range(4), 0, 1, ((3, 2), (2, 3)))], "ascending"),
    ):
        with pytest.raises(IndexError, match=problem):
            run(sizes, inputs, rows, empty_states(sizes), "reference")
    with pytest.raises(ValueError, match="equal groups"):
        run(
            sizes, inputs._replace(values=inputs.values[:, :5]), [Row(range(4), 0, 1)], empty_states(sizes), "reference"
        )

"""Paged latent attention against softmax in NumPy float64, with sequences scattered over the cache."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast._core import kernels
from devkit.kernels.isas import FAST_ISAS, isa_params


@dataclass
class Paged:
    """Sequences of given lengths whose last `num_queries` positions are asked, in scattered blocks of a full cache."""

    cache: NDArray[np.float32]  # [slots, L]; unused blocks hold NaN, so that a read of them shows
    rows: list[NDArray[np.float64]]  # per sequence [length, L]
    query_indptr: NDArray[np.int32]
    positions: NDArray[np.int32]
    kv_indptr: NDArray[np.int32]
    kv_indices: NDArray[np.int32]
    block_tokens: int

    @property
    def num_tokens(self) -> int:
        return int(self.query_indptr[-1])


def paged(rng, lengths, num_queries, width, block_tokens) -> Paged:
    num_blocks = [-(-length // block_tokens) for length in lengths]
    total = sum(num_blocks) + 3
    ids = rng.permutation(total)[: sum(num_blocks)].astype(np.int32)
    cache = np.full((total * block_tokens, width), np.nan, np.float32)
    rows, start = [], 0
    for length, blocks in zip(lengths, num_blocks, strict=True):
        sequence = rng.standard_normal((length, width), dtype=np.float32)
        for position in range(length):
            block = ids[start + position // block_tokens]
            cache[block * block_tokens + position % block_tokens] = sequence[position]
        rows.append(sequence.astype(np.float64))
        start += blocks
    positions = [np.arange(n - q, n) for n, q in zip(lengths, num_queries, strict=True)]
    return Paged(
        cache=cache,
        rows=rows,
        query_indptr=np.cumsum([0, *num_queries]).astype(np.int32),
        positions=np.concatenate([np.empty(0), *positions]).astype(np.int32),
        kv_indptr=np.cumsum([0, *num_blocks]).astype(np.int32),
        kv_indices=ids,
        block_tokens=block_tokens,
    )


@pytest.fixture(params=isa_params(*FAST_ISAS, "reference"))
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


def attend(pool, query, p: Paged, value_dim, scale, isa):
    out = np.full((query.shape[0], query.shape[1], value_dim), np.nan, np.float32)
    tables = (p.query_indptr, p.positions, p.kv_indptr, p.kv_indices)
    kernels.mla_attention(pool, query, p.cache, p.block_tokens, *tables, value_dim, scale, out, isa=isa)
    return out


def reference(query, p: Paged, value_dim, scale):
    out = np.empty((query.shape[0], query.shape[1], value_dim))
    for request, rows in enumerate(p.rows):
        for token in range(p.query_indptr[request], p.query_indptr[request + 1]):
            seen = rows[: p.positions[token] + 1]
            scores = query[token].astype(np.float64) @ seen.T * scale
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[token] = weights / weights.sum(axis=1, keepdims=True) @ seen[:, :value_dim]
    return out


# Scores below 10 in float32 err by about 1e-6 each, and so do the weights relatively; values are below 5.
TOLERANCE = {"rtol": 0, "atol": 2e-5}


@pytest.mark.parametrize("heads", [1, 3, 4, 5, 16])
@pytest.mark.parametrize("block_tokens", [1, 16, 32])
@pytest.mark.parametrize(
    ("lengths", "num_queries"),
    [([1], [1]), ([2, 33, 64, 65], [1, 1, 1, 1]), ([17], [17]), ([100, 3], [64, 0]), ([70, 1, 40], [3, 1, 15])],
    ids=["first token", "decode", "prefill", "chunk and idle", "mixed"],
)
def test_each_token_attends_to_its_own_past(rng, pool, isa, heads, block_tokens, lengths, num_queries):
    p = paged(rng, lengths, num_queries, 45, block_tokens)
    query = rng.standard_normal((p.num_tokens, heads, 45), dtype=np.float32)

    out = attend(pool, query, p, 37, 0.3, isa)

    np.testing.assert_allclose(out, reference(query, p, 37, 0.3), **TOLERANCE)


def test_the_true_latent_sizes(rng, pool, isa):
    p = paged(rng, [131, 5], [2, 5], 576, 16)
    query = rng.standard_normal((7, 16, 576), dtype=np.float32)

    out = attend(pool, query, p, 512, 576**-0.5, isa)

    np.testing.assert_allclose(out, reference(query, p, 512, 576**-0.5), **TOLERANCE)


def test_scores_far_beyond_exp_do_not_overflow(rng, pool, isa):
    p = paged(rng, [90], [1], 16, 16)
    query = 100 * rng.standard_normal((1, 2, 16), dtype=np.float32)

    out = attend(pool, query, p, 16, 1.0, isa)

    # Scores near 1000 err by about 1e-4, and with them the weights.
    np.testing.assert_allclose(out, reference(query, p, 16, 1.0), rtol=0, atol=2e-3)


def test_no_tokens_is_no_work(rng, pool, isa):
    p = paged(rng, [], [], 8, 16)
    assert attend(pool, np.empty((0, 4, 8), np.float32), p, 8, 1.0, isa).shape == (0, 4, 8)


@pytest.mark.parametrize(("width", "value_dim"), [(1, 1), (2, 1), (5, 5), (13, 12), (49, 47)])
@pytest.mark.parametrize("heads", [1, 7, 17, 63, 65])
def test_odd_widths_and_heads(rng, pool, isa, width, value_dim, heads):
    p = paged(rng, [50, 3], [3, 2], width, 16)
    query = rng.standard_normal((5, heads, width), dtype=np.float32)

    out = attend(pool, query, p, value_dim, 0.5, isa)

    np.testing.assert_allclose(out, reference(query, p, value_dim, 0.5), **TOLERANCE)


@pytest.mark.parametrize("num_threads", [1, 2, 16])
@pytest.mark.parametrize(
    ("lengths", "num_queries"),
    [([1500], [1]), ([192, 193, 383, 385], [1, 1, 2, 3]), ([700], [300]), ([1] * 40, [1] * 40)],
    ids=["one long", "at the borders of stretches", "prefill", "many short"],
)
def test_long_contexts_on_any_number_of_threads(rng, isa, num_threads, lengths, num_queries):
    p = paged(rng, lengths, num_queries, 24, 32)
    query = rng.standard_normal((p.num_tokens, 5, 24), dtype=np.float32)

    out = attend(kernels.ThreadPool(num_threads), query, p, 20, 0.3, isa)

    np.testing.assert_allclose(out, reference(query, p, 20, 0.3), **TOLERANCE)


def test_a_weight_too_small_for_float32_becomes_zero(rng, pool, isa):
    """Exponentials of -87 and less count as zero, in every SIMD lane."""
    p = paged(rng, [100], [1], 4, 16)
    p.cache[np.isfinite(p.cache[:, 0])] = 0
    first, last = (p.kv_indices[at // 16] * 16 + at % 16 for at in (0, 99))
    p.cache[first], p.cache[last] = [0, 1, 1, 1], [0, 3, 3, 3]
    query = np.ones((1, 9, 4), np.float32) * np.array([1, 40, 40, 40], np.float32)

    out = attend(pool, query, p, 4, 1.0, isa)

    np.testing.assert_array_equal(out, np.broadcast_to(np.array([0, 3, 3, 3], np.float32), (1, 9, 4)))


def test_a_nan_in_a_query_affects_only_its_row(rng, pool, isa):
    p = paged(rng, [60], [2], 8, 16)
    query = rng.standard_normal((2, 3, 8), dtype=np.float32)
    clean = attend(pool, query, p, 8, 1.0, isa)
    query[1, 2, 3] = np.nan

    out = attend(pool, query, p, 8, 1.0, isa)

    assert np.all(np.isnan(out[1, 2]))
    out[1, 2] = clean[1, 2]
    np.testing.assert_array_equal(out, clean)


def test_states_beyond_their_capacity_are_attended_to_in_turns(rng):
    """63 groups of 65 stretches hold 269 MB between them; a pool of one thread divides no group."""
    num_tokens, heads, width, value_dim, length = 126, 16, 520, 512, 65 * 192
    sizes = {
        "num_heads": heads,
        "num_kv_heads": 1,
        "value_dim": value_dim,
        "num_tokens": num_tokens,
        "num_positions": length,
    }
    assert kernels.attention_states_nbytes(**sizes, num_threads=16) == 256 << 20
    query = rng.standard_normal((num_tokens, heads, width), dtype=np.float32)
    cache = rng.standard_normal((length, width), dtype=np.float32)
    positions = np.arange(length - num_tokens, length, dtype=np.int32)
    tables = (np.array([0, num_tokens], np.int32), positions, np.array([0, 1], np.int32), np.zeros(1, np.int32))
    found = []
    for num_threads in (1, 16):
        out = np.empty((num_tokens, heads, value_dim), np.float32)
        pool, isa = kernels.ThreadPool(num_threads), kernels.usable_isas()[0]
        kernels.mla_attention(pool, query, cache, length, *tables, value_dim, 0.05, out, isa=isa)
        found.append(out.tobytes())
    assert found[0] == found[1]


def test_the_capacity_for_states_follows_from_the_longest_sequence():
    one_token_of_r1 = {"num_heads": 128, "num_kv_heads": 1, "value_dim": 512, "num_tokens": 1, "num_threads": 16}
    state_bytes = 32 * (512 + 2) * 4
    assert kernels.attention_states_nbytes(**one_token_of_r1, num_positions=32768) == 4 * 171 * state_bytes
    assert kernels.attention_states_nbytes(**one_token_of_r1, num_positions=1 << 22) == 21846 * state_bytes

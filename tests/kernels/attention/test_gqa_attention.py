"""Paged attention over keys and values of several heads against softmax in NumPy float64, with sequences scattered over
the cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast._core import kernels
from devkit.kernels.isas import FAST_ISAS, isa_params

BLOCK_TOKENS = 16
KEY, VALUE = 20, 12
TOLERANCE = {"rtol": 0, "atol": 2e-5}  # as latent attention's: scores below 10, values below 5


@dataclass
class Cache:
    """Sequences in scattered blocks. Unused blocks hold NaN, so that a read of them shows."""

    keys: NDArray[np.float32]  # [slots, kv heads, KEY]
    values: NDArray[np.float32]  # [slots, kv heads, VALUE]
    slots: list[NDArray[np.intp]]  # of each sequence's positions
    tables: tuple[NDArray[np.int32], ...]  # query_indptr, positions, kv_indptr, kv_indices


def cache_of(rng: np.random.Generator, lengths: list[int], num_queries: list[int], kv_heads: int) -> Cache:
    num_blocks = [-(-length // BLOCK_TOKENS) for length in lengths]
    total = sum(num_blocks) + 3
    ids = rng.permutation(total)[: sum(num_blocks)].astype(np.int32)
    keys = np.full((total * BLOCK_TOKENS, kv_heads, KEY), np.nan, np.float32)
    values = np.full((total * BLOCK_TOKENS, kv_heads, VALUE), np.nan, np.float32)
    begins = np.cumsum([0, *num_blocks])
    slots = []
    for length, begin in zip(lengths, begins, strict=False):
        position = np.arange(length)
        slots.append(ids[begin + position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS)
        keys[slots[-1]] = rng.standard_normal((length, kv_heads, KEY))
        values[slots[-1]] = rng.standard_normal((length, kv_heads, VALUE))
    positions = [np.arange(n - q, n) for n, q in zip(lengths, num_queries, strict=True)]
    tables = (np.cumsum([0, *num_queries]), np.concatenate(positions), begins, ids)
    return Cache(keys, values, slots, tuple(table.astype(np.int32) for table in tables))


def attend(
    pool: kernels.ThreadPool,
    query: NDArray[np.float32],
    cache: Cache,
    scale: float,
    isa: str,
    window: int = 0,
    sinks: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    out = np.full((*query.shape[:2], VALUE), np.nan, np.float32)
    tables, more = cache.tables, {"isa": isa, "window": window, "sinks": sinks}
    kernels.gqa_attention(pool, query, cache.keys, cache.values, BLOCK_TOKENS, *tables, scale, out, **more)
    return out


def reference(
    query: NDArray[np.float32],
    cache: Cache,
    scale: float,
    window: int = 0,
    sinks: NDArray[np.float32] | None = None,
) -> NDArray[np.float64]:
    out = np.empty((*query.shape[:2], VALUE))
    group = query.shape[1] // cache.keys.shape[1]
    query_indptr, positions = cache.tables[:2]
    for request, slots in enumerate(cache.slots):
        for token in range(query_indptr[request], query_indptr[request + 1]):
            seen = slots[: positions[token] + 1][-window:]
            for head in range(query.shape[1]):
                scores = cache.keys[seen, head // group].astype(np.float64) @ query[token, head] * scale
                weights = np.exp(scores - scores.max())
                sink = 0.0 if sinks is None else np.exp(sinks[head] - scores.max())
                out[token, head] = weights / (weights.sum() + sink) @ cache.values[seen, head // group]
    return out


@pytest.fixture(params=isa_params(*FAST_ISAS, "reference"))
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (6, 2), (8, 1), (5, 5), (40, 2)])
@pytest.mark.parametrize(
    ("lengths", "num_queries"),
    [([1], [1]), ([2, 33, 200, 65], [1, 1, 1, 1]), ([17], [17]), ([100, 3], [64, 0]), ([70, 1, 40], [3, 1, 15])],
    ids=["first token", "decode", "prefill", "chunk and idle", "mixed"],
)
def test_each_head_attends_to_the_keys_of_its_group(rng, pool, isa, heads, kv_heads, lengths, num_queries):
    cache = cache_of(rng, lengths, num_queries, kv_heads)
    query = rng.standard_normal((sum(num_queries), heads, KEY), dtype=np.float32)

    out = attend(pool, query, cache, 0.3, isa)

    np.testing.assert_allclose(out, reference(query, cache, 0.3), **TOLERANCE)


@pytest.mark.parametrize("window", [1, 7, 48, 128, 200, 1000])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (5, 5), (40, 2)])
def test_with_a_window_a_token_attends_only_to_the_last_positions(rng, pool, isa, heads, kv_heads, window):
    cache = cache_of(rng, [700, 1, 450, 33], [90, 1, 1, 33], kv_heads)
    query = rng.standard_normal((125, heads, KEY), dtype=np.float32)

    out = attend(pool, query, cache, 0.3, isa, window)

    np.testing.assert_allclose(out, reference(query, cache, 0.3, window), **TOLERANCE)


@pytest.mark.parametrize("window", [0, 20])
def test_a_sink_takes_its_fraction_of_a_heads_weights(rng, pool, isa, window):
    cache = cache_of(rng, [300, 2, 60], [5, 2, 1], 2)
    query = rng.standard_normal((8, 6, KEY), dtype=np.float32)
    sinks = np.array([-1e4, -2.0, 0.0, 2.0, 8.0, 1e4], np.float32)

    out = attend(pool, query, cache, 0.3, isa, window, sinks)

    np.testing.assert_allclose(out, reference(query, cache, 0.3, window, np.minimum(sinks, 500)), **TOLERANCE)
    np.testing.assert_array_equal(out[:, 5], 0.0)


@pytest.mark.parametrize("window", [0, 100])
def test_a_row_is_bitwise_independent_of_the_batch(rng, isa, window):
    cache = cache_of(rng, [300, 40], [30, 4], 2)
    query = rng.standard_normal((34, 6, KEY), dtype=np.float32)
    whole = attend(kernels.ThreadPool(3), query, cache, 0.3, isa, window)
    for token in (0, 13, 29, 33):
        request = int(token >= 30)
        _, positions, kv_indptr, kv_indices = cache.tables
        begin, end = kv_indptr[request : request + 2]
        tables = (np.array([0, 1]), positions[[token]], np.array([0, end - begin]), kv_indices[begin:end])
        alone = Cache(cache.keys, cache.values, [], tuple(table.astype(np.int32) for table in tables))
        found = attend(kernels.ThreadPool(1), query[[token]], alone, 0.3, isa, window)
        np.testing.assert_array_equal(found[0], whole[token])


def test_heads_that_make_no_equal_groups_are_refused(rng, pool):
    cache = cache_of(rng, [4], [1], 2)
    query = rng.standard_normal((1, 5, KEY), dtype=np.float32)
    with pytest.raises(ValueError, match="keys have 2 heads; expected a part of query's 5"):
        attend(pool, query, cache, 0.3, "reference")


def test_senseless_windows_and_sinks_are_refused(rng, pool):
    cache = cache_of(rng, [4], [1], 2)
    query = rng.standard_normal((1, 4, KEY), dtype=np.float32)
    with pytest.raises(ValueError, match="window is -1; expected 0 or more"):
        attend(pool, query, cache, 0.3, "reference", -1)
    with pytest.raises(ValueError, match=r"sinks is float32 \[3\]; expected float32 \[H = 4\]"):
        attend(pool, query, cache, 0.3, "reference", 0, np.zeros(3, np.float32))

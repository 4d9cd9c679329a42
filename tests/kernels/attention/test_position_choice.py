"""What an indexer chooses, against sums and sorting in NumPy; and attention to what was chosen."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast._core import kernels
from devkit.kernels.isas import FAST_ISAS, isa_params
from kernels.attention.test_attention import TOLERANCE, Paged, paged

WIDTH = 24


@pytest.fixture(params=isa_params(*FAST_ISAS, "reference"))
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


def choose(pool, query, weights, p: Paged, top_k: int, isa: str) -> list[NDArray[np.int32]]:
    chosen = np.full((len(query), top_k), -1, np.int32)
    counts = np.full(len(query), -1, np.int32)
    tables = (p.query_indptr, p.positions, p.kv_indptr, p.kv_indices)
    kernels.choose_positions(pool, query, weights, p.cache, p.block_tokens, *tables, chosen, counts, isa=isa)
    return [row[:count] for row, count in zip(chosen, counts, strict=True)]


def scores_of(query, weights, p: Paged) -> list[NDArray[np.float64]]:
    """Of each token the scores of the positions that it sees."""
    found = []
    for request, rows in enumerate(p.rows):
        for token in range(p.query_indptr[request], p.query_indptr[request + 1]):
            products = np.maximum(query[token].astype(np.float64) @ rows[: p.positions[token] + 1].T, 0)
            found.append(weights[token].astype(np.float64) @ products)
    return found


def expected(scores: NDArray[np.float64], top_k: int) -> NDArray[np.int64]:
    return np.sort(np.argsort(-scores, kind="stable")[:top_k])


@pytest.mark.parametrize("heads", [1, 16, 20, 64])
@pytest.mark.parametrize(
    ("lengths", "num_queries"),
    [([1], [1]), ([2, 33, 64, 65, 700], [1, 1, 1, 1, 1]), ([100, 3, 1300], [64, 0, 3])],
    ids=["first token", "decode", "mixed"],
)
def test_the_highest_scores_are_chosen(rng, pool, isa, heads, lengths, num_queries):
    p = paged(rng, lengths, num_queries, WIDTH, 16)
    query = rng.standard_normal((p.num_tokens, heads, WIDTH), dtype=np.float32)
    weights = rng.standard_normal((p.num_tokens, heads), dtype=np.float32)
    found = choose(pool, query, weights, p, 20, isa)
    for chosen, scores in zip(found, scores_of(query, weights, p), strict=True):
        wanted = expected(scores, 20)
        # A rounding of float32 may exchange two positions whose scores are as near as that.
        exchanged = np.setxor1d(chosen, wanted)
        assert chosen.tolist() == sorted(set(chosen.tolist()))
        assert len(chosen) == len(wanted)
        assert np.ptp(scores[exchanged]) < 1e-4 if len(exchanged) else True


def test_of_equal_scores_the_lower_positions_are_chosen(rng, pool, isa):
    """Scores of 0 are common where no head's product is above 0."""
    p = paged(rng, [200], [1], WIDTH, 16)
    query = np.zeros((1, 4, WIDTH), np.float32)
    (chosen,) = choose(pool, query, np.ones((1, 4), np.float32), p, 20, isa)
    assert chosen.tolist() == list(range(20))
    query[0, :, 0] = 1
    weights = np.full((1, 4), 0.25, np.float32)
    for position in range(200):
        p.cache[p.kv_indices[position // 16] * 16 + position % 16, 0] = [1.0, -1.0, -0.0][position % 3]
    (chosen,) = choose(pool, query, weights, p, 70, isa)
    assert chosen.tolist() == sorted([*range(0, 200, 3), 1, 2, 4])
    (chosen,) = choose(pool, query, -weights, p, 140, isa)
    assert chosen.tolist() == sorted([*(n for n in range(200) if n % 3), *range(0, 21, 3)])


def test_a_choice_does_not_depend_on_the_batch(rng, pool, isa):
    p = paged(rng, [900, 40, 500], [30, 30, 1], WIDTH, 16)
    query = rng.standard_normal((p.num_tokens, 16, WIDTH), dtype=np.float32)
    weights = rng.standard_normal((p.num_tokens, 16), dtype=np.float32)
    together = choose(pool, query, weights, p, 33, isa)
    for threads in (1, 3):
        again = choose(kernels.ThreadPool(threads), query, weights, p, 33, isa)
        assert [row.tolist() for row in again] == [row.tolist() for row in together]
    for token in (0, 29, 45, 60):
        request = int(np.searchsorted(p.query_indptr, token, side="right")) - 1
        blocks = p.kv_indices[p.kv_indptr[request] : p.kv_indptr[request + 1]]
        alone = Paged(
            p.cache,
            p.rows,
            np.array([0, 1], np.int32),
            p.positions[token : token + 1],
            np.array([0, len(blocks)], np.int32),
            blocks,
            16,
        )
        (chosen,) = choose(pool, query[token : token + 1], weights[token : token + 1], alone, 33, isa)
        assert chosen.tolist() == together[token].tolist()


def test_more_scores_than_are_kept_at_once_are_computed_in_rounds(rng, pool):
    """72 tokens have more than 16 million scores. Their positions are the same few cache entries again and again."""
    num_tokens, num_positions, block_tokens, top_k = 72, 240_000, 24_000, 20
    cache = rng.standard_normal((block_tokens, 4), dtype=np.float32)
    query = rng.standard_normal((num_tokens, 1, 4), dtype=np.float32)
    weights = np.ones((num_tokens, 1), np.float32)

    def chosen_for(tokens: slice) -> NDArray[np.int32]:
        positions = np.arange(num_positions - num_tokens, num_positions, dtype=np.int32)[tokens]
        chosen = np.full((len(positions), top_k), -1, np.int32)
        tables = (np.array([0, len(positions)]), positions, np.array([0, 10]), np.zeros(10))
        kernels.choose_positions(
            pool,
            query[tokens],
            weights[tokens],
            cache,
            block_tokens,
            *(table.astype(np.int32) for table in tables),
            chosen,
            np.empty(len(positions), np.int32),
            isa=kernels.usable_isas()[0],
        )
        return chosen

    whole = chosen_for(slice(num_tokens))
    for token in range(0, num_tokens, 8):
        eight = slice(token, token + 8)
        np.testing.assert_array_equal(chosen_for(eight), whole[eight])


def test_non_finite_scores_still_choose_distinct_positions(rng, pool, isa):
    p = paged(rng, [100], [1], WIDTH, 16)
    query = rng.standard_normal((1, 16, WIDTH), dtype=np.float32)
    weights = rng.standard_normal((1, 16), dtype=np.float32)
    for value in (np.nan, np.inf, -np.inf):
        query[0, 3, 5] = value
        (chosen,) = choose(pool, query, weights, p, 30, isa)
        assert len(set(chosen.tolist())) == 30
        assert 0 <= chosen.min() <= chosen.max() < 100


@pytest.mark.parametrize("heads", [3, 16, 40])
def test_attention_reads_only_the_chosen_positions(rng, pool, isa, heads):
    p = paged(rng, [300, 20, 7], [5, 20, 1], 45, 16)
    query = rng.standard_normal((p.num_tokens, heads, 45), dtype=np.float32)
    chosen = np.full((p.num_tokens, 210), 10**6, np.int32)
    counts = np.minimum(p.positions + 1, rng.integers(1, 210, p.num_tokens)).astype(np.int32)
    out = np.empty((p.num_tokens, heads, 37))
    for request, rows in enumerate(p.rows):
        for token in range(p.query_indptr[request], p.query_indptr[request + 1]):
            seen = np.sort(rng.permutation(p.positions[token] + 1)[: counts[token]])
            chosen[token, : counts[token]] = seen
            scores = query[token].astype(np.float64) @ rows[seen].T * 0.3
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[token] = shares / shares.sum(axis=1, keepdims=True) @ rows[seen][:, :37]
    found = attend(pool, query, p, isa, chosen, counts)
    np.testing.assert_allclose(found, out, **TOLERANCE)
    everything = np.tile(np.arange(300, dtype=np.int32), (p.num_tokens, 1))
    dense = attend(pool, query, p, isa)
    np.testing.assert_array_equal(attend(pool, query, p, isa, everything, (p.positions + 1).astype(np.int32)), dense)


def attend(pool, query, p: Paged, isa, chosen=None, num_chosen=None):
    out = np.full((query.shape[0], query.shape[1], 37), np.nan, np.float32)
    tables = (p.query_indptr, p.positions, p.kv_indptr, p.kv_indices)
    choice = {} if chosen is None else {"chosen": chosen, "num_chosen": num_chosen}
    kernels.mla_attention(pool, query, p.cache, p.block_tokens, *tables, 37, 0.3, out, isa=isa, **choice)
    return out


def test_positions_that_a_token_does_not_see_are_refused(rng, pool):
    p = paged(rng, [10], [1], 45, 16)
    query = rng.standard_normal((1, 2, 45), dtype=np.float32)
    with pytest.raises(ValueError, match=r"chosen\[0, 1\] is 10; expected 0 to 9"):
        attend(pool, query, p, "reference", np.array([[0, 10]], np.int32), np.array([2], np.int32))
    with pytest.raises(ValueError, match=r"num_chosen\[0\] is 3; expected 1 to 2"):
        attend(pool, query, p, "reference", np.array([[0, 1]], np.int32), np.array([3], np.int32))
    with pytest.raises(ValueError, match="chosen and num_chosen go together"):
        attend(pool, query, p, "reference", np.array([[0, 1]], np.int32))

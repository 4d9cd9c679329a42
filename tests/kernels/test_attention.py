"""Paged latent attention against softmax in NumPy float64, with sequences scattered over the cache."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast._core import kernels


@dataclass
class Paged:
    """Sequences of given lengths whose last `num_queries` positions are asked, in scattered blocks of a full cache."""

    cache: NDArray[np.float32]  # [slots, L]; blocks of nobody hold NaN, so reading one shows
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


def attend(pool, query, p: Paged, value_dim, scale):
    out = np.full((query.shape[0], query.shape[1], value_dim), np.nan, np.float32)
    tables = (p.query_indptr, p.positions, p.kv_indptr, p.kv_indices)
    kernels.mla_attention(pool, query, p.cache, p.block_tokens, *tables, value_dim, scale, out)
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
def test_each_token_attends_to_its_own_past(rng, pool, heads, block_tokens, lengths, num_queries):
    p = paged(rng, lengths, num_queries, 45, block_tokens)
    query = rng.standard_normal((p.num_tokens, heads, 45), dtype=np.float32)

    out = attend(pool, query, p, 37, 0.3)

    np.testing.assert_allclose(out, reference(query, p, 37, 0.3), **TOLERANCE)


def test_the_true_latent_sizes(rng, pool):
    p = paged(rng, [131, 5], [2, 5], 576, 16)
    query = rng.standard_normal((7, 16, 576), dtype=np.float32)

    out = attend(pool, query, p, 512, 576**-0.5)

    np.testing.assert_allclose(out, reference(query, p, 512, 576**-0.5), **TOLERANCE)


def test_scores_far_beyond_exp_do_not_overflow(rng, pool):
    p = paged(rng, [90], [1], 16, 16)
    query = 100 * rng.standard_normal((1, 2, 16), dtype=np.float32)

    out = attend(pool, query, p, 16, 1.0)

    # Scores near 1000 err by about 1e-4, and with them the weights.
    np.testing.assert_allclose(out, reference(query, p, 16, 1.0), rtol=0, atol=2e-3)


def test_no_tokens_is_no_work(rng, pool):
    p = paged(rng, [], [], 8, 16)
    assert attend(pool, np.empty((0, 4, 8), np.float32), p, 8, 1.0).shape == (0, 4, 8)

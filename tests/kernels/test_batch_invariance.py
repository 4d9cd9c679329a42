"""A row's bits depend on its own inputs only: not on the other rows, their number, or the number of threads."""

from collections.abc import Callable

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from ballast._core import kernels
from devkit.kernels.isas import FAST_ISAS, isa_params

T = GGMLQuantizationType
F32 = NDArray[np.float32]
NUM_TOKENS = 23
NUM_FOR_TILES = 70
"""More than from which any format is multiplied in AMX's tiles."""
POOLS = [kernels.ThreadPool(n) for n in (1, 2, 3)]


def assert_rows_are_independent(
    run: Callable[[kernels.ThreadPool, NDArray[np.int64]], F32], num_tokens: int = NUM_TOKENS
) -> None:
    """`run(pool, tokens)` gives the rows of the chosen tokens. The other chosen tokens must not change them."""
    everything = np.arange(num_tokens)
    whole = run(POOLS[0], everything)
    assert np.all(np.isfinite(whole))
    batches = [
        *([token] for token in everything),
        *np.split(everything, [2, 5, 9, 16]),
        everything[::-1],
        everything[::3],
    ]
    for pool in POOLS:
        for tokens in (everything, *map(np.asarray, batches)):
            got = run(pool, tokens)
            assert got.tobytes() == whole[tokens].tobytes(), f"{pool.num_threads} threads, tokens {tokens}"


every_isa = pytest.mark.parametrize("isa", isa_params(*FAST_ISAS, "reference"))
every_width = pytest.mark.parametrize("num_bytes", [1, 2])


def normal(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


@every_isa
@every_width
@pytest.mark.parametrize(
    "kind",
    [T.F32, T.BF16, T.Q4_K, T.Q6_K, T.Q8_0, T.IQ4_NL, T.IQ2_XS, T.IQ3_XXS, T.IQ1_S],
    ids=lambda kind: kind.name,
)
def test_linear(rng, make_matrix, kind, isa, num_bytes):
    cols = 259 if kind in (T.F32, T.BF16) else 768
    weight = kernels.pack(POOLS[1], make_matrix(kind, 37, cols)[0], isa, activation_bytes=num_bytes)
    x = normal(rng, NUM_FOR_TILES, cols)

    def run(pool, tokens):
        out = np.empty((len(tokens), 37), np.float32)
        kernels.linear(pool, x[tokens], weight, out)
        return out

    assert_rows_are_independent(run, NUM_FOR_TILES)


@every_isa
@every_width
def test_head_linear(rng, make_matrix, isa, num_bytes):
    place = {"num_heads": 3, "head_stride": 20, "row_offset": 7, "num_rows": 13}
    weight = kernels.pack(POOLS[1], make_matrix(T.Q8_0, 3 * 20, 96)[0], isa, **place, activation_bytes=num_bytes)
    x = normal(rng, NUM_TOKENS, 3, 96)

    def run(pool, tokens):
        out = np.empty((len(tokens), 3, 13), np.float32)
        kernels.head_linear(pool, x[tokens], weight, 20, 7, out)
        return out

    assert_rows_are_independent(run)


@every_isa
def test_head_linear_transposed(rng, make_matrix, isa):
    place = {"num_heads": 3, "head_stride": 20, "row_offset": 7, "num_rows": 13, "transposed": True}
    weight = kernels.pack(POOLS[1], make_matrix(T.F16, 3 * 20, 515)[0], isa, **place, activation_bytes=2)
    x = normal(rng, NUM_TOKENS, 3, 13)

    def run(pool, tokens):
        out = np.empty((len(tokens), 3, 515), np.float32)
        kernels.head_linear_transposed(pool, x[tokens], weight, 20, 7, out)
        return out

    assert_rows_are_independent(run)


@every_isa
@every_width
@pytest.mark.parametrize("down", [T.Q8_0, T.Q6_K], ids=lambda kind: kind.name)
def test_experts(rng, make_matrix, isa, num_bytes, down):
    """Every token goes to the first expert, and to one of the other two."""
    width, num_tokens = 256, NUM_FOR_TILES
    shapes = [(T.Q4_K, 3 * width, width), (T.Q4_K, 3 * width, width), (down, 3 * width, width)]
    matrices = [make_matrix(*shape)[0] for shape in shapes]
    experts = kernels.Experts(*matrices, 3).packed(POOLS[1], isa, activation_bytes=num_bytes)
    x = normal(rng, num_tokens, width)
    ids = np.array([[0, *rng.permutation([1, 2])[:1]] for _ in range(num_tokens)], np.int32)
    weights = rng.uniform(0, 1, ids.shape).astype(np.float32)

    def run(pool, tokens):
        out = np.empty((len(tokens), width), np.float32)
        experts.forward(pool, x[tokens], ids[tokens], weights[tokens], out)
        return out

    assert_rows_are_independent(run, num_tokens)


@pytest.mark.parametrize("isa", isa_params(*FAST_ISAS, "reference"))
@pytest.mark.parametrize(("length", "heads"), [(70, 4), (70, 7), (390, 16)])
def test_attention_is_independent_of_chunks_blocks_and_batch(rng, isa, length, heads):
    """The last 23 tokens of a sequence are computed in any grouping and with any paging. In the longest sequence, they
    are on both sides of the border between two ranges of positions that are computed separately."""
    width = 36
    rows, query = normal(rng, length, width), normal(rng, NUM_TOKENS, heads, width)
    num_runs = 0

    def run(pool, tokens):
        nonlocal num_runs
        num_runs += 1
        block_tokens = (1, 16, 32)[num_runs % 3]
        num_blocks = -(-length // block_tokens)
        blocks = rng.permutation(num_blocks + 2)[:num_blocks].astype(np.int32)
        cache = normal(rng, (num_blocks + 2) * block_tokens, width)
        at = np.arange(length)
        cache[blocks[at // block_tokens] * block_tokens + at % block_tokens] = rows
        out = np.empty((len(tokens) + 1, heads, 32), np.float32)
        kernels.mla_attention(
            pool,
            np.concatenate([normal(rng, 1, heads, width), query[tokens]]),
            cache,
            block_tokens,
            np.array([0, 1, len(tokens) + 1], np.int32),  # another request comes first, in a block of its own
            np.concatenate([[0], length - NUM_TOKENS + tokens]).astype(np.int32),
            np.array([0, 1, num_blocks + 1], np.int32),
            np.concatenate([blocks[:1], blocks]),
            32,
            0.2,
            out,
            isa=isa,
        )
        return out[1:]

    assert_rows_are_independent(run)


def test_norm_rope_and_activation(rng):
    x, weight = normal(rng, NUM_TOKENS, 38), normal(rng, 38)
    cos, sin = normal(rng, NUM_TOKENS, 19), normal(rng, NUM_TOKENS, 19)

    def run(pool, tokens):
        out = np.empty((len(tokens), 38), np.float32)
        kernels.rms_norm(x[tokens], weight, 1e-6, out)
        kernels.rope_interleaved(out.reshape(-1, 1, 38), cos[tokens], sin[tokens])
        kernels.silu_mul(out, x[tokens], out)
        return out

    assert_rows_are_independent(run)


@pytest.mark.parametrize("gating", ["softmax", "sigmoid", "sqrtsoftplus"])
def test_route(rng, gating):
    logits, bias = normal(rng, NUM_TOKENS, 24), normal(rng, 24)

    def run(pool, tokens):
        ids, weights = np.empty((len(tokens), 3), np.int32), np.empty((len(tokens), 3), np.float32)
        kernels.route(
            logits[tokens],
            bias,
            gating=gating,
            num_groups=4,
            num_groups_used=2,
            group_score_top2=True,
            normalize=True,
            scale=2.5,
            ids=ids,
            weights=weights,
        )
        return np.concatenate([ids.astype(np.float32), weights], axis=1)

    assert_rows_are_independent(run)

"""A cache of half precision gives, bit for bit, the results of a float32 cache that holds the same numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from devkit.kernels.isas import FAST_ISAS, isa_params
from kernels.attention import test_attention as latent
from kernels.attention import test_gqa_attention as grouped
from kernels.attention.test_position_choice import choose


@pytest.fixture(params=isa_params(*FAST_ISAS, "reference"))
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (8, 1), (5, 5), (40, 2)])
@pytest.mark.parametrize(("window", "has_sinks"), [(0, False), (7, False), (100, True), (0, True)])
def test_grouped_attention(rng, pool, isa, heads, kv_heads, window, has_sinks):
    cache = grouped.cache_of(rng, [2, 700, 33, 200], [1, 90, 1, 3], kv_heads)
    query = rng.standard_normal((95, heads, grouped.KEY), dtype=np.float32)
    sinks = rng.standard_normal(heads, dtype=np.float32) if has_sinks else None
    half = replace(cache, keys=cache.keys.astype(np.float16), values=cache.values.astype(np.float16))
    same = replace(cache, keys=half.keys.astype(np.float32), values=half.values.astype(np.float32))

    found, expected = (grouped.attend(pool, query, each, 0.3, isa, window, sinks) for each in (half, same))

    np.testing.assert_array_equal(found, expected)
    assert not np.isnan(found).any()


def rounded(p: latent.Paged) -> tuple[latent.Paged, latent.Paged]:
    """The cache in half precision, and its numbers as float32."""
    half = p.cache.astype(np.float16)
    return replace(p, cache=half), replace(p, cache=half.astype(np.float32))


@pytest.mark.parametrize(("width", "value_dim", "heads"), [(576, 512, 16), (20, 12, 40), (17, 3, 1), (33, 33, 20)])
def test_latent_attention(rng, pool, isa, width, value_dim, heads):
    half, same = rounded(latent.paged(rng, [2, 300, 33], [1, 40, 1], width, 16))
    query = rng.standard_normal((42, heads, width), dtype=np.float32)

    found, expected = (latent.attend(pool, query, each, value_dim, 0.1, isa) for each in (half, same))

    np.testing.assert_array_equal(found, expected)
    assert not np.isnan(found).any()


@pytest.mark.parametrize("width", [24, 128, 19])
def test_chosen_positions(rng, pool, isa, width):
    half, same = rounded(latent.paged(rng, [100, 3, 1300], [64, 0, 3], width, 16))
    query = rng.standard_normal((67, 20, width), dtype=np.float32)
    weights = rng.standard_normal((67, 20), dtype=np.float32)

    found, expected = (choose(pool, query, weights, each, 20, isa) for each in (half, same))

    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_other_types_are_refused(rng, pool):
    cache = grouped.cache_of(rng, [4], [1], 2)
    query = rng.standard_normal((1, 4, grouped.KEY), dtype=np.float32)
    mixed = replace(cache, values=cache.values.astype(np.float16))
    with pytest.raises(ValueError, match=r"values are float16 .*; expected the type of keys, float32"):
        grouped.attend(pool, query, mixed, 0.3, "reference")
    with pytest.raises(ValueError, match=r"keys is float64 .*; expected float32"):
        grouped.attend(pool, query, replace(cache, keys=cache.keys.astype(np.float64)), 0.3, "reference")
    strided = replace(cache, keys=cache.keys.astype(np.float16)[:, ::-1], values=mixed.values)
    with pytest.raises(ValueError, match=r"keys is float16 .* not C-contiguous; expected float16"):
        grouped.attend(pool, query, strided, 0.3, "reference")

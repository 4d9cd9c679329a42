"""The kernels between a layer's products against torch's operations, by Triton's interpreter, and on a GPU if there is
one; compiled for a GPU that is not here.

Tolerance: sums of squares are taken in another order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ballast.families.architecture import ClampedSilu, ClampedSwiglu
from ballast.model.hybrid.attention.attention import floats
from ballast.model.hybrid.pointwise import pointwise_kernels, triton_pointwise
from ballast.model.hybrid.pointwise.pointwise import HeadWeights, IndexNorm
from ballast.model.hybrid.pointwise.triton_pointwise import TritonPointwise
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.short_rows import LARGEST, SMALLEST_SCALE, ShortRows
from ballast.model.rope import RopeTable, unrotated
from devkit.kernels.interpreted import interpreted
from devkit.kernels.script import COMPILES_ONE
from devkit.kernels.short_rows import rounded_rows
from devkit.kernels.torch_pointwise import TorchPointwise

ROPE = 24
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the kernels run in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    monkeypatch.setattr(triton_pointwise, "pointwise_kernels", interpreted(pointwise_kernels, monkeypatch))
    return torch.device("cpu")


@pytest.fixture
def both(device: torch.device) -> tuple[TorchPointwise, TritonPointwise]:
    """Torch's way and the kernels', with the same tables."""
    angles = np.random.default_rng(0).uniform(0, 3, (50, ROPE // 2)).astype(np.float32)
    rope = RopeTable(np.cos(angles), np.sin(angles))
    return TorchPointwise(1e-6, rope, device), TritonPointwise(1e-6, rope, device)


@pytest.fixture
def scaled(device: torch.device) -> tuple[TorchPointwise, TritonPointwise]:
    """As `both`, with factors of queries: 1 + p / 10 at position p."""
    angles = np.random.default_rng(0).uniform(0, 3, (50, ROPE // 2)).astype(np.float32)
    rope = RopeTable(np.cos(angles), np.sin(angles), (1 + np.arange(50) / 10).astype(np.float32))
    return TorchPointwise(1e-6, rope, device), TritonPointwise(1e-6, rope, device)


@pytest.fixture
def unturned(device: torch.device) -> Callable[..., tuple[TorchPointwise, TritonPointwise]]:
    """Makes both ways, with tables that turn nothing."""
    rope = RopeTable(np.ones((1, ROPE // 2), np.float32), np.zeros((1, ROPE // 2), np.float32))
    return lambda **options: tuple(way(1e-6, rope, device, **options) for way in (TorchPointwise, TritonPointwise))


def step_of(positions: list[int], slots: list[int], device: torch.device) -> Step:
    """A step with only the fields that pointwise kernels read: positions and slots."""
    tables = (torch.tensor(values, dtype=torch.int32, device=device) for values in (positions, slots))
    return Step(*tables, torch.empty(0, dtype=torch.int64), ())


def random(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(device)


@pytest.mark.parametrize("num_parts", [0, 1, 2, 3])
@pytest.mark.parametrize("width", [96, 1024])
def test_parts_join_the_stream_before_it_is_normed(device, both, num_parts: int, width: int) -> None:
    parts = tuple(random(3, width, device=device) + index for index in range(num_parts))
    weight = random(width, device=device)
    streams = [random(3, width, device=device) for _ in both]
    plain, fused = (way.add_and_norm(stream, parts, weight) for way, stream in zip(both, streams, strict=True))
    torch.testing.assert_close(fused, plain, **CLOSE)
    torch.testing.assert_close(streams[1], streams[0], **CLOSE)
    assert torch.equal(streams[0], random(3, width, device=device)) == (num_parts == 0)


def test_a_part_of_wider_rows_is_normed_by_itself(device, both) -> None:
    rows, weight = random(4, 160, device=device), random(96, device=device)
    plain, fused = (way.norm(rows[:, :96], weight) for way in both)
    torch.testing.assert_close(fused, plain, **CLOSE)


@pytest.mark.parametrize(("rank", "num_heads", "dtype"), [(64, 3, torch.float32), (48, 16, torch.float16)])
def test_queries_and_keys_are_rotated_and_keys_written_to_their_slot(
    device, both, rank: int, num_heads: int, dtype: torch.dtype
) -> None:
    nope, joined = random(3, num_heads, rank, device=device), random(3, num_heads * 40 + rank, device=device)
    heads = joined[:, : num_heads * 40].view(3, num_heads, 40)
    latents, weight = random(3, rank + ROPE + 8, device=device)[:, : rank + ROPE], random(rank, device=device)
    step = step_of([7, 0, 49], [9, 2, 15], device)
    caches = [torch.full((16, rank + ROPE), 3.0, dtype=dtype, device=device) for _ in both]
    plain, fused = (
        way.query_and_cache(nope, heads, latents, weight, cache, step) for way, cache in zip(both, caches, strict=True)
    )
    torch.testing.assert_close(fused, plain, **CLOSE)
    torch.testing.assert_close(caches[1], caches[0], rtol=1e-3 if dtype == torch.float16 else 1e-5, atol=1e-6)
    assert (caches[1] != 3.0).any(1).nonzero().flatten().tolist() == [2, 9, 15]


@pytest.mark.parametrize(("num_heads", "dtype"), [(3, torch.float32), (16, torch.float16)])
def test_expanded_queries_are_rotated_and_only_the_cache_is_written(
    device, both, num_heads: int, dtype: torch.dtype
) -> None:
    heads = random(3, num_heads * 40 + 64, device=device)[:, : num_heads * 40].view(3, num_heads, 40)
    latents, weight = random(3, 64 + ROPE, device=device), random(64, device=device)
    step = step_of([7, 0, 49], [9, 2, 15], device)
    found = []
    for way in both:
        cache = torch.zeros((16, 64 + ROPE), dtype=dtype, device=device)
        query = torch.zeros((3, num_heads, 40), dtype=dtype, device=device)
        way.rotated_query(heads, step, 0.25, query)
        way.cache_rows(latents, weight, cache, step)
        found.append((query, cache))
        beside = torch.zeros_like(cache)
        whole = way.query_and_cache(heads[..., :16].repeat(1, 1, 4), heads, latents, weight, beside, step)
        torch.testing.assert_close(query[..., 16:].float(), whole[..., 64:] * 0.25, rtol=1e-3, atol=1e-3)
        assert torch.equal(beside, cache)
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-3 if dtype == torch.float16 else 1e-5, atol=1e-6)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-3 if dtype == torch.float16 else 1e-5, atol=1e-6)


def test_queries_are_scaled_by_their_positions_and_keys_are_not(device, both, scaled) -> None:
    heads, nope = random(3, 5, 40, device=device), random(3, 5, 16, device=device)
    latents, weight = random(3, 16 + ROPE, device=device), random(16, device=device)
    step, factors = step_of([7, 0, 49], [9, 2, 15], device), torch.tensor([1.7, 1.0, 5.9], device=device)
    for plain, way in zip(both, scaled, strict=True):
        expanded = [torch.zeros((3, 5, 40), device=device) for _ in range(2)]
        caches = [torch.zeros((16, 16 + ROPE), device=device) for _ in range(2)]
        queries = []
        for each, outside, cache in zip((plain, way), expanded, caches, strict=True):
            each.rotated_query(heads, step, 0.25, outside)
            queries.append(each.query_and_cache(nope, heads, latents, weight, cache, step))
        torch.testing.assert_close(queries[1], queries[0] * factors[:, None, None], **CLOSE)
        torch.testing.assert_close(expanded[1], expanded[0] * factors[:, None, None], **CLOSE)
        assert torch.equal(caches[1], caches[0])


def test_entries_that_no_position_rotates_are_used_as_they_are(device) -> None:
    heads, nope = random(3, 5, 40, device=device), random(3, 5, 16, device=device)
    latents, weight = random(3, 16 + ROPE, device=device), random(16, device=device)
    step = step_of([7, 0, 49], [9, 2, 15], device)
    for kind in (TorchPointwise, TritonPointwise):
        way = kind(1e-6, unrotated(ROPE), device)
        cache, outside = torch.zeros((16, 16 + ROPE), device=device), torch.zeros((3, 5, 40), device=device)
        query = way.query_and_cache(nope, heads, latents, weight, cache, step)
        way.rotated_query(heads, step, 0.25, outside)
        assert torch.equal(query, torch.cat([nope, heads[..., -ROPE:]], -1))
        assert torch.equal(cache[step.slots, 16:], latents[:, 16:])
        assert torch.equal(outside, heads * 0.25)


@pytest.mark.parametrize(
    ("dtype", "big", "num_beyond"),
    [(torch.float16, 1e6, 7), (torch.bfloat16, 3.395e38, 7), (torch.float32, 3.395e38, 0)],
)
def test_values_too_large_for_the_cache_are_clamped_and_counted(
    device, unturned, dtype: torch.dtype, big: float, num_beyond: int
) -> None:
    largest, rank = torch.finfo(dtype).max, 64
    latents, weight = torch.ones(2, rank + ROPE, device=device), torch.ones(rank, device=device)
    latents[0, rank:] = torch.tensor([big, -big, largest, *[5.0] * (ROPE - 3)])
    latents[1, rank:] = torch.tensor([0.0, torch.nan, big, *[-5.0] * (ROPE - 3)])
    weight[:2] = torch.tensor([big, -big])
    nope, heads = random(2, 1, rank, device=device), random(2, 1, 40, device=device)
    for way in unturned():
        cache = torch.zeros((5, rank + ROPE), dtype=dtype, device=device)
        way.query_and_cache(nope, heads, latents, weight, cache, step_of([0, 0], [3, 4], device))
        expected = latents[:, rank:].clamp(-largest, largest).to(dtype)
        expected[1, 0] = torch.nan  # turned with its neighbour, which is no number: then its request fails
        torch.testing.assert_close(cache[3:, rank:], expected, rtol=0, atol=0, equal_nan=True)
        expected = weight.clamp(-largest, largest).repeat(2, 1)
        torch.testing.assert_close(cache[3:, :rank].float(), expected, rtol=2**-8, atol=0)
        assert int(way.num_saturated) == num_beyond


def test_a_query_that_attention_would_round_to_infinity_is_bounded_and_counted(device, unturned) -> None:
    latents, weight = torch.zeros(1, 16 + ROPE, device=device), torch.ones(16, device=device)
    nope, heads = torch.ones(1, 2, 16, device=device), torch.ones(1, 2, ROPE, device=device)
    nope[0, 0, 2], nope[0, 1, 3], heads[0, 0, 8], heads[0, 1, 7] = torch.nan, 2e5, 99999.0, -2e5
    expected = torch.cat([nope, heads], -1).clamp(-1e5, 1e5)
    for way in unturned(largest_query=1e5):
        cache = torch.zeros((1, 16 + ROPE), dtype=torch.float16, device=device)
        query = way.query_and_cache(nope, heads, latents, weight, cache, step_of([0], [0], device))
        torch.testing.assert_close(query, expected, rtol=0, atol=0, equal_nan=True)
        assert int(way.num_saturated) == 2
        outside = torch.empty_like(query, dtype=torch.float16)
        way.rotated_query(torch.cat([nope, heads], -1), step_of([0], [0], device), 0.5, outside)
        torch.testing.assert_close(outside, (expected * 0.5).half(), rtol=0, atol=0, equal_nan=True)
        assert int(way.num_saturated) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("head_dim", "heads", "kv_heads", "norms", "has_biases", "is_stacked"),
    [
        (ROPE, 6, 2, "each head", False, True),
        (40, 3, 3, None, True, True),
        (64, 5, 1, "each head", True, False),
        (64, 6, 2, "all heads", False, True),
        (40, 3, 3, "all heads", True, False),
    ],
    ids=["Qwen3", "GLM-4.5-Air", "GLM-4.5", "MiniMax-M2", "all heads and biases"],
)
def test_heads_get_biases_norms_and_positions_and_keys_and_values_reach_their_slot(
    device,
    both,
    head_dim: int,
    heads: int,
    kv_heads: int,
    norms: str | None,
    has_biases: bool,
    is_stacked: bool,
    dtype: torch.dtype,
) -> None:
    widths = [heads * head_dim, kv_heads * head_dim, kv_heads * 16]
    products = [random(3, width, device=device) for width in widths]
    if is_stacked:
        products = list(torch.cat(products, 1).split(widths, 1))
    query, key, value = (
        product.view(3, count, -1) for product, count in zip(products, (heads, kv_heads, kv_heads), strict=True)
    )
    weights = HeadWeights(
        *(random(width, device=device) if has_biases else None for width in widths),
        *(
            None if norms is None else random(width + 1, device=device)[:width]
            for width in (widths[:2] if norms == "all heads" else (head_dim, head_dim))
        ),
        value_scale=1.0 if is_stacked else 0.7,
    )
    step = step_of([7, 0, 49], [9, 2, 15], device)
    caches = [torch.full((16, widths[1] + widths[2]), 3.0, dtype=dtype, device=device) for _ in both]
    plain, fused = (
        way.heads_and_cache(query, key, value, weights, cache, step) for way, cache in zip(both, caches, strict=True)
    )
    torch.testing.assert_close(fused, plain, **CLOSE)
    torch.testing.assert_close(caches[1], caches[0], rtol=1e-3 if dtype == torch.float16 else 1e-5, atol=1e-6)
    assert (caches[1] != 3.0).any(1).nonzero().flatten().tolist() == [2, 9, 15]


def written_rows(way: TorchPointwise | TritonPointwise, rows: torch.Tensor, layout: ShortRows) -> torch.Tensor:
    """The rows of a cache in 8 bits after `way` has written rows [N, numbers] of one head, or of latents, to it."""
    cache = torch.zeros((len(rows), layout.row_bytes), dtype=torch.uint8, device=rows.device)
    step = step_of([0] * len(rows), list(range(len(rows))), rows.device)
    if layout.num_wide:
        way.cache_rows(rows, torch.ones(layout.scales_at, device=rows.device), cache, step)
        return cache
    nothing = HeadWeights(None, None, None, None, None)
    key, value = rows[:, None].split(layout.widths, 2)
    way.heads_and_cache(key, key, value, nothing, cache, step)
    return cache


@pytest.mark.parametrize("key_dim", [ROPE, ROPE + 40], ids=["whole head rotated", "a part rotated"])
def test_a_cache_of_8_bits_gets_the_nearest_codes_of_every_size(device, unturned, key_dim: int) -> None:
    """Scales of all sizes, ties, numbers below the smallest normal one, zeros, and a head of zeros."""
    rows = random(64, key_dim + 32, device=device) * torch.exp2(torch.arange(64, device=device) - 40)[:, None]
    rows[3, :key_dim] = 0
    rows[4] = (torch.arange(key_dim + 32, device=device) % 32 + 16) / 256  # ties
    rows[5, key_dim:] *= torch.exp2(-torch.arange(32, device=device))
    rows[6, 2] = 448 * 2.0**-20
    layout, bounded = ShortRows.of_heads(1, key_dim, 32), rows.clamp(-LARGEST, LARGEST)
    plain, fused = (written_rows(way, rows, layout) for way in unturned())
    assert torch.equal(plain, rounded_rows(bounded, layout))
    assert torch.equal(fused[:, layout.scales_at :], plain[:, layout.scales_at :])
    assert torch.equal(floats(fused, layout), floats(plain, layout)), "zeros may have either sign"
    # A normal number is rounded to 4 bits, a smaller one to a multiple of 2^-9 of its scale.
    scales = plain[:, layout.scales_at : layout.wide_at].contiguous().view(torch.float32)
    found = floats(plain, layout)
    for index, part in enumerate(layout.parts):
        error, scale = (found[:, part] - bounded[:, part]).abs(), scales[:, index, None]
        assert (error <= torch.maximum(bounded[:, part].abs() / 16, scale * 2.0**-10)).all()
        largest = bounded[:, part].abs().amax(1)
        is_smallest = (largest > 224 * scales[:, index]) | (scales[:, index] == SMALLEST_SCALE)
        assert is_smallest.all()
        assert (largest <= 448 * scales[:, index]).all()


def test_latents_of_8_bits_have_a_scale_per_part_and_their_key_in_bfloat16(device) -> None:
    angles = np.random.default_rng(0).uniform(0, 3, (1, ROPE // 2)).astype(np.float32)
    rope, layout = RopeTable(np.cos(angles), np.sin(angles)), ShortRows.of_latents(512, ROPE)
    rows = random(5, 512 + ROPE, device=device)
    rows[:, 128:256] *= 1000
    rows[:, 300] *= 1e-4
    plain, fused = (written_rows(way(1e-6, rope, device), rows, layout) for way in (TorchPointwise, TritonPointwise))
    # Norms are summed in another order, so a number may be rounded to the next code. The interpreter cuts bfloat16.
    assert (plain != fused)[:, : layout.wide_at].float().mean() < 0.01
    torch.testing.assert_close(floats(fused, layout), floats(plain, layout), rtol=1 / 8, atol=1e-6)
    scales = fused[:, 512:528].contiguous().view(torch.float32)
    assert (scales[:, 1] > 100 * scales[:, 2]).all()


@pytest.mark.parametrize(
    "layout", [ShortRows.of_heads(1, ROPE, 16), ShortRows.of_latents(256, ROPE)], ids=["heads", "latents"]
)
def test_what_is_no_number_stays_none_in_8_bits_and_large_numbers_are_counted(
    device, unturned, layout: ShortRows
) -> None:
    rows = torch.ones(3, layout.scales_at + layout.num_wide, device=device)
    rows[1, 2] = torch.nan
    rows[2, -1] = 1e6
    for way in unturned():
        found = floats(written_rows(way, rows, layout), layout)
        assert found[0].isfinite().all()
        assert found[2].isfinite().all()
        assert found[1, 2].isnan()
        assert found[2, -1] == LARGEST
        assert int(way.num_saturated) == 1


@pytest.mark.parametrize("width", [96, 2048])
def test_rows_are_multiplied_by_gates_of_tokens(device, both, width: int) -> None:
    x, weight = random(3, width + 8, device=device)[:, :width], random(width, device=device) * 0.1
    expected = random(3, width, device=device) * torch.sigmoid(x.double() @ weight.double())[:, None].float()
    for way in both:
        rows = random(3, width, device=device)
        found = way.gate_rows(rows, x, weight)
        assert found.data_ptr() == rows.data_ptr()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_query_may_stand_beside_its_heads_gate(device, both) -> None:
    joined, key = random(2, 3, 2 * (ROPE + 8), device=device), random(2, 1, ROPE + 8, device=device)
    query = joined[..., : ROPE + 8]
    weights = HeadWeights(None, None, None, random(ROPE + 8, device=device), None)
    step = step_of([7, 3], [0, 1], device)
    caches = [torch.zeros((2, 2 * (ROPE + 8)), device=device) for _ in range(3)]
    plain, fused = (
        way.heads_and_cache(query, key, key, weights, cache, step) for way, cache in zip(both, caches, strict=False)
    )
    torch.testing.assert_close(fused, plain, **CLOSE)
    alone = both[1].heads_and_cache(query.contiguous(), key, key, weights, caches[2], step)
    assert torch.equal(fused, alone)
    assert torch.equal(caches[1], caches[2])


def test_a_norm_of_all_heads_uses_their_common_mean_square(both, unturned) -> None:
    device = both[0]._cos.device
    query, key = (
        random(1, 2, ROPE, device=device) * torch.tensor([[[1.0], [9.0]]], device=device),
        random(1, 1, ROPE, device=device),
    )
    weights = HeadWeights(None, None, None, random(2 * ROPE, device=device), random(ROPE, device=device))
    expected = query / (query.square().mean() + 1e-6).sqrt() * weights.query_norm.view(2, ROPE)
    for way in unturned():
        cache = torch.zeros((1, 2 * ROPE), device=device)
        found = way.heads_and_cache(query, key, key, weights, cache, step_of([0], [0], device))
        torch.testing.assert_close(found, expected, **CLOSE)


def test_a_head_turns_as_published(both) -> None:
    """Halves of the first entries turn into each other: rotate_half of transformers."""
    query = random(1, 2, ROPE + 8, device=both[0]._cos.device)
    cos, sin = (both[0]._cos[5].repeat(2), both[0]._sin[5].repeat(2))
    turned, rest = query[..., :ROPE], query[..., ROPE:]
    half = torch.cat([-turned[..., ROPE // 2 :], turned[..., : ROPE // 2]], -1)
    expected = torch.cat([turned * cos + half * sin, rest], -1)
    nothing = HeadWeights(None, None, None, None, None)
    for way in both:
        cache = torch.zeros((1, 4 * (ROPE + 8)), device=query.device)
        found = way.heads_and_cache(query, query, query, nothing, cache, step_of([5], [0], query.device))
        torch.testing.assert_close(found, expected, **CLOSE)
        torch.testing.assert_close(cache[0], torch.cat([expected.flatten(), query.flatten()]), **CLOSE)


def test_heads_that_are_too_large_are_bounded_and_counted(device, unturned) -> None:
    query, key, value = (torch.ones(1, 1, ROPE + 8, device=device) for _ in range(3))
    query[0, 0, 2], query[0, 0, ROPE + 1], query[0, 0, 4] = 2e5, -2e5, torch.nan
    key[0, 0, ROPE // 2], key[0, 0, ROPE], value[0, 0, 5] = -1e6, 1e6, 1e6
    nothing = HeadWeights(None, None, None, None, None)
    for way in unturned(largest_query=1e5):
        cache = torch.zeros((1, 2 * (ROPE + 8)), dtype=torch.float16, device=device)
        found = way.heads_and_cache(query, key, value, nothing, cache, step_of([0], [0], device))
        expected = query.clamp(-1e5, 1e5)
        expected[0, 0, 4 + ROPE // 2] = torch.nan  # turned with its partner, which is no number
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        row = torch.cat([key.flatten(), value.flatten()]).clamp(-65504, 65504).half()
        torch.testing.assert_close(cache[0], row, rtol=0, atol=0)
        assert int(way.num_saturated) == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("pairs_apart", [True, False], ids=["halves", "neighbours"])
@pytest.mark.parametrize(("key_dim", "num_heads"), [(40, 3), (ROPE, 16)])
def test_an_indexers_key_is_normed_and_rotated_like_its_queries(
    device, both, key_dim: int, num_heads: int, pairs_apart: bool, dtype: torch.dtype
) -> None:
    joined = random(3, num_heads * key_dim + 20, device=device)
    query = joined[:, : num_heads * key_dim].view(3, num_heads, key_dim)
    key = random(3, key_dim + 9, device=device)[:, :key_dim] * 5 + 3
    norm = IndexNorm(random(key_dim, device=device), random(key_dim + 1, device=device)[1:], pairs_apart)
    step = step_of([7, 0, 49], [9, 2, 15], device)
    caches = [torch.full((16, key_dim), 3.0, dtype=dtype, device=device) for _ in both]
    plain, fused = (
        way.index_query_and_key(query, key, norm, cache, step) for way, cache in zip(both, caches, strict=True)
    )
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float16 else CLOSE
    assert fused.dtype == plain.dtype == dtype
    torch.testing.assert_close(fused, plain, **close)
    torch.testing.assert_close(caches[1], caches[0], **close)
    assert (caches[1] != 3.0).any(1).nonzero().flatten().tolist() == [2, 9, 15]
    normed = (key - key.mean(1, keepdim=True)) / (key.var(1, correction=0, keepdim=True) + 1e-6).sqrt()
    expected = normed * norm.weight + norm.shift
    cos, sin = both[0]._cos[[7, 0, 49]], both[0]._sin[[7, 0, 49]]
    half = ROPE // 2
    first, second = (slice(0, half), slice(half, ROPE)) if pairs_apart else (slice(0, ROPE, 2), slice(1, ROPE, 2))
    for rows, found in ((expected, caches[1][[9, 2, 15]]), (query[:, 1], fused[:, 1])):
        turned = rows.clone()
        turned[:, first] = rows[:, first] * cos - rows[:, second] * sin
        turned[:, second] = rows[:, second] * cos + rows[:, first] * sin
        torch.testing.assert_close(found, turned.to(dtype), **close)


def test_indexer_values_that_are_too_large_are_clamped_and_counted(device, unturned) -> None:
    query, key = torch.ones(1, 2, ROPE + 8, device=device), torch.ones(1, ROPE + 8, device=device)
    query[0, 0, 3], query[0, 1, ROPE + 2], query[0, 1, 4] = 1e6, -1e6, torch.nan
    shift = torch.zeros(ROPE + 8, device=device)
    shift[1], shift[ROPE] = -1e6, 1e6
    norm = IndexNorm(torch.ones(ROPE + 8, device=device), shift, True)
    for way in unturned():
        keys = torch.zeros((3, ROPE + 8), dtype=torch.float16, device=device)
        found = way.index_query_and_key(query, key, norm, keys, step_of([0], [1], device))
        expected = query.clamp(-65504, 65504).half()
        expected[0, 1, 4 + ROPE // 2] = torch.nan  # turned with its partner, which is no number
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(keys[1], shift.clamp(-65504, 65504).half(), rtol=0, atol=0)
        assert int(way.num_saturated) == 4


def test_gate_and_up_products_are_combined(device, both) -> None:
    gate, up = random(2, 1500, device=device), random(2, 1500, device=device)
    for unit in (ClampedSwiglu(1.702, 1.0), ClampedSilu(0.5), ClampedSilu(0.5, limits_input=True), None):
        plain, fused = (way.gated(gate, up, unit=unit) for way in both)
        torch.testing.assert_close(fused, plain, **CLOSE)
    both_halves = torch.cat([gate, up], 1)
    torch.testing.assert_close(both[1].gated(both_halves[:, :1500], both_halves[:, 1500:]), plain, **CLOSE)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("add_and_norm", {"PARTS": 3, "WIDTH": 7168, "STRIDE": 7168, "PADDED_WIDTH": 8192}),
        *(
            (
                "query_and_cache",
                {
                    "HAS_SCALES": True,
                    "ROTATES": rotates,
                    "HEAD_DIM": 192,
                    "HEADS_STRIDE": 24576,
                    "RANK": 512,
                    "ROPE": 64,
                    "LATENT_STRIDE": 576,
                    "PADDED_RANK": 512,
                    "PADDED_PAIRS": 32,
                    "LARGEST": 65504.0,
                    "LARGEST_QUERY": 2e5,
                    "ROW_WIDTH": 656 if parts else 576,
                    "PARTS": parts,
                },
            )
            for rotates, parts in ((True, 0), (False, 4))
        ),
        *(
            (
                "heads_and_cache",
                {
                    "QUERY_STRIDE": 9216,
                    "HEAD_STRIDE": 128,
                    "KEY_STRIDE": 9216,
                    "VALUE_STRIDE": 9216,
                    **dict.fromkeys(("HAS_QUERY_BIAS", "HAS_KEY_BIAS", "HAS_VALUE_BIAS"), True),
                    **dict.fromkeys(("HAS_QUERY_NORM", "HAS_KEY_NORM"), True),
                    "KEY_DIM": 128,
                    "V_DIM": 128,
                    "ROPE": 64,
                    "ROW_WIDTH": 2048,
                    "PADDED_PAIRS": 32,
                    "PADDED_REST": 64,
                    "PADDED_V": 128,
                    "LARGEST": 65504.0,
                    "LARGEST_QUERY": 2e5,
                    "IS_SHORT": is_short,
                },
            )
            for is_short in (False, True)
        ),
        (
            "index_query_and_key",
            {
                "QUERY_STRIDE": 8192,
                "BY_SLOT": True,
                "KEY_STRIDE": 2240,
                "KEY_DIM": 128,
                "ROPE": 64,
                "PAIRS_APART": True,
                "PADDED_PAIRS": 32,
                "PADDED_REST": 64,
                "LARGEST": 65504.0,
            },
        ),
        *(("gated", {"BLOCK": 1024, "UNIT": unit}) for unit in range(3)),
        ("gate_rows", {"WIDTH": 2048, "STRIDE": 2048, "PADDED_WIDTH": 2048}),
    ],
)
@pytest.mark.usefixtures("kept_kernels")
def test_kernels_compile_for_a_gpu(name: str, known: dict[str, int]) -> None:
    kinds = {"positions": "*i32", "slots": "*i32", "cache": "*fp16", "eps": "fp32", "num_saturated": "*i64"}
    if known.get("PARTS") or known.get("IS_SHORT"):
        kinds |= {"cache": "*u8", "ropes": "*bf16"}
    if name == "index_query_and_key":
        kinds |= dict.fromkeys(("rotated", "keys"), "*fp16")
    kinds |= dict.fromkeys(("value_scale", "alpha", "limit"), "fp32")
    kinds |= dict.fromkeys(("num_heads", "num_kv_heads", "width", "stride"), "i32")
    function = getattr(pointwise_kernels, name)
    types = {name: "constexpr" if name in known else kinds.get(name, "*fp32") for name in function.arg_names}
    compiled = triton.compile(ASTSource(function, types, constexprs=known), target=GPUTarget("cuda", 90, 32))
    assert compiled.metadata.shared <= 48 << 10


@pytest.mark.usefixtures("kept_kernels")
def test_the_program_for_images_compiles_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    exec(COMPILES_ONE, {})
    assert capsys.readouterr().out == "cubin True\n"

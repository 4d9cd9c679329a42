"""Our attention kernels against the plain way, by Triton's interpreter, and on a GPU if there is one; compiled for GPUs
that are not here.

Tolerance: from a float32 cache both sum float32 products of the same numbers in float32, on tensor cores with 2⁻²⁰ of
each left out. With a cache of half precision queries and weights are rounded to it, 2⁻¹¹ each.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ballast.model.hybrid.attention import paged, paged_fp8_kernels, paged_kernels
from ballast.model.hybrid.attention.attention import PlainAttention, largest_query
from ballast.model.hybrid.attention.paged import PagedAttention, Tiling, Tilings, attend_kernel, choose_tilings
from ballast.model.hybrid.attention.sizes import GroupedSizes, LatentSizes, Sizes
from devkit.kernels.attention_cases import AttentionCase, attention_case
from devkit.kernels.compiled import advice_of_assembler, compiled_for
from devkit.kernels.interpreted import interpreted
from devkit.kernels.short_rows import rounded_rows
from devkit.long import pairwise

R1 = LatentSizes(num_heads=128, rank=512, rope_dim=64, scale=0.1, block_tokens=32)
QWEN3 = GroupedSizes(num_heads=64, num_kv_heads=4, key_dim=128, v_dim=128, scale=0.1, block_tokens=32)
GPT_OSS = GroupedSizes(64, 8, 64, 64, 0.125, 32, 128, True)
MIMO = GroupedSizes(64, 8, 192, 128, 0.07, 32, 128, True)
SIZES = [R1, QWEN3, GPT_OSS, MIMO]
SMALL_TILES = Tilings(prompts=Tiling(32, 16, 4, 1), singles=Tiling(16, 16, 4, 1))
HALF_PRECISION = {"rtol": 2e-3, "atol": 4e-3}
TOLERANCES = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.float16: HALF_PRECISION,
    torch.uint8: HALF_PRECISION,  # numbers of 8 bits are exact in half precision
}


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the kernels run in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    monkeypatch.setattr(paged, "paged_kernels", interpreted(paged_kernels, monkeypatch))
    monkeypatch.setattr(paged, "paged_fp8_kernels", interpreted(paged_fp8_kernels, monkeypatch))
    return torch.device("cpu")


def check(attend: PagedAttention, case: AttentionCase) -> None:
    sinks = None
    if case.sizes.has_sinks:
        sinks = torch.linspace(-2, 3, case.sizes.num_heads, device=case.query.device)
    attend.prepare(case.step)
    expected = PlainAttention(case.sizes)(case.query, case.cache, case.step, sinks)
    found = attend(case.query, case.cache, case.step, sinks)
    torch.testing.assert_close(found, expected, **TOLERANCES[case.cache.dtype])


CASES = [
    (LatentSizes(4, 512, 64, 0.1, 16), [1, 1], [1, 90]),  # single tokens
    (LatentSizes(20, 64, 16, 0.1, 16), [1, 1, 1], [16, 17, 60]),
    (LatentSizes(3, 48, 24, 0.1, 16), [7, 1, 30], [7, 33, 61]),  # a prompt's begin, a single token, a later piece
    (LatentSizes(1, 20, 8, 0.1, 16), [40], [300]),
    (GroupedSizes(12, 2, 128, 128, 0.1, 16), [1, 1], [1, 90]),
    (GroupedSizes(6, 3, 128, 64, 0.1, 16), [7, 1, 30], [7, 33, 61]),
    (GroupedSizes(40, 2, 64, 64, 0.1, 16), [5, 1], [20, 17]),  # groups wider than a tile
    (GroupedSizes(3, 1, 96, 40, 0.2, 16), [20], [130]),  # keys in two parts
    # Windows and sinks: of gpt-oss, single tokens and prompts; a window of one token; MiMo's widths.
    (GroupedSizes(8, 1, 64, 64, 0.1, 16, 20, True), [1, 1, 1], [1, 21, 90]),
    (GroupedSizes(4, 2, 64, 64, 0.1, 16, 20, True), [7, 1, 50], [7, 33, 111]),
    (GroupedSizes(2, 2, 32, 32, 0.1, 16, 5), [60], [100]),
    (GroupedSizes(2, 1, 32, 32, 0.1, 16, 1, True), [3, 1], [40, 70]),
    (GroupedSizes(4, 1, 192, 128, 0.1, 16, 128, True), [40], [200]),
    (GroupedSizes(8, 2, 64, 64, 0.1, 16, None, True), [1, 30], [70, 30]),
    (GroupedSizes(2, 1, 32, 32, 0.1, 16, 500, True), [5, 1], [60, 3]),  # longer than the contexts
    (GroupedSizes(12, 2, 128, 128, 0.1, 16, 16), [18], [18]),  # six heads share keys, as in Laguna
]
"""Sizes, new tokens and lengths of requests."""


@pytest.mark.parametrize(
    ("sizes", "tokens", "lens", "num_processors", "dtype"),
    pairwise(CASES, [1, 20], [torch.float32, torch.float16]),
    ids=str,
)
def test_a_token_sees_its_own_request_up_to_itself(
    device, sizes: Sizes, tokens: list[int], lens: list[int], num_processors: int, dtype: torch.dtype
) -> None:
    check(PagedAttention(sizes, SMALL_TILES, num_processors), attention_case(sizes, tokens, lens, device, dtype))


SHORT_CASES = [
    (LatentSizes(4, 512, 64, 0.1, 16, is_short=True), [1, 1], [1, 90]),
    (LatentSizes(20, 64, 16, 0.1, 16, is_short=True), [1, 1, 1], [16, 17, 60]),  # one scale
    (LatentSizes(3, 256, 24, 0.1, 16, is_short=True), [7, 1, 30], [7, 33, 61]),
    (GroupedSizes(12, 2, 128, 128, 0.1, 16, is_short=True), [1, 1], [1, 90]),
    (GroupedSizes(6, 3, 128, 64, 0.1, 16, is_short=True), [7, 1, 30], [7, 33, 61]),
    (GroupedSizes(40, 2, 64, 64, 0.1, 16, is_short=True), [5, 1], [20, 17]),
    (GroupedSizes(3, 1, 96, 40, 0.2, 16, is_short=True), [20], [130]),
    (GroupedSizes(8, 1, 64, 64, 0.1, 16, 20, True, is_short=True), [1, 1, 1], [1, 21, 90]),
    (GroupedSizes(4, 2, 192, 128, 0.1, 16, 20, True, is_short=True), [7, 1, 50], [7, 33, 111]),
    (GroupedSizes(2, 1, 32, 32, 0.1, 16, 1, True, is_short=True), [3, 1], [40, 70]),
]


@pytest.mark.parametrize(("sizes", "tokens", "lens", "num_processors"), pairwise(SHORT_CASES, [1, 20]), ids=str)
def test_attention_in_8_bits_is_that_over_the_rounded_numbers(
    device, sizes: Sizes, tokens: list[int], lens: list[int], num_processors: int
) -> None:
    check(
        PagedAttention(sizes, SMALL_TILES, num_processors), attention_case(sizes, tokens, lens, device, torch.float16)
    )


@pytest.mark.parametrize("sizes", [SHORT_CASES[2][0], GroupedSizes(4, 2, 32, 64, 0.1, 16, is_short=True)], ids=str)
def test_scales_of_8_bits_may_be_as_large_and_as_small_as_any(device, sizes: Sizes) -> None:
    """Each head or part of a token has numbers of another size."""
    case = attention_case(sizes, [1, 9], [40, 30], device, torch.float16)
    rows, layout = torch.randn((len(case.cache), sizes.row_width), device=device), sizes.short_rows
    factors = torch.exp2(torch.linspace(-13, 11, len(rows), device=device))
    for index, part in enumerate(layout.parts):
        rows[:, part] *= factors.roll(7 * index)[:, None]
    case.query[:] *= 1e-3
    case = replace(case, cache=rounded_rows(rows, layout))
    attend = PagedAttention(sizes, SMALL_TILES, 1)
    attend.prepare(case.step)
    expected = PlainAttention(sizes)(case.query, case.cache, case.step)
    largest = expected.abs().amax(-1, keepdim=True)
    torch.testing.assert_close(
        attend(case.query, case.cache, case.step) / largest, expected / largest, **HALF_PRECISION
    )


def test_the_largest_query_meets_the_largest_keys(device) -> None:
    sizes = LatentSizes(2, 64, 16, scale=0.1, block_tokens=16)
    case = attention_case(sizes, [1, 1], [40, 5], device, torch.float16)
    case.query[0, 0, 3] = largest_query(sizes.scale, torch.float16)
    case.query[0, 1, 70] = -case.query[0, 0, 3]
    case.cache[::3] = torch.finfo(torch.float16).max
    check(PagedAttention(sizes, SMALL_TILES, 1), case)


def test_single_token_kernels_read_their_lengths_from_device_memory(device) -> None:
    sizes = LatentSizes(num_heads=3, rank=32, rope_dim=16, scale=0.2, block_tokens=16)
    attend = PagedAttention(sizes, SMALL_TILES, num_processors=20)
    planned = attention_case(sizes, [1, 1], [40, 80], device, torch.float32)
    attend.prepare(planned.step)
    later = attention_case(sizes, [1, 1], [70, 3], device, torch.float32, seed=1)
    blocks = planned.step.requests.blocks
    planned.step.requests.lens.copy_(later.step.requests.lens)
    blocks.zero_()[:, : later.step.requests.blocks.shape[1]] = later.step.requests.blocks
    found = attend(later.query, later.cache, planned.step)
    expected = PlainAttention(sizes)(later.query, later.cache, later.step)
    torch.testing.assert_close(found, expected, **TOLERANCES[torch.float32])


@pytest.mark.parametrize(
    ("sizes", "capability", "shared_bytes", "kind"),
    pairwise(
        [*SIZES, *(replace(each, is_short=True) for each in SIZES)],
        [(89, 99 << 10), (90, 227 << 10)],
        ["prompts", "singles"],
    ),
    ids=str,
)
@pytest.mark.usefixtures("kept_kernels")
def test_the_kernel_compiles_for_gpus_and_fits_their_shared_memory(sizes, capability, shared_bytes, kind) -> None:
    is_rounded = isinstance(sizes, LatentSizes) and kind == "prompts"
    kernel, known = attend_kernel(sizes, getattr(choose_tilings(sizes, shared_bytes), kind), rounds_first=is_rounded)
    query = "*fp16" if is_rounded else "*fp32"
    pointers = {"query": query, "cache": "*fp16", "sinks": "*fp32", "sums": "*fp32", "peaks": "*fp32", "scale": "fp32"}
    pointers |= {"words": "*i16", "scales": "*fp32", "ropes": "*bf16"}
    pointers |= dict.fromkeys(("tiles", "begins", "lens", "blocks"), "*i32")
    compiled = compiled_for(capability, kernel, known, pointers)
    assert compiled.metadata.shared <= shared_bytes
    assert "mma" in compiled.asm["ptx"], "products are made on tensor cores"
    if capability == 90:
        assert "serialized" not in advice_of_assembler(compiled, capability), "products are not serialized"


def test_unsupported_latent_sizes_are_rejected_with_the_size() -> None:
    with pytest.raises(ValueError, match=r"4096 \+ 64 numbers do not fit .* 232448 bytes"):
        choose_tilings(LatentSizes(128, 4096, 64, 0.1, 32), 227 << 10)

"""Attention outside the latent space against the plain way inside it, and its kernels against torch's operations: by
Triton's interpreter here, on the device where there is one.

Tolerances: from a float32 cache, sums in another order. From one of half precision, keys, values, queries, weights and
results are rounded to it, 2⁻¹¹ each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from ballast.model.hybrid.attention import expanded_kernels, late_flashinfer, triton_expanded
from ballast.model.hybrid.attention.attention import PlainAttention
from ballast.model.hybrid.attention.expanded import ExpandedAttention, ExpandedSizes, PlainExpandedKernels
from ballast.model.hybrid.attention.gpu import GpuAttention
from ballast.model.hybrid.attention.late_flashinfer import compiled_expansion, compiling_expansion
from ballast.model.hybrid.attention.paged import PagedAttention, choose_tilings
from ballast.model.hybrid.attention.sizes import LatentSizes
from ballast.model.hybrid.attention.triton_expanded import TritonExpandedKernels, checked_expansion, why_wrong
from ballast.model.hybrid.compiling.late_kernels import LateKernels
from ballast.model.hybrid.linear import FloatLinear
from ballast.model.switched_off import SwitchedOff
from devkit.kernels.attention_cases import attention_case
from devkit.kernels.interpreted import interpreted

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
SMALL = ExpandedSizes(num_heads=3, rank=32, nope_dim=20, rope_dim=8, v_dim=12, scale=0.2, block_tokens=16)
R1 = ExpandedSizes(num_heads=128, rank=512, nope_dim=128, rope_dim=64, v_dim=128, scale=0.07, block_tokens=32)
V2_LITE = ExpandedSizes(num_heads=16, rank=512, nope_dim=128, rope_dim=64, v_dim=128, scale=0.1, block_tokens=16)


def both(
    make: Callable[[torch.Tensor], ExpandedAttention],
    sizes: ExpandedSizes,
    tokens: int,
    length: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    is_short: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(outside the latent space, inside it) for the last `tokens` of a request; float32 [T, H, v_dim]. `dtype`: of the
    cache, or that in which numbers of 8 bits are multiplied."""
    rng = torch.Generator(device).manual_seed(1)
    k_up, v_up = (
        torch.randn(sizes.num_heads, *shape, generator=rng, device=device) / math.sqrt(shape[1])
        for shape in ((sizes.rank, sizes.nope_dim), (sizes.v_dim, sizes.rank))
    )
    latent = LatentSizes(sizes.num_heads, sizes.rank, sizes.rope_dim, sizes.scale, sizes.block_tokens, is_short)
    case = attention_case(latent, [tokens], [length], device, dtype)
    query = torch.randn(tokens, sizes.num_heads, sizes.nope_dim + sizes.rope_dim, generator=rng, device=device)
    attend = make(torch.zeros((), dtype=torch.int64, device=device))
    weights = attend.weights(FloatLinear(k_up), FloatLinear(v_up), dtype, device)
    found = attend((query * sizes.scale).to(dtype), weights, case.cache, case.step)
    absorbed = torch.einsum("thn,hrn->thr", query[..., : sizes.nope_dim], k_up)
    absorbed = torch.cat([absorbed, query[..., sizes.nope_dim :]], -1)
    attended = PlainAttention(latent)(absorbed, case.cache, case.step)
    return found, torch.einsum("thr,hvr->thv", attended, v_up)


@pytest.mark.parametrize(
    ("tokens", "length", "piece"), [(1, 1, 1), (5, 5, 100), (30, 100, 30), (30, 100, 33), (7, 64, 16), (16, 64, 16)]
)
def test_a_token_attends_to_its_request_up_to_itself_for_any_chunks(tokens: int, length: int, piece: int) -> None:
    def make(counted: torch.Tensor) -> ExpandedAttention:
        return ExpandedAttention(SMALL, PlainExpandedKernels(SMALL, counted), piece)

    found, expected = both(make, SMALL, tokens, length, CPU, torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_keys_are_expanded_from_a_cache_of_8_bits() -> None:
    def make(counted: torch.Tensor) -> ExpandedAttention:
        return ExpandedAttention(SMALL, PlainExpandedKernels(SMALL, counted), 33)

    found, expected = both(make, SMALL, 30, 100, CPU, torch.float32, is_short=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("has_cache_of_8_bits", [False, True])
def test_long_prompts_are_expanded_whatever_kernels_decode(
    monkeypatch: pytest.MonkeyPatch, has_cache_of_8_bits: bool
) -> None:
    """flashinfer's kernels of attention in the latent space take half precision only."""
    compiled: list[str] = []
    monkeypatch.setattr(late_flashinfer, "compile_latent", lambda _: compiled.append("latent"))
    monkeypatch.setattr(late_flashinfer, "compile_single_prefill", lambda _: compiled.append("expanded"))
    monkeypatch.setattr(late_flashinfer, "compiled_flashinfer", lambda sizes, *_: None if sizes.is_short else object())
    monkeypatch.setattr(late_flashinfer, "compiled_expansion", lambda sizes, *_: sizes)
    sizes = LatentSizes(128, 512, 64, R1.scale, R1.block_tokens, is_short=has_cache_of_8_bits)
    lane = GpuAttention(PagedAttention(sizes, choose_tilings(sizes, 227 << 10), 1))
    late, used, off = LateKernels(), [], SwitchedOff()
    late_flashinfer.LateFlashinfer(sizes, R1, CPU, off).use_in([lane], used.append, torch.zeros(()), 64, late)
    late.use_compiled(waits=True)
    assert used == [R1]
    assert compiled == (["expanded"] if has_cache_of_8_bits else ["latent", "expanded"])
    assert lane.has_flashinfer != has_cache_of_8_bits
    assert not off.reasons


@pytest.mark.gpu
@pytest.mark.flashinfer
@pytest.mark.parametrize("sizes", [R1, V2_LITE], ids=["128 heads", "16 heads"])
@pytest.mark.parametrize(
    ("tokens", "length", "piece"), [(1, 1, 64), (129, 129, 200), (300, 1601, 512), (256, 1024, 256)]
)
def test_flashinfer_attention_matches_the_reference(sizes: ExpandedSizes, tokens: int, length: int, piece: int) -> None:
    compiled = compiling_expansion(sizes, GPU)
    assert compiled is not None
    counted = torch.zeros((), dtype=torch.int64, device=GPU)
    attend = compiled_expansion(sizes, compiled, counted, piece, GPU, off := SwitchedOff())
    assert attend is not None, off.reasons
    found, expected = both(lambda _: attend, sizes, tokens, length, GPU, torch.float16)
    torch.testing.assert_close(found, expected, rtol=4e-3, atol=4e-3)


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the Triton kernels run in this test."""
    if request.param == "cuda":
        return GPU
    monkeypatch.setattr(triton_expanded, "expanded_kernels", interpreted(expanded_kernels, monkeypatch))
    return CPU


@pytest.mark.parametrize("sizes", [SMALL, replace(R1, num_heads=2)], ids=["odd", "as R1's"])
@pytest.mark.parametrize(("tokens", "length", "piece"), [(1, 1, 64), (129, 129, 200), (70, 301, 100)])
def test_triton_s_attention_matches_the_reference(
    device: torch.device, sizes: ExpandedSizes, tokens: int, length: int, piece: int
) -> None:
    def make(counted: torch.Tensor) -> ExpandedAttention:
        return ExpandedAttention(sizes, TritonExpandedKernels(sizes, counted), piece)

    found, expected = both(make, sizes, tokens, length, device, torch.float16)
    torch.testing.assert_close(found, expected, rtol=4e-3, atol=4e-3)


def test_triton_s_kernels_are_checked_before_use(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, off = torch.zeros((), dtype=torch.int64, device=device), SwitchedOff()
    assert checked_expansion(SMALL, counted, off, nullcontext) is not None
    assert not off.reasons

    def shifted(self: TritonExpandedKernels, values: torch.Tensor) -> torch.Tensor:
        return values.view(len(values), SMALL.num_heads, -1) + 1

    monkeypatch.setattr(TritonExpandedKernels, "values", shifted)
    assert checked_expansion(SMALL, counted, off, nullcontext) is None
    assert "averages differ" in off.reasons["expanded_attention"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_keys_values_and_merges_match_torch_operations(device: torch.device, dtype: torch.dtype) -> None:
    sizes = ExpandedSizes(num_heads=19, rank=32, nope_dim=20, rope_dim=8, v_dim=12, scale=0.2, block_tokens=16)
    rng = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng).to(device)

    nope, rows, values = some(5, 19 * 20).to(dtype), some(5, 40).to(dtype), some(5, 19 * 12).to(dtype)
    nope[0, 3], nope[4, 7], nope[1, 1], values[2, 5] = math.inf, -math.inf, math.nan, math.inf
    total, part = some(5, 19, 12), some(5, 19, 12).to(dtype)
    weight, part_weight = 20 * some(5, 19), 20 * some(5, 19)
    results = []
    for kind in (PlainExpandedKernels, TritonExpandedKernels):
        counted = torch.zeros((), dtype=torch.int64, device=device)
        way = kind(sizes, counted)
        own_total, own_weight = total.clone(), weight.clone()
        way.merge(own_total, own_weight, part, part_weight)
        keys = way.keys(nope.clone(), rows[:, 32:])
        results.append((keys, way.values(values.clone()), own_total, own_weight, counted))
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)
    assert int(results[0][-1]) == 3
    assert results[0][0].isnan().sum() == 1


def test_other_heads_stay_in_the_latent_space() -> None:
    assert compiling_expansion(SMALL, CPU) is None


def test_a_kernel_that_does_not_compile_is_reported_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(device: torch.device) -> None:
        raise RuntimeError("Ninja build failed\nmuch more")

    monkeypatch.setattr(late_flashinfer, "compile_single_prefill", refused)
    compiled = compiling_expansion(R1, CPU)
    assert compiled is not None
    assert compiled_expansion(R1, compiled, torch.zeros(()), 10, CPU, off := SwitchedOff()) is None
    assert off.reasons == {"flashinfer": "RuntimeError: Ninja build failed"}


def test_incorrect_kernels_are_detected() -> None:
    class Wrong(PlainExpandedKernels):
        def attend(self, query, keys, values, *, is_causal):
            averages, weights = super().attend(query, keys, values, is_causal=False)
            return averages, weights

    counted = torch.zeros((), dtype=torch.int64)
    small = ExpandedSizes(num_heads=2, rank=32, nope_dim=128, rope_dim=64, v_dim=128, scale=0.2, block_tokens=16)
    assert why_wrong(PlainExpandedKernels(small, counted), small, CPU) is None
    reason = why_wrong(Wrong(small, counted), small, CPU)
    assert reason is not None
    assert "averages differ" in reason

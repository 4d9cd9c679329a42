"""Which kernels compute attention on a GPU; and flashinfer's against the plain way, where there is a GPU.

Tolerance: queries, weights and results are rounded to half precision, 2⁻¹¹ each.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from ballast.model.batch import Batch
from ballast.model.hybrid.attention import gpu as module
from ballast.model.hybrid.attention.attention import PlainAttention
from ballast.model.hybrid.attention.flashinfer import FlashinferAttention
from ballast.model.hybrid.attention.flashinfer_grouped import is_long
from ballast.model.hybrid.attention.gpu import GpuAttention, compiled_flashinfer, paged_attention
from ballast.model.hybrid.attention.sizes import GroupedSizes, LatentSizes, Sizes
from ballast.model.hybrid.steps.slices import SliceSizes
from ballast.model.hybrid.steps.step import RequestTable, Step
from ballast.model.switched_off import SwitchedOff
from devkit.kernels.attention_cases import attention_case

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
R1 = LatentSizes(num_heads=128, rank=512, rope_dim=64, scale=0.1, block_tokens=32)
V2_LITE = LatentSizes(num_heads=16, rank=512, rope_dim=64, scale=0.1, block_tokens=16)
QWEN3 = GroupedSizes(num_heads=32, num_kv_heads=4, key_dim=128, v_dim=128, scale=0.1, block_tokens=32)
GLM = GroupedSizes(num_heads=96, num_kv_heads=8, key_dim=128, v_dim=128, scale=0.1, block_tokens=16)
TOLERANCE = {"rtol": 2e-3, "atol": 4e-3}
PROMPTS = ([5, 1, 130, 40], [70, 1, 130, 1100])


class Recorder(PlainAttention):
    """Notes what it was asked for."""

    def __init__(self, sizes: LatentSizes, most_tokens: int) -> None:
        super().__init__(sizes)
        self._most_tokens = most_tokens
        self.calls: list[str] = []

    def takes(self, requests: RequestTable) -> bool:
        return int(requests.host_begins[-1]) <= self._most_tokens

    def prepare(self, step: Step) -> None:
        self.calls.append("prepare")

    def __call__(
        self, query: torch.Tensor, cache: torch.Tensor, step: Step, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        self.calls.append("call")
        return super().__call__(query, cache, step, sinks)


@pytest.mark.parametrize(
    ("tokens", "is_ours"), [([1, 1], False), ([3, 1], False), ([9, 1], True)], ids=["single", "prompt", "too long"]
)
def test_flashinfer_computes_steps_that_its_plan_supports(tokens, is_ours) -> None:
    sizes = LatentSizes(num_heads=2, rank=16, rope_dim=8, scale=0.3, block_tokens=16)
    ours, theirs = Recorder(sizes, 0), Recorder(sizes, 8)
    attend = GpuAttention(ours, theirs)
    case = attention_case(sizes, tokens, [20, 30], CPU, torch.float32)
    attend.prepare(case.step)
    attend(case.query, case.cache, case.step)
    assert (ours if is_ours else theirs).calls == ["prepare", "call"]
    assert (theirs if is_ours else ours).calls == []


@pytest.mark.parametrize(
    ("tokens", "is_theirs"),
    [
        ([1] * 4, False),  # single tokens, which graphs hold
        ([31], False),
        ([32], True),
        ([512, 1, 1, 1, 1], True),
        ([64, 1, 1], False),
        ([4096], True),
        ([128] * 300, False),  # more tiles than a plan holds
    ],
)
def test_flashinfer_computes_heads_only_for_prompts(tokens: list[int], is_theirs: bool) -> None:
    begins = np.array([0, *np.cumsum(tokens)], np.int32)
    assert is_long(begins, num_heads=96) == is_theirs


def test_slices_are_planned_one_by_one_except_expanded_ones() -> None:
    sizes = LatentSizes(num_heads=2, rank=16, rope_dim=8, scale=0.3, block_tokens=16)
    ours, theirs = Recorder(sizes, 0), Recorder(sizes, 8)
    case = attention_case(sizes, [9, 30, 2], [20, 30, 30], CPU, torch.float32)
    tables = case.step.requests
    batch = Batch(
        token_ids=np.zeros(41, np.int32),
        positions=case.step.positions.numpy(),
        slots=case.step.slots.numpy(),
        query_indptr=tables.host_begins,
        kv_indptr=np.arange(0, tables.blocks.numel() + 1, tables.blocks.shape[1], dtype=np.int32),
        kv_indices=tables.blocks.flatten().numpy(),
        sampled=np.zeros(0, np.int64),
    )
    step = Step.from_batch(batch, CPU, SliceSizes(tokens=6, long_tokens=100, long_from=20))
    assert [(part.end - part.begin, part.is_long) for part in step.slices] == [
        (4, False),
        (5, False),
        (30, True),
        (2, False),
    ]
    GpuAttention(ours, theirs).prepare(step)
    assert (ours.calls, theirs.calls) == ([], ["prepare"] * 3)


@pytest.mark.gpu
@pytest.mark.flashinfer
@pytest.mark.parametrize("sizes", [V2_LITE, QWEN3], ids=str)
def test_flashinfer_keeps_a_plan_for_each_slice(sizes: Sizes) -> None:
    attend = compiled_flashinfer(sizes, GPU, SwitchedOff())
    assert attend is not None, "the warning says why"
    cases = [attention_case(sizes, [count], [length], GPU, torch.float16) for count, length in ((40, 900), (33, 35))]
    steps = [
        replace(case.step, requests=replace(case.step.requests, place=place)) for place, case in enumerate(cases, 1)
    ]
    for step in steps:
        attend.prepare(step)
    for case, step in zip(cases, steps, strict=True):
        expected = PlainAttention(sizes)(case.query, case.cache, case.step)
        torch.testing.assert_close(attend(case.query, case.cache, step), expected, **TOLERANCE)


def test_other_latents_are_computed_by_our_own_kernels(caplog) -> None:
    with caplog.at_level(logging.INFO):
        assert compiled_flashinfer(LatentSizes(4, 256, 64, 0.1, 32), CPU, off := SwitchedOff()) is None
    assert off.reasons == {}, "there are none to report"
    assert "none for latents of 256 + 64" in caplog.text


@pytest.mark.parametrize("sizes", [GroupedSizes(6, 2, 128, 64, 0.1, 32), GroupedSizes(6, 2, 96, 96, 0.1, 32)], ids=str)
def test_heads_of_other_widths_are_computed_by_our_own_kernels(sizes: GroupedSizes, caplog) -> None:
    with caplog.at_level(logging.INFO):
        assert compiled_flashinfer(sizes, CPU, off := SwitchedOff()) is None
    assert off.reasons == {}
    assert f"none for heads of {sizes.key_dim} and {sizes.v_dim}" in caplog.text


def test_without_flashinfer_a_reason_lists_the_requirements(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    assert compiled_flashinfer(R1, CPU, off := SwitchedOff()) is None
    assert "extra [cuda]" in off.reasons["flashinfer"]


def test_after_a_failed_compilation_own_kernels_are_used_with_a_reason(monkeypatch) -> None:
    def without_nvcc(sizes: LatentSizes, device: torch.device) -> FlashinferAttention:
        raise RuntimeError("Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist")

    monkeypatch.setattr(module, "FlashinferAttention", without_nvcc)
    assert compiled_flashinfer(R1, CPU, off := SwitchedOff()) is None
    assert "Could not find nvcc" in off.reasons["flashinfer"]


@pytest.mark.parametrize("failure", [torch.AcceleratorError, torch.OutOfMemoryError])
def test_a_lost_or_full_device_is_not_reported_as_missing_flashinfer(failure, monkeypatch) -> None:
    def failing(sizes: LatentSizes, device: torch.device) -> FlashinferAttention:
        raise failure("CUDA error: on demand")

    monkeypatch.setattr(module, "FlashinferAttention", failing)
    with pytest.raises(failure):
        compiled_flashinfer(R1, CPU, SwitchedOff())


@pytest.mark.gpu
def test_where_nvcc_is_missing_our_own_kernels_serve(tmp_path) -> None:
    program = """
import sys, torch
from ballast.model.hybrid.attention.gpu import compiled_flashinfer
from ballast.model.hybrid.attention.sizes import LatentSizes
from ballast.model.switched_off import SwitchedOff
sizes = LatentSizes(16, 512, 64, 0.1, 32)
sys.exit(0 if compiled_flashinfer(sizes, torch.device("cuda:0"), SwitchedOff()) is None else 3)
"""
    environment = os.environ | {"CUDA_HOME": str(tmp_path), "FLASHINFER_WORKSPACE_BASE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("attention uses Ballast's kernels") == 1


@pytest.mark.gpu
@pytest.mark.flashinfer
@pytest.mark.parametrize("sizes", [R1, V2_LITE], ids=["128 heads", "16 heads"])
@pytest.mark.parametrize(("tokens", "lens"), [([1], [1]), ([1] * 5, [1, 31, 32, 33, 4000]), PROMPTS, ([600], [600])])
def test_flashinfer_attention_matches_the_reference(sizes, tokens, lens) -> None:
    attend = compiled_flashinfer(sizes, GPU, SwitchedOff())
    assert attend is not None, "the warning says why"
    case = attention_case(sizes, tokens, lens, GPU, torch.float16)
    attend.prepare(case.step)
    expected = PlainAttention(sizes)(case.query, case.cache, case.step)
    torch.testing.assert_close(attend(case.query, case.cache, case.step), expected, **TOLERANCE)


@pytest.mark.gpu
@pytest.mark.flashinfer
@pytest.mark.parametrize("sizes", [QWEN3, GLM], ids=["Qwen3", "GLM"])
@pytest.mark.parametrize(("tokens", "lens"), [PROMPTS, ([600], [600]), ([32], [5000]), ([300, 1, 1], [300, 4000, 1])])
def test_flashinfer_attention_to_heads_matches_the_reference(sizes, tokens, lens) -> None:
    attend = compiled_flashinfer(sizes, GPU, SwitchedOff())
    assert attend is not None, "the warning says why"
    case = attention_case(sizes, tokens, lens, GPU, torch.float16)
    assert attend.takes(case.step.requests)
    attend.prepare(case.step)
    expected = PlainAttention(sizes)(case.query, case.cache, case.step)
    torch.testing.assert_close(attend(case.query, case.cache, case.step), expected, **TOLERANCE)


@pytest.mark.gpu
@pytest.mark.parametrize(("tokens", "lens"), [([1] * 5, [1, 31, 32, 33, 4000]), PROMPTS, ([600], [1600])])
@pytest.mark.parametrize("sizes", [QWEN3, GLM], ids=["Qwen3", "GLM"])
def test_own_kernels_attention_to_heads_matches_the_reference(sizes, tokens, lens) -> None:
    attend = paged_attention(sizes, GPU)
    case = attention_case(sizes, tokens, lens, GPU, torch.float16)
    attend.prepare(case.step)
    expected = PlainAttention(sizes)(case.query, case.cache, case.step)
    torch.testing.assert_close(attend(case.query, case.cache, case.step), expected, **TOLERANCE)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        *(
            pytest.param(partial(compiled_flashinfer, off=SwitchedOff()), sizes, marks=pytest.mark.flashinfer)
            for sizes in (R1, V2_LITE)
        ),
        *((paged_attention, sizes) for sizes in (R1, V2_LITE, QWEN3, GLM)),
    ],
)
def test_a_captured_step_of_single_tokens_follows_the_tables(make, sizes) -> None:
    attend = make(sizes, GPU)
    case = attention_case(sizes, [1] * 3, [4000, 90, 700], GPU, torch.float16)
    attend.prepare(case.step)
    attend(case.query, case.cache, case.step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attended = attend(case.query, case.cache, case.step)
    requests = case.step.requests
    num_blocks = len(case.cache) // sizes.block_tokens
    for lens in ([1, 1, 1], [3999, 64, 2000]):
        requests.host_lens[:] = lens
        requests.lens.copy_(torch.tensor(lens))
        case.step.positions.copy_(torch.tensor(lens) - 1)
        requests.blocks.copy_(torch.arange(requests.blocks.numel()).view_as(requests.blocks) * 7 % num_blocks)
        attend.prepare(case.step)
        graph.replay()
        torch.testing.assert_close(attended, PlainAttention(sizes)(case.query, case.cache, case.step), **TOLERANCE)

"""Scales of experts follow them to a device: copied there, seen in host memory, or chunk by chunk. By Triton's
interpreter here, on the device where there is one.

Tolerance: that of test_expert_panels.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T

from ballast._core import kernels
from ballast._core.numa import ANY_CPU, NodeThreads, Placement
from ballast.model.hybrid.experts.device_layers import place_experts
from ballast.model.hybrid.experts.products import (
    combine_kernels,
    expert_panels,
    grouped_int_gemm,
    grouped_int_gemm_kernels,
)
from ballast.model.hybrid.experts.products.expert_panels import ExpertPanels
from ballast.model.hybrid.experts.products.expert_sums import ExpertSums
from ballast.model.hybrid.panels.matmul import MAX_GEMV_TOKENS
from ballast.model.hybrid.panels.panel_linear import PanelLinear
from ballast.model.hybrid.panels.stack import PanelStack, scales_on
from ballast.model.hybrid.streaming import chunks
from ballast.model.hybrid.streaming.host_memory import panels_of
from devkit.kernels.interpreted import interpreted
from devkit.models.random_blocks import dequantized, random_blocks, random_scales, scaled
from devkit.models.streamed_on import streamed_on

FAST = kernels.usable_isas()[0]
CPU = torch.device("cpu")
NUM_EXPERTS, HIDDEN, WIDTH = 5, 64, 192
IDS = np.array([[4], [1]], np.int32)
Scaled = tuple[kernels.Experts, list[np.ndarray]]


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device of the experts in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    monkeypatch.setattr(
        grouped_int_gemm, "grouped_int_gemm_kernels", interpreted(grouped_int_gemm_kernels, monkeypatch)
    )
    monkeypatch.setattr(expert_panels, "combine_kernels", interpreted(combine_kernels, monkeypatch))
    return CPU


apart = pytest.mark.parametrize("experts", ["apart"], indirect=True)
fused = pytest.mark.parametrize("experts", ["fused"], indirect=True)


@pytest.fixture
def experts(request: pytest.FixtureRequest, rng: np.random.Generator) -> Scaled:
    """Experts of NVFP4 on two made-up nodes, with gate, up and down [E, rows, cols]; of the fused ones gate and up have
    their scales together."""
    shapes = [(2 * WIDTH, HIDDEN)] if request.param == "fused" else [(WIDTH, HIDDEN)] * 2
    made = []
    for rows, cols in (*shapes, (HIDDEN, WIDTH)):
        data, scales = random_blocks(rng, T.NVFP4, NUM_EXPERTS * rows, cols), random_scales(rng, T.NVFP4, NUM_EXPERTS)
        matrix = kernels.Matrix(data, T.NVFP4, NUM_EXPERTS * rows, cols, scales)
        np.testing.assert_array_equal(matrix.scales, scales)
        made.append((matrix, scaled(dequantized(data, T.NVFP4).reshape(NUM_EXPERTS, rows, cols), scales)))
    of_file = kernels.Experts.fused if request.param == "fused" else kernels.Experts
    pool = kernels.ThreadPool(Placement([NodeThreads(200 + node, [ANY_CPU]) for node in range(2)]))
    packed = of_file(*(matrix for matrix, _ in made), NUM_EXPERTS).packed(pool, FAST, activation_bytes=1)
    assert len(packed.parts) == 2
    *first, down = (weights for _, weights in made)
    gate, up = np.split(first[0], 2, 1) if request.param == "fused" else first
    return packed, [gate, up, down]


def tokens_for(rng: np.random.Generator, device: torch.device) -> list[torch.Tensor]:
    """x, the experts chosen, and their weights."""
    x = rng.standard_normal((len(IDS), HIDDEN), dtype=np.float32)
    return [torch.from_numpy(values).to(device) for values in (x, IDS, rng.random(IDS.shape, dtype=np.float32))]


def check(found: torch.Tensor, given: list[torch.Tensor], matrices: list[np.ndarray], here: set[int]) -> None:
    """`here`: the experts that are computed."""
    gate, up, down = matrices
    x, ids, weights = (values.cpu().numpy() for values in given)
    tolerance = 2.0**-13 if len(ids) <= MAX_GEMV_TOKENS else 2.0**-9
    for token, chosen in enumerate(ids):
        expected = np.zeros(HIDDEN)
        for expert, weight in zip(chosen, weights[token], strict=True):
            if expert in here:
                gated = gate[expert] @ x[token]
                expected += weight * (down[expert] @ (gated / (1 + np.exp(-gated)) * (up[expert] @ x[token])))
        assert np.linalg.norm(found[token].cpu().numpy() - expected) <= tolerance * np.linalg.norm(expected), token


@apart
@pytest.mark.parametrize("ids_there", [(0, 4), (4,), tuple(range(NUM_EXPERTS))])
def test_scales_are_copied_to_a_device_with_their_experts(rng, device, experts, ids_there: tuple[int, ...]) -> None:
    packed, matrices = experts
    layer = place_experts(packed, ids_there, ExpertPanels, device, is_readable=False)
    x, ids, weights = tokens_for(rng, device)
    assert layer.slots is not None
    slots = layer.slots[ids.long()]
    found = torch.stack([part(x, slots, weights) for part in layer.gpu_experts]).sum(0)
    check(found, [x, ids, weights], matrices, set(ids_there))


@apart
def test_experts_in_host_memory_have_their_scales_on_the_device(rng, experts, monkeypatch) -> None:
    """On a GPU the memory would have to be pinned: test_host_memory.py."""
    monkeypatch.setattr(
        grouped_int_gemm, "grouped_int_gemm_kernels", interpreted(grouped_int_gemm_kernels, monkeypatch)
    )
    monkeypatch.setattr(expert_panels, "combine_kernels", interpreted(combine_kernels, monkeypatch))
    packed, matrices = experts
    layer = place_experts(packed, [], ExpertPanels, CPU, is_readable=True)
    given = tokens_for(rng, CPU)
    check(torch.stack([part(*given) for part in layer.across]).sum(0), given, matrices, set(range(NUM_EXPERTS)))


@fused
def test_scales_of_a_chunk_are_copied_with_it(rng, device, experts, monkeypatch) -> None:
    packed, matrices = experts
    parts = panels_of(packed)
    monkeypatch.setattr(chunks, "MAX_CHUNK_BYTES", 2 * parts[0].expert_bytes)
    streamed = streamed_on([parts], ExpertSums, device)
    assert streamed.num_chunks > len(parts)
    given = tokens_for(rng, device)
    streamed.begin(len(IDS))
    streamed.submit(0, *given)
    check(streamed.result(0), given, matrices, set(range(NUM_EXPERTS)))
    streamed.wait()


def test_a_scale_that_no_kernel_would_apply_is_refused(rng, pool) -> None:
    one = np.ones(1, np.float32)
    data = random_blocks(rng, T.Q8_0, 16, 32)
    packed = kernels.pack(pool, kernels.Matrix(data, T.Q8_0, 16, 32, one), FAST, activation_bytes=1)
    with pytest.raises(ValueError, match="a matrix of Q8_0 has scales"):
        PanelLinear(packed, 16, 32, is_transposed=False, device=CPU)
    nothing = torch.empty(0, dtype=torch.uint8)
    with pytest.raises(ValueError, match="0 matrices Q8_0 have 0 scales"):
        PanelStack(nothing, T.Q8_0, 0, 16, 32, torch.ones(1))
    with pytest.raises(ValueError, match="0 matrices NVFP4 have 0 scales"):
        PanelStack(nothing, T.NVFP4, 0, 16, 64, torch.ones(1))
    assert scales_on(CPU, np.empty(0, np.float32), T.NVFP4, 3).tolist() == [1, 1, 1]

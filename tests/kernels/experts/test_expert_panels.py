"""Routed experts on a GPU: run by Triton's interpreter here, on the device where there is one.

Tolerance: both factors of a product are rounded to half precision, by 2⁻¹¹ of themselves at most. These errors are of
either sign, so about 2⁻¹¹ of the length of a sum's vector is left, more if few products dominate; a factor of four for
that and for three such sums in a row. Up to four tokens have products of float32 or exact codes: 2⁻¹³.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T

from ballast.model.hybrid.experts.products import (
    combine_kernels,
    expert_panels,
    grouped_int_gemm,
    grouped_int_gemm_kernels,
)
from ballast.model.hybrid.experts.products.expert_panels import ExpertPanels, PanelStack, group_by_expert
from ballast.model.hybrid.panels import bf16_split_kernels, dequant_gemm_kernels, gemv_kernels, half_kernels, matmul
from ballast.model.hybrid.panels.matmul import MAX_GEMV_TOKENS
from devkit.kernels.interpreted import interpreted
from devkit.kernels.panel_stacks import NUM_EXPERTS, stack_of
from devkit.long import spread

HIDDEN, WIDTH = 256, 256


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where ExpertPanels computes in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    monkeypatch.setattr(matmul, "gemv_kernels", interpreted(gemv_kernels, monkeypatch))
    monkeypatch.setattr(matmul, "bf16_split_kernels", interpreted(bf16_split_kernels, monkeypatch))
    monkeypatch.setattr(matmul, "half_kernels", interpreted(half_kernels, monkeypatch))
    monkeypatch.setattr(matmul, "dequant_gemm_kernels", interpreted(dequant_gemm_kernels, monkeypatch))
    monkeypatch.setattr(
        grouped_int_gemm, "grouped_int_gemm_kernels", interpreted(grouped_int_gemm_kernels, monkeypatch)
    )
    monkeypatch.setattr(expert_panels, "combine_kernels", interpreted(combine_kernels, monkeypatch))
    return torch.device("cpu")


def experts_of(rng, pool, kinds: tuple[T, T, T], device: torch.device) -> tuple[ExpertPanels, list[np.ndarray]]:
    shapes = ((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
    stacks, weights = zip(
        *(stack_of(rng, pool, kind, *shape, device) for kind, shape in zip(kinds, shapes, strict=True)), strict=True
    )
    return ExpertPanels(*stacks), list(weights)


def check(rng, experts: ExpertPanels, matrices: list[np.ndarray], ids: np.ndarray, device: torch.device) -> None:
    gate, up, down = matrices
    x = rng.standard_normal((len(ids), HIDDEN), dtype=np.float32)
    weights = rng.random(ids.shape, dtype=np.float32)
    on_device = [torch.from_numpy(values).to(device) for values in (x, ids.astype(np.int32), weights)]
    found = experts(*on_device).cpu().numpy()
    tolerance = 2.0**-13 if len(ids) <= MAX_GEMV_TOKENS else 2.0**-9
    for token, chosen in enumerate(ids):
        expected = np.zeros(HIDDEN)
        for expert, weight in zip(chosen, weights[token], strict=True):
            if 0 <= expert < NUM_EXPERTS:
                gated = gate[expert] @ x[token]
                hidden = gated / (1 + np.exp(-gated)) * (up[expert] @ x[token])
                expected += weight * (down[expert] @ hidden)
        assert np.linalg.norm(found[token] - expected) <= tolerance * np.linalg.norm(expected), token


FEW = {"two tokens": [[2, -1], [NUM_EXPERTS, 2]], "five tokens": [[0, 1], [-1, 1], [1, -1], [-1, -1], [1, 5]]}
"""The experts of each token; some are elsewhere. With more than four tokens, another kernel multiplies."""
KINDS = {
    "-".join(kind.name for kind in kinds): kinds
    for kinds in (
        (T.Q4_K, T.Q5_K, T.Q6_K),
        (T.Q2_K, T.Q3_K, T.Q3_K),
        (T.IQ4_XS, T.IQ4_NL, T.Q5_K),
        (T.Q8_0, T.BF16, T.F32),
        (T.MXFP4, T.MXFP4, T.Q6_K),
        (T.NVFP4, T.MXFP4, T.NVFP4),
        (T.TQ1_0, T.TQ2_0, T.TQ1_0),
    )
}


# Both kernels multiply every format in tests/kernels/linear/test_panel_linear.py.
@pytest.mark.parametrize(("kinds", "tokens"), spread(list(KINDS), list(FEW)))
def test_few_tokens_sum_their_local_experts_of_different_types(rng, pool, device, kinds, tokens) -> None:
    experts, matrices = experts_of(rng, pool, KINDS[kinds], device)
    check(rng, experts, matrices, np.array(FEW[tokens]), device)


def test_a_few_tokens_sum_their_experts_of_exact_codes(rng, pool, device, monkeypatch) -> None:
    monkeypatch.setattr(grouped_int_gemm, "_WANTED_PROGRAMS", 1)
    experts, matrices = experts_of(rng, pool, (T.Q4_K, T.Q4_K, T.Q6_K), device)
    check(rng, experts, matrices, np.array([[2, -1], [NUM_EXPERTS, 2]]), device)


@pytest.mark.parametrize("choice", ["all to one expert", "one expert empty", "none here"])
def test_many_tokens_are_grouped_by_expert(rng, pool, device, monkeypatch, choice) -> None:
    monkeypatch.setattr(grouped_int_gemm, "MAX_TOKENS", 4)
    experts, matrices = experts_of(rng, pool, (T.Q4_K, T.Q4_K, T.Q6_K), device)
    ids = {
        "all to one expert": np.stack([np.full(70, 1), np.full(70, -1)], 1),
        "one expert empty": np.stack([rng.choice([0, 2], 70), np.full(70, NUM_EXPERTS)], 1),
        "none here": np.full((17, 2), -1),
    }[choice]
    check(rng, experts, matrices, ids, device)


def test_more_tokens_than_the_limit_are_split(rng, pool, device, monkeypatch) -> None:
    experts, matrices = experts_of(rng, pool, (T.Q8_0, T.BF16, T.F32), device)
    monkeypatch.setattr(expert_panels, "PRODUCT_TOKENS", 9)
    check(rng, experts, matrices, np.stack([rng.permutation(NUM_EXPERTS + 1)[:2] for _ in range(20)]), device)


def test_a_pair_is_in_one_tile_of_its_expert(rng) -> None:
    for num_tokens, num_experts in ((1, 4), (16, 4), (200, 4), (500, 40)):
        chosen = np.argsort(rng.random((num_tokens, num_experts + 2)), 1)[:, :3].astype(np.int32) - 1
        groups = group_by_expert(torch.from_numpy(chosen), num_experts)
        seen = []
        for expert, begin, end in groups.tiles.tolist():
            pairs = groups.order[begin:end].tolist()
            assert len(pairs) <= groups.block
            assert all(chosen.reshape(-1)[pair] == expert for pair in pairs)
            seen += pairs
        flat = chosen.reshape(-1)
        assert sorted(seen) == np.flatnonzero((flat >= 0) & (flat < num_experts)).tolist()


def test_incompatible_stacks_are_rejected(rng, pool) -> None:
    device = torch.device("cpu")
    gate, _ = stack_of(rng, pool, T.Q4_K, WIDTH, HIDDEN, device)
    down, _ = stack_of(rng, pool, T.Q4_K, HIDDEN, 2 * WIDTH, device)
    with pytest.raises(ValueError, match="do not match down"):
        ExpertPanels(gate, gate, down)
    with pytest.raises(ValueError, match="are packed into"):
        PanelStack(gate.packed[1:], T.Q4_K, NUM_EXPERTS, WIDTH, HIDDEN)

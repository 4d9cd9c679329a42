"""Units and biases of experts on a GPU: run by Triton's interpreter here, on the device where there is one.

Tolerance: that of test_expert_panels.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T
from numpy.typing import NDArray

from ballast.families.architecture import ClampedSilu, ClampedSwiglu, Unit
from ballast.model.hybrid.experts.products import (
    combine_kernels,
    expert_panels,
    grouped_int_gemm,
    grouped_int_gemm_kernels,
    many_pairs_kernels,
    pair_sizes,
    pair_sums,
)
from ballast.model.hybrid.experts.products.expert_panels import ExpertPanels
from ballast.model.hybrid.experts.products.expert_sums import ExpertSums
from ballast.model.hybrid.experts.products.grouped_int_gemm import grouped_kernel
from ballast.model.hybrid.panels import bf16_split_kernels, dequant_gemm_kernels, gemv_kernels, half_kernels, matmul
from ballast.model.hybrid.panels.matmul import MAX_GEMV_TOKENS
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.panels.unit import ExpertUnit
from devkit.kernels.compiled import compiled_for
from devkit.kernels.interpreted import interpreted
from devkit.kernels.panel_stacks import NUM_EXPERTS, stack_of
from devkit.long import spread

HIDDEN, WIDTH = 288, 96
"""Groups of 32 columns that no power of two divides, as gpt-oss has 90."""
F32 = NDArray[np.float32]
UNITS = {"swiglu": ClampedSwiglu(1.702, 0.7), "silu": ClampedSilu(0.3), "input": ClampedSilu(0.6, True), "none": None}
"""Limits that some products reach."""


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the kernels run in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    for user, name, kernels in (
        (matmul, "gemv_kernels", gemv_kernels),
        (matmul, "bf16_split_kernels", bf16_split_kernels),
        (matmul, "dequant_gemm_kernels", dequant_gemm_kernels),
        (matmul, "half_kernels", half_kernels),
        (grouped_int_gemm, "grouped_int_gemm_kernels", grouped_int_gemm_kernels),
        (expert_panels, "combine_kernels", combine_kernels),
        (pair_sums, "many_pairs_kernels", many_pairs_kernels),
    ):
        monkeypatch.setattr(user, name, interpreted(kernels, monkeypatch))
    return torch.device("cpu")


class Case:
    """Experts with random matrices and biases, and tokens that select them and experts elsewhere."""

    def __init__(
        self, rng: np.random.Generator, pool, kinds: tuple[T, T, T], unit: Unit | None, device: torch.device
    ) -> None:
        shapes = ((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
        made = [stack_of(rng, pool, kind, *shape, device) for kind, shape in zip(kinds, shapes, strict=True)]
        self.stacks: list[PanelStack] = [stack for stack, _ in made]
        self.matrices: list[F32] = [weights for _, weights in made]
        self.biases: list[F32] = [rng.standard_normal((NUM_EXPERTS, rows), np.float32) for rows, _ in shapes]
        self.unit = ExpertUnit(unit, *(torch.from_numpy(bias).to(device) for bias in self.biases))
        self.device = device
        self.rng = rng

    def tokens(self, num_tokens: int) -> tuple[F32, NDArray[np.int32], F32]:
        chosen = np.argsort(self.rng.random((num_tokens, NUM_EXPERTS + 2)), 1)[:, :2].astype(np.int32) - 1
        x = self.rng.standard_normal((num_tokens, HIDDEN), np.float32)
        return x, chosen, self.rng.random(chosen.shape, np.float32)

    def sent(self, given: tuple[F32, NDArray[np.int32], F32]) -> list[torch.Tensor]:
        return [torch.from_numpy(values).to(self.device) for values in given]

    def check(self, found: torch.Tensor, given: tuple[F32, NDArray[np.int32], F32]) -> None:
        gate, up, down = self.matrices
        num_clamped, tolerance = 0, 2.0**-13 if len(found) <= MAX_GEMV_TOKENS else 2.0**-9
        for x, chosen, weights, result in zip(*given, found.cpu().numpy(), strict=True):
            expected = np.zeros(HIDDEN)
            for expert, weight in zip(chosen, weights, strict=True):
                if 0 <= expert < NUM_EXPERTS:
                    gates, ups = gate[expert] @ x + self.biases[0][expert], up[expert] @ x + self.biases[1][expert]
                    hidden, is_clamped = unit_of(gates, ups, self.unit.unit)
                    num_clamped += is_clamped
                    expected += weight * (down[expert] @ hidden + self.biases[2][expert])
            assert np.linalg.norm(result - expected) <= tolerance * np.linalg.norm(expected) + 1e-6
        assert (num_clamped > 0) == (self.unit.unit is not None)


def unit_of(gate: F32, up: F32, unit: Unit | None) -> tuple[F32, bool]:
    """The unit, and whether it has clamped anything."""
    if unit is None:
        return gate / (1 + np.exp(-gate)) * up, False
    bounded = up.clip(-unit.limit, unit.limit)
    if isinstance(unit, ClampedSwiglu):
        clamped = gate.clip(max=unit.limit)
        return clamped / (1 + np.exp(-unit.alpha * clamped)) * (bounded + 1), bool((gate > unit.limit).any())
    if unit.limits_input:
        clamped = gate.clip(max=unit.limit)
        return clamped / (1 + np.exp(-clamped)) * bounded, bool((gate > unit.limit).any())
    silu = gate / (1 + np.exp(-gate))
    return silu.clip(max=unit.limit) * bounded, bool((silu > unit.limit).any())


KINDS = {"codes": (T.MXFP4, T.MXFP4, T.MXFP4), "mixed": (T.Q5_0, T.Q8_0, T.Q8_0)}


@pytest.mark.parametrize(("kinds", "unit"), spread(list(KINDS), list(UNITS)))
def test_few_tokens(rng, pool, device, kinds, unit) -> None:
    case = Case(rng, pool, KINDS[kinds], UNITS[unit], device)
    for num_tokens in (1, 3):
        given = case.tokens(num_tokens)
        case.check(ExpertPanels(*case.stacks, unit=case.unit)(*case.sent(given)), given)


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_many_tokens(rng, pool, device, monkeypatch, unit) -> None:
    monkeypatch.setattr(grouped_int_gemm, "MAX_TOKENS", 4)
    case = Case(rng, pool, (T.MXFP4, T.MXFP4, T.MXFP4), unit, device)
    given = case.tokens(20)
    case.check(ExpertPanels(*case.stacks, unit=case.unit)(*case.sent(given)), given)


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_experts_that_are_decoded_for_all_their_tokens(rng, pool, device, monkeypatch, unit) -> None:
    monkeypatch.setattr(pair_sizes, "MIN_PAIRS", 1)
    case = Case(rng, pool, (T.MXFP4, T.MXFP4, T.MXFP4), unit, device)
    given = case.tokens(40)
    case.check(ExpertPanels(*case.stacks, unit=case.unit)(*case.sent(given)), given)


def test_chunks_of_experts_have_their_own_biases(rng, pool, device, monkeypatch) -> None:
    monkeypatch.setattr(pair_sizes, "MIN_PAIRS", 1)
    case = Case(rng, pool, (T.MXFP4, T.MXFP4, T.MXFP4), UNITS["swiglu"], device)
    given = case.tokens(30)
    sums = ExpertSums(*case.sent(given), NUM_EXPERTS)
    for first in range(NUM_EXPERTS):
        one = slice(first, first + 1)
        stacks = [
            PanelStack(stack.packed.view(NUM_EXPERTS, -1)[one].contiguous(), stack.ggml_type, 1, stack.rows, stack.cols)
            for stack in case.stacks
        ]
        biases = (case.unit.gate_bias, case.unit.up_bias, case.unit.down_bias)
        sums.add(first, *stacks, unit=ExpertUnit(case.unit.unit, *(bias[one].contiguous() for bias in biases)))
    case.check(sums.total, given)


COMPILED = {
    "combine": (combine_kernels.combine_experts, {"HAS_BIAS": True, "PAIRS": 4, "BLOCK": 1024}),
    "apply": (combine_kernels.apply_unit, {"BLOCK": 1024}),
    "gated pairs": (
        many_pairs_kernels.gated_pairs,
        {"LINES": 32, "BLOCK": 128, "ROWS": 128, "COLS": 64, "num_warps": 8},
    ),
    "add pairs": (
        many_pairs_kernels.add_pairs,
        {"HAS_BIAS": True, "BLOCK": 128, "ROWS": 128, "COLS": 64, "num_warps": 8},
    ),
    "exact codes": (
        grouped_int_gemm_kernels.grouped_int_gemm,
        grouped_kernel(T.MXFP4, 4, has_up=True, is_split=True).known,
    ),
}


@pytest.mark.parametrize(("name", "unit"), spread(list(COMPILED), [1, 2]))
@pytest.mark.usefixtures("kept_kernels")
def test_kernels_compile_for_a_gpu(name, unit) -> None:
    function, known = COMPILED[name]
    of_units = {"UNIT": unit, "HAS_BIASES": True}
    known = {
        **known,
        **({"IS_SPLIT": True} if "IS_SPLIT" in function.arg_names else {}),
        **{name: value for name, value in of_units.items() if name in function.arg_names},
    }
    floats = ("pairs", "weights", "bias", "out", "gate", "up", "gate_bias", "up_bias", "shares", "sums", "totals")
    types = dict.fromkeys((*floats, "out_totals", "partial", "scales", "up_scales"), "*fp32")
    types |= dict.fromkeys(("ids", "order", "begins", "words", "up_words", "points", "tiles", "arrived"), "*i32")
    types |= dict.fromkeys(("halves", "up_halves"), "*fp16") | {"alpha": "fp32", "limit": "fp32"}
    types |= dict.fromkeys(("x", "hidden"), "*fp16") | {"terms": "*bf16"}
    if function in (many_pairs_kernels.gated_pairs, many_pairs_kernels.add_pairs):
        types["weights"] = "*fp16"
    if function is grouped_int_gemm_kernels.grouped_int_gemm:
        types["out"] = "*bf16"
    assert compiled_for(90, function, known, types).asm["ptx"]

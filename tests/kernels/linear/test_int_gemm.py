"""Products with exact codes on tensor cores: run by Triton's interpreter here, on the device where there is one, and
compiled for GPUs that are not here.

Tolerance: activations are two bfloat16 terms, which lose 2⁻¹⁸ of them; codes are exact, but 128 more than they are,
so that sums in float32 lose some more. 2⁻¹⁶ · Σ|wᵢ xᵢ| is a third of what products of rounded weights are held to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import triton
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.errors import OutOfResources

from ballast._core import kernels
from ballast.errors import EngineDeadError
from ballast.host.startup.measurements import Measurements
from ballast.model.hybrid.panels import (
    bf16_split_kernels,
    dequant_gemm_kernels,
    gemv_kernels,
    half_kernels,
    int_gemm,
    int_gemm_kernels,
    matmul,
)
from ballast.model.hybrid.panels.autotune import autotune
from ballast.model.hybrid.panels.int_gemm import int_gemm_kernel
from ballast.model.hybrid.panels.layout import LAYOUTS
from ballast.model.hybrid.panels.panel_linear import PanelLinear
from ballast.model.switched_off import SwitchedOff
from devkit.kernels.interpreted import interpreted
from devkit.long import if_long
from devkit.models.random_blocks import dequantized, random_blocks, random_scales, scaled

FAST = kernels.usable_isas()[0]


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where PanelLinear computes in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    monkeypatch.setattr(int_gemm, "int_gemm_kernels", interpreted(int_gemm_kernels, monkeypatch))
    monkeypatch.setattr(matmul, "gemv_kernels", interpreted(gemv_kernels, monkeypatch))
    monkeypatch.setattr(matmul, "bf16_split_kernels", interpreted(bf16_split_kernels, monkeypatch))
    monkeypatch.setattr(matmul, "half_kernels", interpreted(half_kernels, monkeypatch))
    monkeypatch.setattr(matmul, "dequant_gemm_kernels", interpreted(dequant_gemm_kernels, monkeypatch))
    return torch.device("cpu")


def linear_of(
    rng, pool, kind: T, rows: int, cols: int, device: torch.device, heads: int = 1
) -> tuple[PanelLinear, np.ndarray]:
    """(a random matrix a head, its weights [heads, rows, cols])."""
    data = random_blocks(rng, kind, heads * rows, cols)
    scales = random_scales(rng, kind, 1)
    matrix = kernels.Matrix(data, kind, heads * rows, cols, scales)
    packed = kernels.pack(pool, matrix, FAST, num_heads=heads, head_stride=rows, num_rows=rows, activation_bytes=1)
    weight = scaled(dequantized(data, kind).reshape(heads, rows, cols), scales)
    return PanelLinear(packed, rows, cols, is_transposed=False, device=device), weight


def check(linear: PanelLinear, x: np.ndarray, weight: np.ndarray, device: torch.device) -> None:
    """x [T, heads, cols], weight [heads, rows, cols]."""
    found = linear.multiply(torch.from_numpy(x).to(device), by_int_gemm=True).cpu().numpy()
    exact = np.einsum("thk,hrk->thr", x, weight)
    bound = np.einsum("thk,hrk->thr", np.abs(x), np.abs(weight))
    assert (np.abs(found.reshape(exact.shape) - exact) <= 2.0**-16 * bound).all()


@pytest.mark.parametrize("kind", LAYOUTS, ids=lambda kind: kind.name)
def test_every_format_is_multiplied_as_it_is_packed(rng, pool, device, kind: T) -> None:
    rows, num_tokens = 41, 11
    cols = 3 * max(32, GGML_QUANT_SIZES[kind][0])
    linear, weight = linear_of(rng, pool, kind, rows, cols, device)
    x = rng.standard_normal((num_tokens, 1, cols), dtype=np.float32)
    x[0, 0, ::7] *= 1e4  # a few columns that outweigh the others, as activations have
    check(linear, x, weight, device)


@pytest.mark.parametrize("num_tokens", [8, 34])
def test_heads_token_tiles_and_column_shards_can_be_combined(rng, pool, device, monkeypatch, num_tokens) -> None:
    monkeypatch.setattr(int_gemm, "_MIN_SHARE", 2)  # four steps of four groups, in two shares
    linear, weight = linear_of(rng, pool, T.Q4_K, 24, 512, device, heads=2)
    for _ in range(2):  # the second call finds its counters as the first one did
        check(linear, rng.standard_normal((num_tokens, 2, 512), dtype=np.float32), weight, device)


@pytest.mark.parametrize(("num_tokens", "by_int_gemm"), [(4, False), (5, False), (4, True)], ids=["few", "tile", "int"])
def test_non_finite_activations_make_only_their_tokens_results_non_finite(
    rng, pool, device, num_tokens, by_int_gemm: bool
) -> None:
    """The first is what a GPU makes of zero times infinity."""
    linear, _ = linear_of(rng, pool, T.Q4_K, 16, 256, device)
    x = rng.standard_normal((num_tokens, 256), dtype=np.float32)
    x[:3, 77] = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000], np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        found = linear.multiply(torch.from_numpy(x).to(device), by_int_gemm=by_int_gemm).cpu()
    assert not found[:3].isfinite().any()
    assert found[3:].isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [T.Q4_K, T.Q6_K, T.Q8_0], ids=lambda kind: kind.name)
def test_a_token_does_not_depend_on_its_batch(rng, pool, kind: T) -> None:
    device = torch.device("cuda:0")
    linear, _ = linear_of(rng, pool, kind, 96, 2048, device)
    x = torch.from_numpy(rng.standard_normal((100, 2048), dtype=np.float32)).to(device)
    together = linear.multiply(x, by_int_gemm=True)
    for token, batch_size in ((0, 1), (7, 9), (31, 40)):
        assert torch.equal(
            linear.multiply(x[:batch_size], by_int_gemm=True)[token % batch_size], together[token % batch_size]
        )


@pytest.mark.parametrize(
    ("capability", "kind", "num_tokens"),
    [(80, T.Q6_K, 16), (90, T.Q4_K, 4), *if_long((90, T.NVFP4, 8), (90, T.TQ1_0, 4))],
    ids=str,
)
@pytest.mark.usefixtures("kept_kernels")
def test_tensor_core_operands_need_no_exchange_between_threads(capability, kind, num_tokens) -> None:
    kernel = int_gemm_kernel(kind, num_tokens)
    pointers = {
        "terms": "*bf16",
        "words": "*i32",
        "halves": "*fp16",
        "codes": "*i8",
        "points": "*i32",
        "arrived": "*i32",
    }
    pointers |= dict.fromkeys(("totals", "out", "partial", "scales"), "*fp32")
    names = kernel.function.arg_names
    types = {name: "constexpr" if name in kernel.known else pointers.get(name, "i32") for name in names}
    aligned = {(index,): [["tt.divisibility", 16]] for index, name in enumerate(names) if name in pointers}
    aligned |= {(names.index(name),): [["tt.divisibility", 16]] for name in ("panel_words", "scale_words", "cols")}
    compiled = triton.compile(
        ASTSource(kernel.function, types, constexprs=kernel.known, attrs=aligned),
        target=GPUTarget("cuda", capability, 32),
        options=kernel.options,
    )
    assert compiled.metadata.shared <= 1 << 10, "shared memory does not limit the programs of a processor"
    assert "mma.sync" in compiled.asm["ptx"]
    assert "shfl.sync" not in compiled.asm["ptx"]


def test_the_faster_kernel_is_chosen_per_number_of_tokens(rng, pool, device) -> None:
    alike = [linear_of(rng, pool, T.Q4_K, 32, 256, device)[0] for _ in range(2)]
    other, _ = linear_of(rng, pool, T.F32, 32, 256, device)
    seconds = iter([2.0, 1.0, 1.0, 1.0, 1.0, 0.5])  # one token, two, four: without codes, and by them

    def measure(calls: Sequence[Callable[[], object]]) -> float:
        assert len(calls) == len(alike)
        return next(seconds)

    autotune([*alike, other], 3, device, measure, nullcontext, SwitchedOff(), Measurements())
    assert [linear.int_gemm_tokens for linear in (*alike, other)] == [{1, 4}, {1, 4}, set()]
    x = torch.from_numpy(rng.standard_normal((3, 256), dtype=np.float32)).to(device)
    assert torch.equal(alike[0](x), alike[0].multiply(x, by_int_gemm=True))
    assert torch.equal(alike[0](x[:2]), alike[0].multiply(x[:2], by_int_gemm=False))


def test_a_later_start_checks_the_kept_kernels_without_measuring(rng, pool, device, tmp_path, monkeypatch) -> None:
    linear, _ = linear_of(rng, pool, T.Q4_K, 32, 256, device)
    seconds = iter([2.0, 1.0, 1.0, 2.0])

    def choose(measure: Callable[[Sequence[Callable[[], object]]], float]) -> SwitchedOff:
        linear.int_gemm_tokens = frozenset()
        autotune([linear], 2, device, measure, nullcontext, off := SwitchedOff(), Measurements(tmp_path, {}))
        return off

    choose(lambda calls: next(seconds))
    assert linear.int_gemm_tokens == {1}
    assert choose(lambda calls: pytest.fail("measured again")).reasons == {}
    assert linear.int_gemm_tokens == {1}
    failing(monkeypatch, by_int_gemm=True)
    assert "OutOfRes" in choose(lambda calls: pytest.fail("measured again")).reasons["exact_codes"]
    assert linear.int_gemm_tokens == frozenset()


def test_a_matrix_of_zeros_does_not_disable_a_kernel(rng, pool, device) -> None:
    zeros = kernels.Matrix(np.zeros((32, 34), np.uint8), T.Q8_0, 32, 32)
    packed = kernels.pack(pool, zeros, FAST, num_heads=1, head_stride=32, num_rows=32, activation_bytes=1)
    linear = PanelLinear(packed, 32, 32, is_transposed=False, device=device)
    autotune([linear], 1, device, lambda calls: 1.0, nullcontext, off := SwitchedOff(), Measurements())
    assert off.reasons == {}


def test_an_inaccurate_kernel_is_not_used(rng, pool, device, monkeypatch) -> None:
    linear, _ = linear_of(rng, pool, T.Q4_K, 32, 256, device)
    multiply = PanelLinear.multiply
    monkeypatch.setattr(
        PanelLinear,
        "multiply",
        lambda self, x, by_int_gemm: multiply(self, x, by_int_gemm=by_int_gemm) * (1 + by_int_gemm / 500),
    )
    autotune([linear], 1, device, lambda calls: 1.0, nullcontext, off := SwitchedOff(), Measurements())
    assert linear.int_gemm_tokens == frozenset()
    assert off.reasons["exact_codes"] == "products of Q4_K [1, 32, 256] with 1 tokens differ by 0.002"


def failing(monkeypatch: pytest.MonkeyPatch, *, by_int_gemm: bool) -> None:
    """One of the ways needs more than the device has."""
    multiply = PanelLinear.multiply

    def multiply_or_fail(self: PanelLinear, x: torch.Tensor, *, by_int_gemm: bool) -> torch.Tensor:
        if by_int_gemm == fails_by_int_gemm:
            raise OutOfResources(1 << 18, 227 << 10, "shared memory")
        return multiply(self, x, by_int_gemm=by_int_gemm)

    fails_by_int_gemm = by_int_gemm
    monkeypatch.setattr(PanelLinear, "multiply", multiply_or_fail)


def test_failed_integer_kernels_are_reported_with_case_and_reason(rng, pool, device, monkeypatch) -> None:
    linear, _ = linear_of(rng, pool, T.Q4_K, 32, 256, device)
    failing(monkeypatch, by_int_gemm=True)
    autotune([linear], 1, device, lambda calls: 1.0, nullcontext, off := SwitchedOff(), Measurements())
    assert linear.int_gemm_tokens == frozenset()
    assert re.search(r"Q4_K \[1, 32, 256\] with 1 tokens fail: OutOfRes.*shared memory", off.reasons["exact_codes"])


def test_the_start_fails_if_no_kernel_can_compute_a_product(rng, pool, device, monkeypatch) -> None:
    linear, _ = linear_of(rng, pool, T.Q4_K, 32, 256, device)
    failing(monkeypatch, by_int_gemm=False)
    with pytest.raises(EngineDeadError, match=r"Q4_K \[1, 32, 256\] with 1 tokens fail: OutOfRes.*shared memory"):
        autotune([linear], 1, device, lambda calls: 1.0, nullcontext, SwitchedOff(), Measurements())

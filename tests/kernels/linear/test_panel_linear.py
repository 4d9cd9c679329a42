"""Triton kernels over packed weights: run by Triton's interpreter here, on the device where there is one, and compiled
for GPUs that are not here.

Tolerance: up to four tokens, products of float32 numbers summed in float32, in an order of the kernel's own: 2⁻¹⁷ ·
Σ|wᵢ xᵢ|. Above, both factors of a quantised product are rounded to half precision, by 2⁻¹¹ of themselves at most: 2⁻¹⁰.
For floats, a product is made of three with bfloat16 terms, u = 2⁻⁸: each factor loses u² of itself at most, and the
product of the small terms is left out, u² once more; 3 · 2⁻¹⁶.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import triton
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ballast._core import kernels
from ballast.model.hybrid.linear import FloatLinear
from ballast.model.hybrid.panels import bf16_split_kernels, dequant_gemm_kernels, gemv_kernels, half_kernels, matmul
from ballast.model.hybrid.panels.layout import FLOAT_TYPES, LAYOUTS, PANEL_ROWS
from ballast.model.hybrid.panels.matmul import (
    MAX_GEMV_TOKENS,
    dequant_gemm,
    dequant_gemm_kernel,
    gemm_block,
    gemm_input,
    gemv_kernel,
)
from ballast.model.hybrid.panels.panel_linear import PanelLinear
from ballast.model.hybrid.panels.product_sizes import MIN_CUBLAS_TOKENS
from ballast.model.hybrid.panels.stack import PanelStack
from devkit.kernels.interpreted import interpreted
from devkit.long import if_long
from devkit.models.random_blocks import dequantized, random_blocks, random_scales, scaled

FAST = kernels.usable_isas()[0]
every_format = pytest.mark.parametrize("kind", sorted({*FLOAT_TYPES, *LAYOUTS}), ids=lambda kind: kind.name)
Make = Callable[..., PanelLinear]
SIZES_OF_LARGE_MATRICES = ("num_rows", "cols", "panel_size", "panel_words", "scale_words", "padded_cols")
"""Arguments that are multiples of 16, for which Triton specialises kernels."""


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where PanelLinear computes in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    monkeypatch.setattr(matmul, "gemv_kernels", interpreted(gemv_kernels, monkeypatch))
    monkeypatch.setattr(matmul, "bf16_split_kernels", interpreted(bf16_split_kernels, monkeypatch))
    monkeypatch.setattr(matmul, "half_kernels", interpreted(half_kernels, monkeypatch))
    monkeypatch.setattr(matmul, "dequant_gemm_kernels", interpreted(dequant_gemm_kernels, monkeypatch))
    return torch.device("cpu")


def check(
    linear: Callable[[torch.Tensor], torch.Tensor],
    x: np.ndarray,
    weight: np.ndarray,
    device: torch.device,
    *,
    are_floats: bool = False,
) -> None:
    """x [T, heads, cols], weight [heads, rows, cols], which may be floats in the file."""
    found = linear(torch.from_numpy(x).to(device)).cpu().numpy().reshape(len(x), *weight.shape[:2])
    exact = np.einsum("thk,hrk->thr", x.astype(np.float64), weight.astype(np.float64))
    bound = np.einsum("thk,hrk->thr", np.abs(x, dtype=np.float64), np.abs(weight, dtype=np.float64))
    bound *= 2.0**-17 if len(x) <= MAX_GEMV_TOKENS else 3 * 2.0**-16 if are_floats else 1.01 * 2.0**-10
    assert (np.abs(found - exact) <= bound).all()


@every_format
@pytest.mark.parametrize(("rows", "num_tokens"), [(17, 1), (40, 3), (32, 17)])
def test_every_format_is_multiplied_as_it_is_packed(rng, pool, device, kind, rows, num_tokens) -> None:
    cols = 3 * max(32, GGML_QUANT_SIZES[kind][0]) if kind not in FLOAT_TYPES else 301
    data, scales = random_blocks(rng, kind, rows, cols), random_scales(rng, kind, 1)
    packed = kernels.pack(pool, kernels.Matrix(data, kind, rows, cols, scales), FAST, activation_bytes=1)
    linear = PanelLinear(packed, rows, cols, is_transposed=False, device=device)
    assert linear.num_bytes == packed.packed_nbytes
    x = rng.standard_normal((num_tokens, 1, cols), dtype=np.float32)
    weight = scaled(dequantized(data, kind).reshape(1, rows, cols), scales)
    check(linear, x, weight, device, are_floats=kind in FLOAT_TYPES)


@pytest.mark.parametrize("kind", [T.Q5_K, T.NVFP4], ids=lambda kind: kind.name)
def test_many_tokens_are_multiplied_a_slice_of_rows_at_a_time(rng, pool, device, monkeypatch, kind) -> None:
    rows, cols = 80, 512
    monkeypatch.setattr(matmul, "SCRATCH_BYTES", 50 * cols * 2)
    data, scales = random_blocks(rng, kind, rows, cols), random_scales(rng, kind, 1)
    packed = kernels.pack(pool, kernels.Matrix(data, kind, rows, cols, scales), FAST, activation_bytes=1)
    linear = PanelLinear(packed, rows, cols, is_transposed=False, device=device)
    x = rng.standard_normal((MIN_CUBLAS_TOKENS, 1, cols), dtype=np.float32)
    check(linear, x, scaled(dequantized(data, kind)[None], scales), device)


@pytest.mark.parametrize("num_tokens", [5, MIN_CUBLAS_TOKENS])
def test_small_activations_lose_no_more_than_half_a_step(rng, pool, device, num_tokens: int) -> None:
    rows, cols = 32, 256
    data = random_blocks(rng, T.Q4_K, rows, cols)
    packed = kernels.pack(pool, kernels.Matrix(data, T.Q4_K, rows, cols), FAST, activation_bytes=1)
    x = rng.standard_normal((num_tokens, cols), dtype=np.float32) * 1e-4
    weight = dequantized(data, T.Q4_K).astype(np.float64)
    linear = PanelLinear(packed, rows, cols, is_transposed=False, device=device)
    found = linear(torch.from_numpy(x).to(device)).cpu().numpy()
    bound = 2.0**-10 * (np.abs(x) @ np.abs(weight).T) + 2.0**-23 * np.abs(weight).sum(1)
    assert (np.abs(found - x @ weight.T) <= bound).all()


def test_large_activations_stay_finite_and_others_stay_what_they_are(device) -> None:
    x = torch.zeros(6, 256)
    x[:, 0] = torch.tensor([1e7, -1e7, 262016.0, torch.inf, -torch.inf, torch.nan])
    halves = gemm_input(x.to(device), T.Q4_K)[:, 0].cpu()
    assert halves[:5].tolist() == [65504.0, -65504.0, 65504.0, torch.inf, -torch.inf]
    assert halves[5].isnan()


@pytest.mark.parametrize(
    ("kind", "is_transposed"), [(T.Q8_0, False), (T.Q8_0, True), (T.Q4_K, True), (T.NVFP4, False), (T.NVFP4, True)]
)
def test_each_head_has_a_matrix_of_its_own(rng, pool, device, kind, is_transposed) -> None:
    heads, rows, stride, offset, cols = 3, 24, 40, 8, 256
    data, scales = random_blocks(rng, kind, heads * stride, cols), random_scales(rng, kind, 1)
    matrix = kernels.Matrix(data, kind, heads * stride, cols, scales)
    packed = kernels.pack(
        pool,
        matrix,
        FAST,
        activation_bytes=1,
        num_heads=heads,
        head_stride=stride,
        row_offset=offset,
        num_rows=rows,
        transposed=is_transposed,
    )
    weight = scaled(dequantized(data, kind).reshape(heads, stride, cols)[:, offset : offset + rows], scales)
    if is_transposed:
        weight = weight.transpose(0, 2, 1)
    linear = PanelLinear(packed, *weight.shape[1:], is_transposed=is_transposed, device=device)
    x = rng.standard_normal((5, heads, weight.shape[2]), dtype=np.float32)
    check(linear, x, weight, device, are_floats=is_transposed)
    unscaled = weight / float(scales[0]) if scales.size else weight
    check(FloatLinear(torch.from_numpy(kernels.unpack(packed)).to(device)), x, unscaled, device, are_floats=True)


def test_columns_are_split_among_programs_where_rows_are_few(rng, pool, device) -> None:
    heads, rows, cols = 2, 24, 4096
    data = random_blocks(rng, T.Q4_K, heads * rows, cols)
    matrix = kernels.Matrix(data, T.Q4_K, heads * rows, cols)
    packed = kernels.pack(pool, matrix, FAST, activation_bytes=1, num_heads=heads, head_stride=rows, num_rows=rows)
    linear = PanelLinear(packed, rows, cols, is_transposed=False, device=device)
    weight = dequantized(data, T.Q4_K).reshape(heads, rows, cols)
    for num_tokens in (2, 2, 5):  # the second call finds its counters as the first one did
        check(linear, rng.standard_normal((num_tokens, heads, cols), dtype=np.float32), weight, device)
    assert linear(torch.zeros(0, heads, cols, device=device)).shape == (0, heads, rows)


def test_a_shard_ends_with_the_last_column(rng, pool, device, monkeypatch) -> None:
    monkeypatch.setattr(matmul, "_WANTED_PROGRAMS", 6)  # five steps in three shares of two
    rows, cols, num_tokens = 16, 5 * 256, 5
    data = random_blocks(rng, T.Q4_K, rows, cols)
    packed = kernels.pack(pool, kernels.Matrix(data, T.Q4_K, rows, cols), FAST, activation_bytes=1)
    stack = PanelStack(torch.from_numpy(packed.panels.copy()).to(device), T.Q4_K, 1, rows, cols)

    def multiply(x: torch.Tensor) -> torch.Tensor:
        given = gemm_input(x.reshape(num_tokens, cols), T.Q4_K)
        beyond = torch.full_like(given[:1], torch.nan)
        out = torch.empty(num_tokens, rows, device=device)
        dequant_gemm(stack, torch.cat([given, beyond])[:num_tokens], out)
        return out

    check(
        multiply, rng.standard_normal((num_tokens, 1, cols), dtype=np.float32), dequantized(data, T.Q4_K)[None], device
    )


@pytest.mark.gpu
@every_format
def test_a_token_does_not_depend_on_its_batch(rng, pool, kind) -> None:
    device = torch.device("cuda:0")
    data = random_blocks(rng, kind, 96, 1024)
    packed = kernels.pack(pool, kernels.Matrix(data, kind, 96, 1024), FAST, activation_bytes=1)
    linear = PanelLinear(packed, 96, 1024, is_transposed=False, device=device)
    x = torch.from_numpy(rng.standard_normal((100, 1024), dtype=np.float32)).to(device)
    # What one kernel multiplies, by rows or by tiles: another may add up in another order.
    for fewest, most in ((2, 2), (3, MAX_GEMV_TOKENS), (MAX_GEMV_TOKENS + 1, 16), (17, 100)):
        together = linear(x[:most])
        assert torch.equal(linear(x[:most].flip(0)).flip(0), together)
        for first in {0, (most - fewest) // 2, most - fewest}:
            assert torch.equal(linear(x[first : first + fewest]), together[first : first + fewest])


@pytest.mark.parametrize("kind", LAYOUTS, ids=lambda kind: kind.name)
def test_the_layouts_are_those_of_the_packed_bytes(kind: T) -> None:
    for cols in (256, 2816, 7168):
        layout = LAYOUTS[kind]
        panel = layout.scale_bytes(cols) + cols // 32 * layout.group_bytes
        assert panel == kernels.packed_nbytes(kind, num_rows=PANEL_ROWS, cols=cols)


@pytest.mark.parametrize(
    ("capability", "most_shared_bytes", "kind", "tokens"),
    # NVIDIA's CUDA C++ programming guide, table of technical specifications: shared memory a thread block may use.
    [
        (capability, most, kind, tokens)
        for capability, most, kind in (
            (80, 163 << 10, T.Q6_K),
            (89, 99 << 10, T.IQ4_XS),
            (90, 227 << 10, T.Q4_K),
            (90, 227 << 10, T.IQ2_S),
            (90, 227 << 10, T.IQ1_M),
            (90, 227 << 10, T.TQ1_0),
            (89, 99 << 10, T.F32),
        )
        # Products of few tokens take little memory.
        for tokens in ((4, 1024) if kind in (T.Q6_K, T.IQ2_S, T.F32) else (*if_long(4), 1024))
    ]
    # One token and tiles of sixteen are the same programs with smaller constants, and take less memory.
    + if_long((90, 227 << 10, T.Q4_K, 1), (89, 99 << 10, T.F32, 1), (89, 99 << 10, T.F32, 16))
    + if_long((80, 163 << 10, T.Q6_K, 16), (89, 99 << 10, T.IQ4_XS, 16), (90, 227 << 10, T.Q4_K, 16))
    # The other types whose tiles have two stages, which take the most.
    + [(90, 227 << 10, kind, 1024) for kind in (T.Q4_1, T.MXFP4, *if_long(T.IQ4_NL, T.IQ4_XS, T.NVFP4))],
)
@pytest.mark.usefixtures("kept_kernels")
def test_the_kernels_compile_for_gpus_and_fit_their_shared_memory(capability, most_shared_bytes, kind, tokens) -> None:
    has_tiles = tokens > MAX_GEMV_TOKENS
    if has_tiles:
        has_large_memory = most_shared_bytes >= 200 << 10
        kernel = dequant_gemm_kernel(
            kind, gemm_block(tokens), is_grouped=True, has_gate=True, has_large_memory=has_large_memory
        )
        known = kernel.known
    else:
        kernel = gemv_kernel(kind, tokens, is_grouped=False, has_gate=False)
        known = kernel.known | {"IS_SPLIT": True}
    pointers = {
        "x": "*fp16" if has_tiles else "*fp32",
        "terms": "*bf16",
        "values": "*fp32",
        "words": "*i32",
        "halves": "*fp16",
        "codes": "*i8",
        "points": "*i32",
        "scales": "*fp32",
    }
    pointers |= dict.fromkeys(("out", "gate", "partial"), "*fp32")
    pointers |= dict.fromkeys(("arrived", "order", "tiles"), "*i32")
    names = kernel.function.arg_names
    types = {name: "constexpr" if name in known else pointers.get(name, "i32") for name in names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, (name, type_name) in enumerate(types.items())
        if type_name[0] == "*" or name in SIZES_OF_LARGE_MATRICES
    }
    compiled = triton.compile(
        ASTSource(kernel.function, types, constexprs=known, attrs=aligned),
        target=GPUTarget("cuda", capability, 32),
        options=kernel.options,
    )
    assert compiled.metadata.shared <= most_shared_bytes
    assert ("mma" in compiled.asm["ptx"]) == has_tiles, "tiles are multiplied on tensor cores"


@pytest.mark.gpu
@pytest.mark.parametrize("by_int_gemm", [False, True], ids=["by rows", "by exact codes"])
def test_two_lanes_multiply_by_a_matrix_at_once(rng, pool, by_int_gemm: bool) -> None:
    """Both split the columns: counters that they shared would end a sum before all shares are there."""
    device = torch.device("cuda:0")
    matrix = kernels.Matrix(random_blocks(rng, T.Q4_K, 64, 8192), T.Q4_K, 64, 8192)
    packed = kernels.pack(pool, matrix, FAST, activation_bytes=1)
    linear = PanelLinear(packed, 64, 8192, is_transposed=False, device=device)
    x = torch.from_numpy(rng.standard_normal((2, 3, 8192), dtype=np.float32)).to(device)
    expected = [linear.multiply(part, by_int_gemm=by_int_gemm) for part in x]
    other = torch.cuda.Stream(device)
    torch.cuda.synchronize()
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for _ in range(200):
        here = linear.multiply(x[0], by_int_gemm=by_int_gemm)
        with torch.cuda.stream(other):
            found.append((here, linear.multiply(x[1], by_int_gemm=by_int_gemm)))
    torch.cuda.synchronize()
    assert all(torch.equal(here, expected[0]) and torch.equal(there, expected[1]) for here, there in found)

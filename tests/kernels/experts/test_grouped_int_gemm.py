"""Few tokens' products with experts: run by Triton's interpreter here, on the device where there is one, and compiled
for GPUs that are not here.

Tolerance: as tests/kernels/linear/test_int_gemm.py for a product; three of them in a row, relative to the result's
length.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ballast.model.hybrid.experts.products import grouped_int_gemm, grouped_int_gemm_kernels
from ballast.model.hybrid.experts.products.grouped_int_gemm import (
    MAX_PAIRS,
    MAX_TOKENS,
    GroupedProduct,
    can_multiply,
    group_and_split,
    grouped_kernel,
    multiply,
)
from ballast.model.hybrid.panels.layout import LAYOUTS
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.plan.gpus.device import _PARTIAL_BYTES
from devkit.kernels.interpreted import interpreted
from devkit.kernels.panel_stacks import NUM_EXPERTS, stack_of
from devkit.long import if_long

IDS = np.array([[2, -1], [NUM_EXPERTS, 2], [2, 0], [-1, 2], [2, -1]], np.int32)
"""Expert 1 has no token, expert 2 more than a small tile holds."""


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device of the experts in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    monkeypatch.setattr(
        grouped_int_gemm, "grouped_int_gemm_kernels", interpreted(grouped_int_gemm_kernels, monkeypatch)
    )
    return torch.device("cpu")


def product(stack: PanelStack, x: np.ndarray, ids: np.ndarray, tile: int, device: torch.device) -> np.ndarray:
    """The results of one matrix of each expert, [pairs, rows]; NaN where nothing is stored."""
    launched = GroupedProduct((stack,), ids.shape[1])
    on_device = [torch.from_numpy(values).to(device) for values in (x, ids)]
    tiles, arrived, given = group_and_split(*on_device, stack.num_experts, tile, launched.num_blocks)
    out = torch.full((ids.size, stack.rows), torch.nan, device=device)
    launched.launch(given, tiles, out, out, arrived, ids.shape[1])
    return out.cpu().numpy()


@pytest.mark.parametrize("kind", LAYOUTS, ids=lambda kind: kind.name)
def test_every_format_is_multiplied_as_it_is_packed(rng, pool, device, kind: T) -> None:
    rows, cols = 41, 3 * max(32, GGML_QUANT_SIZES[kind][0]) if device.type == "cuda" else GGML_QUANT_SIZES[kind][0]
    stack, weight = stack_of(rng, pool, kind, rows, cols, device)
    ids = IDS if device.type == "cuda" else np.array([[1], [-1], [1]], np.int32)
    x = rng.standard_normal((len(ids), cols), dtype=np.float32)
    x[0, ::7] *= 1e4  # a few columns that outweigh the others, as activations have
    found = product(stack, x, ids, 4, device)
    for pair, expert in enumerate(ids.flat):
        if not 0 <= expert < NUM_EXPERTS:
            assert np.isnan(found[pair]).all()
            continue
        row = x[pair // ids.shape[1]].astype(np.float64)
        bound = np.abs(weight[expert]) @ np.abs(row)
        assert (np.abs(found[pair] - weight[expert] @ row) <= 2.0**-16 * bound).all()


@pytest.mark.parametrize("tile", [4, 8])
def test_a_pair_is_in_one_tile_of_its_expert(rng, device, tile: int) -> None:
    x = torch.from_numpy(rng.standard_normal((13, 96), dtype=np.float32)).to(device)
    ids = np.argsort(rng.random((13, NUM_EXPERTS + 2)), 1)[:, :2].astype(np.int32) - 1
    tiles, arrived, given = group_and_split(x, torch.from_numpy(ids).to(device), NUM_EXPERTS, tile, 130)
    flat = ids.reshape(-1)
    seen = []
    for expert, *pairs in tiles.tolist():
        members = [pair for pair in pairs if pair >= 0]
        assert bool(members) == (expert >= 0)
        assert all(flat[pair] == expert for pair in members)
        seen += members
    assert sorted(seen) == np.flatnonzero((flat >= 0) & (flat < NUM_EXPERTS)).tolist()
    most = max(np.bincount(flat[flat >= 0]).tolist())
    assert sum(expert >= 0 for expert in tiles[:, 0].tolist()) <= NUM_EXPERTS * -(-most // tile), "tiles are full"
    assert arrived.shape == (26, 130)
    assert not arrived.any()
    both = given.terms.float().view(13, 3, 2, 32).sum(2)
    assert torch.allclose(both.sum(2), given.totals.sum(2), atol=1e-4)
    assert torch.allclose(both.sort(2).values, x.view(13, 3, 32).sort(2).values, rtol=2.0**-16)


@pytest.mark.parametrize(
    ("kinds", "ids"),
    [
        ((T.Q4_K, T.Q4_K, T.Q8_0), IDS),
        ((T.NVFP4, T.NVFP4, T.NVFP4), IDS),
        ((T.Q8_0, T.Q8_0, T.Q8_0), np.full((9, 1), 1, np.int32)),
        ((T.Q8_0, T.Q8_0, T.Q8_0), np.full((3, 2), -1, np.int32)),
    ],
    ids=["some", "scales of experts", "all to one expert", "none here"],
)
def test_gate_up_and_down_are_computed_together(rng, pool, device, monkeypatch, kinds, ids) -> None:
    """Columns are in two shares, and the last step of a share is not a whole one."""
    monkeypatch.setattr(grouped_int_gemm, "_WANTED_PROGRAMS", 8)
    hidden, width = (256, 64) if kinds[0] in (T.Q4_K, T.NVFP4) else (160, 32)
    shapes = ((width, hidden), (width, hidden), (hidden, width))
    stacks, weights = zip(
        *(stack_of(rng, pool, kind, *shape, device) for kind, shape in zip(kinds, shapes, strict=True)), strict=True
    )
    assert can_multiply(*stacks, *ids.shape)
    x = rng.standard_normal((len(ids), hidden), dtype=np.float32)
    on_device = [torch.from_numpy(values).to(device) for values in (x, ids)]
    for _ in range(1 + device.type.count("cuda")):
        found = multiply(*stacks, *on_device).cpu().numpy()
        for pair, expert in enumerate(ids.flat):
            if 0 <= expert < NUM_EXPERTS:
                gate, up, down = (matrices[expert] for matrices in weights)
                row = x[pair // ids.shape[1]].astype(np.float64)
                expected = down @ (gate @ row / (1 + np.exp(-gate @ row)) * (up @ row))
                assert np.linalg.norm(found[pair] - expected) <= 2.0**-14 * np.linalg.norm(expected), pair


def test_non_finite_activations_make_only_their_tokens_results_non_finite(rng, pool, device) -> None:
    stack, _ = stack_of(rng, pool, T.Q8_0, 32, 64, device)
    x = rng.standard_normal((4, 64), dtype=np.float32)
    x[:3, 47] = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000], np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        found = product(stack, x, np.ones((4, 1), np.int32), 4, device)
    assert not np.isfinite(found[:3]).any()
    assert np.isfinite(found[3]).all()


def test_floats_mixed_types_and_many_tokens_do_not_use_int_gemm(rng, pool) -> None:
    device = torch.device("cpu")
    q8, _ = stack_of(rng, pool, T.Q8_0, 32, 32, device)
    q5, _ = stack_of(rng, pool, T.Q5_0, 32, 32, device)
    bf16, _ = stack_of(rng, pool, T.BF16, 32, 32, device)
    assert can_multiply(q8, q8, q5, 128, 8)
    assert not can_multiply(q8, q5, q8, 1, 8)
    assert not can_multiply(q8, q8, bf16, 1, 8)
    assert not can_multiply(q8, q8, q8, 129, 2)
    assert not can_multiply(q8, q8, q8, 128, 9)


@pytest.mark.parametrize(("width", "hidden", "num_used"), [(2048, 7168, 8), (1408, 2048, 6), (1536, 5120, 6)], ids=str)
def test_partial_sums_fit_the_memory_that_a_plan_has_for_them(width, hidden, num_used) -> None:
    packed = torch.empty(0, dtype=torch.uint8)
    shapes = ((width, hidden), (width, hidden), (hidden, width))
    gate, up, down = (PanelStack(packed, T.Q8_0, 0, *shape) for shape in shapes)
    for stacks in ((gate, up), (down,)):
        product = GroupedProduct(stacks, num_used)
        num_tokens = min(MAX_TOKENS, MAX_PAIRS // num_used)
        assert product.num_programs * num_tokens * num_used * stacks[0].rows * 4 <= _PARTIAL_BYTES


@pytest.mark.gpu
@pytest.mark.parametrize("kinds", [(T.Q4_K, T.Q4_K, T.Q6_K), (T.Q8_0, T.Q8_0, T.Q8_0)], ids=lambda kinds: kinds[2].name)
def test_a_pair_does_not_depend_on_the_other_tokens(rng, pool, kinds) -> None:
    device = torch.device("cuda:0")
    shapes = ((512, 1024), (512, 1024), (1024, 512))
    stacks = [stack_of(rng, pool, kind, *shape, device)[0] for kind, shape in zip(kinds, shapes, strict=True)]
    x = torch.from_numpy(rng.standard_normal((128, 1024), dtype=np.float32)).to(device)
    ids = torch.from_numpy(np.argsort(rng.random((128, NUM_EXPERTS)), 1)[:, :2].astype(np.int32)).to(device)
    together = multiply(*stacks, x, ids)
    assert torch.equal(multiply(*stacks, x, ids), together)
    for num_tokens in (1, 3, 17, 40):
        assert torch.equal(multiply(*stacks, x[:num_tokens], ids[:num_tokens]), together[: 2 * num_tokens])


@pytest.mark.parametrize(
    ("capability", "kind", "tile"),
    [
        *((80, T.Q6_K, 8), (90, T.IQ3_XXS, 4), (90, T.Q4_K, 4)),
        *if_long((90, T.TQ1_0, 8), (90, T.IQ1_S, 8), (90, T.NVFP4, 4)),
    ],
    ids=str,
)
@pytest.mark.usefixtures("kept_kernels")
def test_tensor_core_operands_need_no_exchange_between_threads(capability, kind, tile) -> None:
    kernel = grouped_kernel(kind, tile, has_up=False, is_split=False)
    pointers = {"terms": "*bf16", "tiles": "*i32", "points": "*i32", "arrived": "*i32"}
    pointers |= dict.fromkeys(("words", "up_words"), "*i32") | dict.fromkeys(("halves", "up_halves"), "*fp16")
    pointers |= dict.fromkeys(("totals", "out", "out_totals", "partial", "scales", "up_scales"), "*fp32")
    pointers |= dict.fromkeys(("gate_bias", "up_bias"), "*fp32")
    names = kernel.function.arg_names
    others = dict.fromkeys(names, "i32") | {"alpha": "fp32", "limit": "fp32"}
    types = {name: "constexpr" if name in kernel.known else pointers.get(name, others[name]) for name in names}
    aligned = {(index,): [["tt.divisibility", 16]] for index, name in enumerate(names) if name in pointers}
    aligned |= {(names.index(name),): [["tt.divisibility", 16]] for name in ("panel_words", "scale_words", "num_rows")}
    compiled = triton.compile(
        ASTSource(kernel.function, types, constexprs=kernel.known, attrs=aligned),
        target=GPUTarget("cuda", capability, 32),
        options=kernel.options,
    )
    assert compiled.metadata.shared == 0
    assert "mma.sync" in compiled.asm["ptx"]
    assert "shfl.sync" not in compiled.asm["ptx"]

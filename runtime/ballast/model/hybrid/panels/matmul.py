"""Products of packed matrices on a GPU: selects the kernel for a number of tokens, compiles it and launches it.

The sizes were chosen by measurement (benchmarks/hybrid/panel_linear.py); they are not tuned at start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from gguf import GGMLQuantizationType as GgmlType

from ballast.model.hybrid.panels import bf16_split_kernels, dequant_gemm_kernels, gemv_kernels, half_kernels
from ballast.model.hybrid.panels.layout import FLOAT_TYPES, GROUP_COLS, LAYOUTS, PANEL_ROWS
from ballast.model.hybrid.panels.product_sizes import SCRATCH_BYTES
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.shared_kernels.early_launch import early
from ballast.model.hybrid.shared_kernels.power_of_two import padded

MAX_GEMV_TOKENS = 4
"""Maximum tokens that `gemv` multiplies; more are multiplied on tensor cores."""
GEMV_TILES = {1: (8, 64, 2), 2: (16, 32, 4), 4: (8, 32, 2)}
"""Tile of a `gemv` program, by number of tokens: groups of 32 columns (4 columns for floats), rows, and warps."""
_EXPANDED_ROWS = 16
_STEP_COLS = 256
"""Columns of quantised weights that a program decodes at a time for tensor cores."""
_WANTED_PROGRAMS = 1056
"""Target number of programs on a GPU, eight per processor of an H200; if there are too few rows, columns are split
among programs."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Results grouped by expert, in tiles."""

    order: torch.Tensor  # int32 [results]
    tiles: torch.Tensor  # int32 [tiles, 3]: an expert, and its bounds in `order`; expert -1: an empty tile
    sharing: int
    """Number of results that share one row of activations."""
    block: int
    """Maximum results in a tile."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, and the constants and options with which it is compiled."""

    function: Any
    known: dict[str, Any]
    step_cols: int
    """Number of columns that a program processes at a time."""
    options: dict[str, int]


def gemv(
    stack: PanelStack,
    x: torch.Tensor,
    out: torch.Tensor,
    groups: Groups | None = None,
    *,
    gate: torch.Tensor | None = None,
    arrived: torch.Tensor | None = None,
) -> None:
    """out[r] = W_e x[r // sharing], times silu(gate[r]) if there is a gate, which may be `out`. Results that are in no
    tile are not written; a tile has at most MAX_GEMV_TOKENS.

    Without groups, matrices are heads: x float32 [T * heads, cols], out float32 [T * heads, rows]. With `arrived`,
    int32 zeros, one per panel, columns may be split among programs; no other stream may use it at the same time."""
    block = groups.block if groups else len(out) // stack.num_experts
    kernel = gemv_kernel(stack.ggml_type, block, is_grouped=groups is not None, has_gate=gate is not None)
    num_tiles = len(groups.tiles) if groups else stack.num_experts
    programs = _blocks(stack, kernel) * num_tiles
    steps_per_split, num_splits = _split(stack, kernel, 1 if arrived is None else _WANTED_PROGRAMS // programs)
    partial = out.new_empty((num_splits, *out.shape)) if num_splits > 1 else out
    kernel.function[_blocks(stack, kernel), num_tiles, num_splits](
        x,
        *stack.operands(x.device),
        out,
        out if gate is None else gate,
        partial,
        out if arrived is None else arrived,
        *_tokens(stack, out, groups),
        *_sizes(stack),
        steps_per_split,
        num_splits,
        out.numel(),
        **kernel.known,
        **kernel.options,
        IS_SPLIT=num_splits > 1,
        **early(out.device),
    )


def dequant_gemm(
    stack: PanelStack,
    x: torch.Tensor,
    out: torch.Tensor,
    groups: Groups | None = None,
    *,
    gate: torch.Tensor | None = None,
) -> None:
    """As `gemv`, on tensor cores; `x` are the activations after `gemm_input`. Tiles have up to 64 results."""
    num_tokens = len(out) // stack.num_experts
    block = groups.block if groups else gemm_block(num_tokens)
    kernel = dequant_gemm_kernel(
        stack.ggml_type,
        block,
        is_grouped=groups is not None,
        has_gate=gate is not None,
        has_large_memory=platform_of(out.device).has_large_memory,
    )
    num_tiles = len(groups.tiles) if groups else -(-num_tokens // block)
    num_slots = 1 if groups else stack.num_experts
    # Columns are split as for one tile, so that a token's sums do not depend on the number of tokens.
    programs = _blocks(stack, kernel) * num_slots
    steps_per_split, num_splits = _split(stack, kernel, 1 if groups else _WANTED_PROGRAMS // programs // 2)
    partial = out.new_empty((num_splits, *out.shape)) if num_splits > 1 else out
    kernel.function[_blocks(stack, kernel), num_tiles, num_splits * num_slots](
        x,
        *stack.operands(x.device),
        partial,
        out if gate is None else gate,
        *_tokens(stack, out, groups),
        *_sizes(stack),
        x.shape[-1],
        steps_per_split,
        out.numel(),
        **kernel.known,
        **kernel.options,
        **early(out.device),
    )
    if num_splits > 1:
        torch.sum(partial, 0, out=out)


def cublas_gemm(stack: PanelStack, x: torch.Tensor, out: torch.Tensor) -> None:
    """out float32 [T, rows] = x Wᵀ for one quantised matrix, by cuBLAS; `x` are the activations after `gemm_input`.
    Rows of the matrix are also decoded to half precision, as many at a time as fit in SCRATCH_BYTES."""
    padded_cols = x.shape[1]
    most_rows = SCRATCH_BYTES // (padded_cols * x.element_size()) // PANEL_ROWS * PANEL_ROWS
    weights = x.new_empty((min(stack.rows, most_rows), padded_cols))
    for first in range(0, stack.rows, len(weights)):
        num_rows = min(len(weights), stack.rows - first)
        half_kernels.dequantize_panels[-(-num_rows // _EXPANDED_ROWS), padded_cols // _STEP_COLS](
            *stack.operands(x.device),
            weights,
            first,
            num_rows,
            stack.cols,
            *_sizes(stack)[3:],
            padded_cols,
            LAYOUT=LAYOUTS[stack.ggml_type],
            GROUPS=_STEP_COLS // GROUP_COLS,
            ROWS=_EXPANDED_ROWS,
            num_warps=4,
        )
        _float32_product(x, weights[:num_rows].T, out[:, first : first + num_rows])


def _float32_product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    if platform_of(left.device).multiplies_halves:
        torch.mm(left, right, out_dtype=torch.float32, out=out)
    else:
        torch.mm(left.float(), right.float(), out=out)


def gemm_input(x: torch.Tensor, kind: GgmlType) -> torch.Tensor:
    """x float32 [rows, cols] as kernels for weights of `kind` read it. For quantised types: float16 [rows, padded
    columns], in their order. For float types: [rows, 2, padded columns], upper terms and lower terms, bfloat16 on a
    GPU."""
    step = gemm_step_cols(kind)
    num_steps = -(-x.shape[1] // step)
    if kind in FLOAT_TYPES:
        terms = x.new_empty((len(x), 2, num_steps * step), dtype=platform_of(x.device).term_dtype)
        if len(x):
            bf16_split_kernels.split_bf16[len(x), num_steps](
                x,
                terms,
                x.shape[1],
                terms.shape[2],
                STEP_COLS=step,
                **early(x.device),
            )
        return terms
    halves = x.new_empty((len(x), num_steps * step), dtype=torch.float16)
    if len(x):
        half_kernels.round_to_half[len(x), num_steps](
            x,
            halves,
            x.shape[1],
            halves.shape[1],
            LINES=step // 8,
            STEP_COLS=step,
            **early(x.device),
        )
    return halves


def gemm_block(num_tokens: int) -> int:
    """Tokens in a tile, if all tokens are multiplied with one matrix."""
    return 16 if num_tokens <= 16 else 64


def grouped_gemm_block(num_tokens: int) -> int:
    """Tokens in an expert's tile, if `num_tokens` are divided among experts."""
    return 16 if num_tokens <= 16 else 32 if num_tokens <= 256 else 64


def gemm_step_cols(kind: GgmlType) -> int:
    """Columns that a program of `dequant_gemm_kernel` processes at a time."""
    return 64 if kind in FLOAT_TYPES else _STEP_COLS


def gemv_kernel(kind: GgmlType, num_tokens: int, *, is_grouped: bool, has_gate: bool) -> Kernel:
    """The kernel of `gemv` for weights of `kind` and up to `num_tokens` tokens per program; the caller adds
    IS_SPLIT."""
    padded_tokens = padded(num_tokens)
    groups, rows, warps = GEMV_TILES[padded_tokens]
    known = {"IS_GROUPED": is_grouped, "HAS_GATE": has_gate, "TOKENS": padded_tokens, "ROWS": rows}
    options = {"num_warps": warps}
    if kind in FLOAT_TYPES:
        return Kernel(gemv_kernels.float_gemv, known | {"STEP_COLS": 4 * groups}, 4 * groups, options)
    return Kernel(
        gemv_kernels.quantized_gemv, known | {"LAYOUT": LAYOUTS[kind], "GROUPS": groups}, groups * GROUP_COLS, options
    )


def dequant_gemm_kernel(
    kind: GgmlType, block: int, *, is_grouped: bool, has_gate: bool, has_large_memory: bool = False
) -> Kernel:
    """The kernel of `dequant_gemm` for weights of `kind` and tiles of `block` tokens. `has_large_memory`: a program may
    use 200 KiB of shared memory."""
    known = {"IS_GROUPED": is_grouped, "HAS_GATE": has_gate, "BLOCK_T": block, "ROWS": 128 if block == 32 else 64}
    step = gemm_step_cols(kind)
    is_staged = has_large_memory and block > 16 and kind not in FLOAT_TYPES
    options = {"num_warps": 4, "num_stages": 2 if is_staged else 1}
    if kind in FLOAT_TYPES:
        return Kernel(dequant_gemm_kernels.float_gemm, known | {"STEP_COLS": step}, step, options)
    return Kernel(
        dequant_gemm_kernels.quantized_gemm,
        known | {"LAYOUT": LAYOUTS[kind], "GROUPS": step // GROUP_COLS},
        step,
        options,
    )


def _blocks(stack: PanelStack, kernel: Kernel) -> int:
    return -(-stack.rows // int(kernel.known["ROWS"]))


def _split(stack: PanelStack, kernel: Kernel, num_splits: int) -> tuple[int, int]:
    """(steps of a split, splits)"""
    num_steps = -(-stack.cols // kernel.step_cols)
    steps_per_split = -(-num_steps // max(1, min(num_steps, num_splits)))
    return steps_per_split, -(-num_steps // steps_per_split)


def _tokens(stack: PanelStack, out: torch.Tensor, groups: Groups | None) -> tuple[torch.Tensor | int, ...]:
    if groups is None:
        return out, out, len(out) // stack.num_experts, stack.num_experts, 1
    return groups.order, groups.tiles, 0, stack.num_experts, groups.sharing


def _sizes(stack: PanelStack) -> tuple[int, ...]:
    sizes = (stack.rows, stack.cols, stack.panels_per_expert)
    if stack.ggml_type in FLOAT_TYPES:
        return (*sizes, stack.panel_bytes // stack.views[0].element_size())
    return (*sizes, stack.panel_bytes // 4, LAYOUTS[stack.ggml_type].scale_bytes(stack.cols) // 4)

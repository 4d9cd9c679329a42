"""Products of packed matrices: which kernel for how many tokens, compiled with what, launched how.

The numbers here were chosen by measurement (benchmarks/hybrid/panel_linear.py), not when a process starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from gguf import GGMLQuantizationType as GgmlType

from ballast.model.hybrid.panels import row_kernels, term_kernels, tile_kernels
from ballast.model.hybrid.panels.layout import FLOAT_TYPES, GROUP_COLS, LAYOUTS, PANEL_ROWS
from ballast.model.hybrid.panels.stack import PanelStack

MOST_ROW_TOKENS = 4
"""Up to so many tokens a weight is multiplied with each in turn; above, on tensor cores."""
ROW_TILES = {1: (8, 64, 2), 2: (16, 32, 4), 4: (8, 32, 2)}
"""Of a program that multiplies rows with so many tokens: groups of 32 columns (of floats, fours of them) and rows that
it takes at a time, and its warps."""
LEAST_WIDE_TOKENS = 160
"""From so many tokens on, a quantised matrix is decoded to memory and multiplied by the library's kernels."""
SCRATCH_BYTES = 256 << 20
"""Most that a matrix decoded to memory takes at a time."""
_EXPANDED_ROWS = 16
_STEP_COLS = 256
"""Columns of quantised weights that a program decodes at a time for tensor cores."""
_WANTED_PROGRAMS = 1056
"""Eight for each processor of an H200; with too few rows for that, columns are split among programs."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Results in the order of their experts, and tiles of them."""

    order: torch.Tensor  # int32 [results]
    tiles: torch.Tensor  # int32 [tiles, 3]: an expert, and its bounds in `order`; expert -1: nothing
    sharing: int
    """Results that have one row of activations."""
    block: int
    """Results in a tile, at most."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, and what it is compiled with."""

    function: Any
    known: dict[str, Any]
    step_cols: int
    """Columns that a program takes at a time."""
    options: dict[str, int]


def rows_product(
    stack: PanelStack,
    x: torch.Tensor,
    out: torch.Tensor,
    groups: Groups | None = None,
    *,
    gate: torch.Tensor | None = None,
    arrived: torch.Tensor | None = None,
) -> None:
    """out[r] = W_e x[r // sharing], times silu(gate[r]) where there is one (it may be `out`), for the results in tiles
    of at most MOST_ROW_TOKENS; others are left as they are. Without groups, matrices are heads: x float32
    [T * heads, cols], out float32 [T * heads, rows]. `arrived`, int32 zeros, one a panel, which no other stream uses
    meanwhile, allows the columns to be split among programs."""
    block = groups.block if groups else len(out) // stack.num_experts
    kernel = row_kernel(stack.ggml_type, block, is_grouped=groups is not None, has_gate=gate is not None)
    num_tiles = len(groups.tiles) if groups else stack.num_experts
    programs = _blocks(stack, kernel) * num_tiles
    steps_per_split, num_splits = _split(stack, kernel, 1 if arrived is None else _WANTED_PROGRAMS // programs)
    partial = out.new_empty((num_splits, *out.shape)) if num_splits > 1 else out
    kernel.function[_blocks(stack, kernel), num_tiles, num_splits](
        x,
        *stack.views,
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
    )


def tiles_product(
    stack: PanelStack,
    terms: torch.Tensor,
    out: torch.Tensor,
    groups: Groups | None = None,
    *,
    gate: torch.Tensor | None = None,
) -> None:
    """As `rows_product`, of `split_terms` of the activations, on tensor cores; tiles of 16, 64 or 128."""
    num_tokens = len(out) // stack.num_experts
    block = groups.block if groups else tile_block(num_tokens)
    kernel = tile_kernel(
        stack.ggml_type,
        block,
        is_grouped=groups is not None,
        has_gate=gate is not None,
        has_large_memory=_has_large_memory(out.device),
    )
    num_tiles = len(groups.tiles) if groups else -(-num_tokens // block)
    num_slots = 1 if groups else stack.num_experts
    # Split as if there were one tile, so that a token's sums are those of any number of tokens.
    programs = _blocks(stack, kernel) * num_slots
    steps_per_split, num_splits = _split(stack, kernel, 1 if groups else _WANTED_PROGRAMS // programs // 2)
    partial = out.new_empty((num_splits, *out.shape)) if num_splits > 1 else out
    kernel.function[_blocks(stack, kernel), num_tiles, num_splits * num_slots](
        terms,
        *stack.views,
        partial,
        out if gate is None else gate,
        *_tokens(stack, out, groups),
        *_sizes(stack),
        terms.shape[2],
        steps_per_split,
        out.numel(),
        **kernel.known,
        **kernel.options,
    )
    if num_splits > 1:
        torch.sum(partial, 0, out=out)


def wide_product(stack: PanelStack, terms: torch.Tensor, out: torch.Tensor) -> None:
    """out float32 [T, rows] = x · Wᵀ of one quantised matrix, by the library's product of `split_terms` in three parts
    with rows of the matrix in as many: a slice at a time, so that they take SCRATCH_BYTES at most."""
    room = terms.shape[2]
    most_rows = SCRATCH_BYTES // (3 * room * terms.element_size()) // PANEL_ROWS * PANEL_ROWS
    weights = terms.new_empty((min(stack.rows, most_rows), 3 * room))
    for first in range(0, stack.rows, len(weights)):
        num_rows = min(len(weights), stack.rows - first)
        term_kernels.expand_panels[-(-num_rows // _EXPANDED_ROWS), room // _STEP_COLS](
            *stack.views,
            weights,
            first,
            num_rows,
            stack.cols,
            *_sizes(stack)[3:],
            room,
            LAYOUT=LAYOUTS[stack.ggml_type],
            GROUPS=_STEP_COLS // GROUP_COLS,
            ROWS=_EXPANDED_ROWS,
            num_warps=4,
        )
        out[:, first : first + num_rows] = _float32_product(terms.flatten(1), weights[:num_rows].T)


def _float32_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left @ right


def split_terms(x: torch.Tensor, kind: GgmlType, parts: int = 2) -> torch.Tensor:
    """x float32 [rows, cols] → [rows, parts, padded columns]: upper terms, lower ones, upper ones again, as kernels for
    weights of a type take them; bfloat16 on a GPU."""
    step = tile_step_cols(kind)
    num_steps = -(-x.shape[1] // step)
    terms = x.new_empty((len(x), parts, num_steps * step), dtype=torch.bfloat16 if x.is_cuda else torch.float32)
    lines = 0 if kind in FLOAT_TYPES else step // 8
    if len(x):
        term_kernels.split_terms[len(x), num_steps](
            x, terms, x.shape[1], terms.shape[2], LINES=lines, STEP_COLS=step, PARTS=parts
        )
    return terms


def tile_block(num_tokens: int) -> int:
    """Tokens in a tile of a matrix that all are multiplied with."""
    return 16 if num_tokens <= 16 else 64


def grouped_tile_block(num_tokens: int) -> int:
    """Tokens in an expert's tile, when so many have been divided among experts."""
    return 16 if num_tokens <= 16 else 32 if num_tokens <= 1024 else 64


def tile_step_cols(kind: GgmlType) -> int:
    """Columns that a program of `tile_kernel` takes at a time."""
    return 64 if kind in FLOAT_TYPES else _STEP_COLS


def row_kernel(kind: GgmlType, num_tokens: int, *, is_grouped: bool, has_gate: bool) -> Kernel:
    """For weights of a type and at most `num_tokens` tokens a program; IS_SPLIT is to be added."""
    room = 1 << (num_tokens - 1).bit_length()
    groups, rows, warps = ROW_TILES[room]
    known = {"IS_GROUPED": is_grouped, "HAS_GATE": has_gate, "TOKENS": room, "ROWS": rows}
    options = {"num_warps": warps}
    if kind in FLOAT_TYPES:
        return Kernel(row_kernels.float_rows, known | {"STEP_COLS": 4 * groups}, 4 * groups, options)
    return Kernel(
        row_kernels.quantized_rows, known | {"LAYOUT": LAYOUTS[kind], "GROUPS": groups}, groups * GROUP_COLS, options
    )


def tile_kernel(
    kind: GgmlType, block: int, *, is_grouped: bool, has_gate: bool, has_large_memory: bool = False
) -> Kernel:
    """For weights of a type and tiles of `block` tokens. `has_large_memory`: a program may use 200 KiB of shared
    memory."""
    known = {"IS_GROUPED": is_grouped, "HAS_GATE": has_gate, "BLOCK_T": block, "ROWS": 64 if block == 16 else 128}
    step = tile_step_cols(kind)
    # Formats of more planes than one take so much memory for two stages that fewer programs run at a time.
    is_staged = has_large_memory and block > 16 and kind not in FLOAT_TYPES and LAYOUTS[kind].bits == 4
    options = {"num_warps": 4, "num_stages": 2 if is_staged else 1}
    if kind in FLOAT_TYPES:
        return Kernel(tile_kernels.float_tiles, known | {"STEP_COLS": step}, step, options)
    return Kernel(
        tile_kernels.quantized_tiles, known | {"LAYOUT": LAYOUTS[kind], "GROUPS": step // GROUP_COLS}, step, options
    )


def _blocks(stack: PanelStack, kernel: Kernel) -> int:
    return -(-stack.rows // int(kernel.known["ROWS"]))


def _split(stack: PanelStack, kernel: Kernel, wanted: int) -> tuple[int, int]:
    """(steps of a split, splits)"""
    num_steps = -(-stack.cols // kernel.step_cols)
    steps_per_split = -(-num_steps // max(1, min(num_steps, wanted)))
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


@cache
def _has_large_memory(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) in {(9, 0), (10, 0), (10, 3)}

"""Products of packed matrices with tiles of tokens, by kernels that take exact codes to the tensor cores.

The numbers here were chosen by what the kernels are compiled to for sm_90: with these no thread keeps anything in
memory for want of registers, and a processor has room for eight programs at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from gguf import GGMLQuantizationType as GgmlType

from ballast.model.hybrid.panels import code_kernels
from ballast.model.hybrid.panels.layout import LAYOUTS, SUPER_GROUPS
from ballast.model.hybrid.panels.products import Kernel
from ballast.model.hybrid.panels.stack import PanelStack

MOST_TILES = 5
"""Tiles of tokens that counters are kept for: LEAST_WIDE_TOKENS - 1 tokens at most."""
_TILES = (8, 16, 32)
_TERM_NUMBERS = 64
"""Of a group of 32 columns, in two terms."""
_GROUPS = 4
"""Groups that a program takes at a time."""
_WANTED_PROGRAMS = 1584
"""Twelve for each processor of an H200; with too few rows for that, columns are split among programs."""
_LEAST_STEPS = 4
"""Steps of a program's share of the columns, at least."""


@dataclass(frozen=True, slots=True)
class CodeTerms:
    """Activations of some heads' tokens as `split_columns` orders them."""

    terms: torch.Tensor  # [tokens * heads, groups, 64], bfloat16 on a GPU
    totals: torch.Tensor  # float32 [scales of a column's worth, heads, room for tokens]


def codes_product(stack: PanelStack, given: CodeTerms, out: torch.Tensor, *, arrived: torch.Tensor) -> None:
    """out float32 [T * heads, rows] = x Wᵀ of a quantised type, a matrix a head; T up to 32 * MOST_TILES. `arrived`,
    int32 zeros as many as `num_counters` says, which no other stream uses meanwhile. A token's sums do not depend on
    the others."""
    num_tokens = len(out) // stack.num_experts
    layout = LAYOUTS[stack.ggml_type]
    kernel = code_kernel(stack.ggml_type, num_tokens)
    room, num_supers = given.totals.shape[2], given.totals.shape[0] // (SUPER_GROUPS * layout.subs_per_group)
    num_steps = num_supers * SUPER_GROUPS // _GROUPS
    wanted = min(num_steps // _LEAST_STEPS, _WANTED_PROGRAMS // (_row_blocks(stack) * stack.num_experts))
    steps_per_split = -(-num_steps // max(1, wanted))
    num_splits = -(-num_steps // steps_per_split)
    partial = out.new_empty((num_splits, *out.shape)) if num_splits > 1 else out
    num_tiles = -(-num_tokens // _block(num_tokens))
    kernel.function[_row_blocks(stack), num_tiles, num_splits * stack.num_experts](
        given.terms,
        given.totals,
        *stack.views,
        out,
        partial,
        arrived,
        num_tokens,
        stack.num_experts,
        stack.rows,
        stack.cols,
        stack.panels_per_expert,
        stack.panel_bytes // 4,
        layout.scale_bytes(stack.cols) // 4,
        num_supers,
        room // 8,
        steps_per_split,
        num_splits,
        out.numel(),
        **kernel.known,
        **kernel.options,
    )


def code_terms(x: torch.Tensor, kind: GgmlType, num_heads: int) -> CodeTerms:
    """x float32 [T * heads, cols], contiguous, for weights of a quantised type."""
    num_rows, cols = x.shape
    subs = LAYOUTS[kind].subs_per_group
    num_supers = -(-cols // (SUPER_GROUPS * 32))
    blocks = -(-num_rows // num_heads // 8)
    terms = x.new_empty(
        (num_rows, num_supers * SUPER_GROUPS, _TERM_NUMBERS), dtype=torch.bfloat16 if x.is_cuda else torch.float32
    )
    totals = x.new_empty((num_supers * SUPER_GROUPS * subs, num_heads, blocks * 8))
    code_kernels.split_columns[num_rows, num_supers](
        x, terms, totals, cols, num_heads, num_supers, blocks, SUBS=subs, num_warps=1
    )
    return CodeTerms(terms, totals)


def code_kernel(kind: GgmlType, num_tokens: int) -> Kernel:
    """For weights of a type and so many tokens."""
    known: dict[str, Any] = {"LAYOUT": LAYOUTS[kind], "GROUPS": _GROUPS, "EIGHTS": _block(num_tokens) // 8}
    return Kernel(code_kernels.quantized_codes, known, _GROUPS * 32, {"num_warps": 1, "num_stages": 2})


def num_counters(stack: PanelStack) -> int:
    """Of programs that share columns."""
    return _row_blocks(stack) * stack.num_experts * MOST_TILES


def _block(num_tokens: int) -> int:
    return next((tile for tile in _TILES if num_tokens <= tile), _TILES[-1])


def _row_blocks(stack: PanelStack) -> int:
    return -(-stack.panels_per_expert // 2)

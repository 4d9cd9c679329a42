"""Products of the integer codes of packed matrices with tiles of tokens: selects, compiles and launches the kernels.

The sizes were chosen by measurement (benchmarks/results/resident_experts.jsonl); they are not tuned at start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from gguf import GGMLQuantizationType as GgmlType

from ballast.model.hybrid.panels import int_gemm_kernels
from ballast.model.hybrid.panels.layout import GROUP_COLS, LAYOUTS, SUPER_GROUPS
from ballast.model.hybrid.panels.matmul import Kernel
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.shared_kernels.early_launch import early

MAX_TILES = 5
"""Maximum tiles of tokens, for MIN_CUBLAS_TOKENS - 1 tokens."""
_TILES = (8, 16, 32)
_TERM_NUMBERS = 64
"""Numbers per group of 32 columns, in two terms."""
_SHARE_GROUPS = 4
"""A program's fraction of the columns is a multiple of this number of groups, regardless of the number of groups that
it takes at a time: so a token's sums do not depend on the number of tokens."""
_WANTED_PROGRAMS = 2112
"""Target number of programs on a GPU, sixteen per processor of an H200; if there are too few rows, columns are split
among programs."""
_MIN_SHARE = 4
"""Minimum of a program's fraction of the columns, in units of _SHARE_GROUPS."""


@dataclass(frozen=True, slots=True)
class IntGemmInput:
    """Activations of the tokens of some heads, as `split_columns` splits and orders them."""

    terms: torch.Tensor  # [tokens * heads, groups, 64], bfloat16 on a GPU
    totals: torch.Tensor  # float32 [column ranges of one scale, heads, padded tokens]


def int_gemm(stack: PanelStack, given: IntGemmInput, out: torch.Tensor, *, arrived: torch.Tensor) -> None:
    """out float32 [T * heads, rows] = x Wᵀ for a quantised type, one matrix per head; T is at most 32 * MAX_TILES.
    `arrived`: int32 zeros [`num_counters`]; no other stream may use them at the same time. A token's sums do not depend
    on the other tokens."""
    num_tokens = len(out) // stack.num_experts
    layout = LAYOUTS[stack.ggml_type]
    kernel = int_gemm_kernel(stack.ggml_type, num_tokens)
    padded_tokens, num_supers = given.totals.shape[2], given.totals.shape[0] // (SUPER_GROUPS * layout.subs_per_group)
    num_units = num_supers * SUPER_GROUPS // _SHARE_GROUPS
    num_splits = min(num_units // _MIN_SHARE, _WANTED_PROGRAMS // (_row_blocks(stack) * stack.num_experts))
    share = -(-num_units // max(1, num_splits))
    num_splits = -(-num_units // share)
    steps_per_split = share * _SHARE_GROUPS * GROUP_COLS // kernel.step_cols
    partial = out.new_empty((num_splits, *out.shape)) if num_splits > 1 else out
    num_tiles = -(-num_tokens // _block(num_tokens))
    kernel.function[_row_blocks(stack), num_tiles, num_splits * stack.num_experts](
        given.terms,
        given.totals,
        *stack.operands(out.device),
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
        padded_tokens // 8,
        steps_per_split,
        num_splits,
        out.numel(),
        **kernel.known,
        **kernel.options,
        **early(out.device),
    )


def int_gemm_input(x: torch.Tensor, kind: GgmlType, num_heads: int) -> IntGemmInput:
    """x float32 [T * heads, cols], contiguous, as the operand for weights of a quantised type."""
    num_rows, cols = x.shape
    subs = LAYOUTS[kind].subs_per_group
    num_supers = -(-cols // (SUPER_GROUPS * GROUP_COLS))
    blocks = -(-num_rows // num_heads // 8)
    terms = x.new_empty((num_rows, num_supers * SUPER_GROUPS, _TERM_NUMBERS), dtype=platform_of(x.device).term_dtype)
    totals = x.new_empty((num_supers * SUPER_GROUPS * subs, num_heads, blocks * 8))
    int_gemm_kernels.split_columns[num_rows, num_supers](
        x,
        terms,
        totals,
        cols,
        num_heads,
        num_supers,
        blocks,
        SUBS=subs,
        num_warps=1,
        **early(x.device),
    )
    return IntGemmInput(terms, totals)


def int_gemm_kernel(kind: GgmlType, num_tokens: int) -> Kernel:
    """The kernel for weights of `kind` and `num_tokens` tokens."""
    block, has_one_load = _block(num_tokens), LAYOUTS[kind].code_loads == 1
    groups = {8: 2, 16: 2 if has_one_load else 4, 32: 4 if has_one_load else 2}[block]
    # On an H200, codes with one load per group take 0.94 to 1.03 of the time without the last step's own code, and
    # their kernels compile in half of the time; codes with three loads take 1.3. Others were not measured.
    known: dict[str, Any] = {
        "LAYOUT": LAYOUTS[kind],
        "GROUPS": groups,
        "EIGHTS": block // 8,
        "HAS_LAST_STEP": not has_one_load,
    }
    # Without the compiler's own contractions, tiles of every size give identical bits.
    options = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": False}
    return Kernel(int_gemm_kernels.int_gemm, known, groups * GROUP_COLS, options)


def num_counters(stack: PanelStack) -> int:
    """Number of counters that a matrix needs for programs that share its columns."""
    return _row_blocks(stack) * stack.num_experts * MAX_TILES


def _block(num_tokens: int) -> int:
    return next((tile for tile in _TILES if num_tokens <= tile), _TILES[-1])


def _row_blocks(stack: PanelStack) -> int:
    return -(-stack.panels_per_expert // 2)

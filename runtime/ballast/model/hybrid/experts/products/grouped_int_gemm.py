"""Products of few tokens with their selected experts, by exact codes: selects, compiles and launches the kernels.

The sizes were chosen by measurement (benchmarks/hybrid/resident_experts.py); they are not tuned at start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from gguf import GGMLQuantizationType as GgmlType

from ballast.model.hybrid.experts.products import grouped_int_gemm_kernels
from ballast.model.hybrid.panels.layout import FLOAT_TYPES, GROUP_COLS, LAYOUTS
from ballast.model.hybrid.panels.matmul import Kernel
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.panels.unit import PLAIN, ExpertUnit
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.shared_kernels.early_launch import early

MAX_TOKENS = 128
"""Maximum tokens for which experts are multiplied by exact codes."""
MAX_PAIRS = 1024
"""Maximum pairs of token and expert: all pairs are compared with each other."""
FEW_PAIRS = 128
"""Maximum pairs for the smaller of two comparing kernels."""
_MAX_TOKENS_OF_SMALL_TILES = 64
_GROUPS = 4
"""Groups of 32 columns that a program processes at a time; the same number is being loaded from memory."""
_WANTED_PROGRAMS = 2112
"""Target number of one-token programs on a GPU, sixteen per processor of an H200; if its experts have too few rows,
columns are split among programs."""
_MAX_REGISTERS = 96
"""Registers of a thread for codes of four bits with nested scales and minima, and tiles of four tokens, for which
Triton 3.6 would use 104. With 96, 20 instead of 16 programs run on a processor of an H200, and all of a token's at the
same time."""
_BLOCK_ROWS = 32
_STEP_COLS = 256
_TERM_NUMBERS = 64
"""Numbers per group of 32 columns, in two terms."""


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Rows of activations, as `group_and_split` splits and orders them."""

    terms: torch.Tensor  # [rows, groups, 64], bfloat16 on a GPU
    totals: torch.Tensor  # float32 [rows, groups, 2]


def can_multiply(gate: PanelStack, up: PanelStack, down: PanelStack, num_tokens: int, num_used: int) -> bool:
    """Whether `multiply` supports these matrices for this number of tokens with `num_used` experts each."""
    return (
        not FLOAT_TYPES & {gate.ggml_type, up.ggml_type, down.ggml_type}
        and gate.ggml_type == up.ggml_type
        and is_few(num_tokens, num_used)
    )


def is_few(num_tokens: int, num_used: int) -> bool:
    """Whether there are few enough tokens for `multiply`."""
    return num_tokens <= MAX_TOKENS and num_tokens * num_used <= MAX_PAIRS


def tile_tokens(num_tokens: int) -> int:
    """Maximum tokens in an expert's tile; more of its tokens make another tile."""
    return 4 if num_tokens <= _MAX_TOKENS_OF_SMALL_TILES else 8


def multiply(
    gate: PanelStack,
    up: PanelStack,
    down: PanelStack,
    x: torch.Tensor,
    ids: torch.Tensor,
    unit: ExpertUnit = PLAIN,
) -> torch.Tensor:
    """x float32 [T, D], ids int32 [T, k], both contiguous → float32 [T * k, D]: down(silu(gate x) * up x) for each pair
    of token and expert, with another unit and biases of gate and up if there are any; undefined for an expert that is
    not in the stacks. Never waits for the device, and a pair's result does not depend on the others. `can_multiply`
    returns which stacks and how many tokens are supported."""
    num_tokens, num_used = ids.shape
    first = GroupedProduct((gate, up), num_used)
    second = GroupedProduct((down,), num_used)
    counters = [product.num_blocks if product.is_split else 0 for product in (first, second)]
    tiles, arrived, given = group_and_split(x, ids, gate.num_experts, tile_tokens(num_tokens), sum(counters))
    hidden = new_rows(x, len(tiles), gate.rows)
    first.launch(given, tiles, hidden.terms, hidden.totals, arrived, num_used, unit)
    pairs = x.new_empty((len(tiles), down.rows))
    second.launch(hidden, tiles, pairs, pairs, arrived.view(-1)[counters[0] * len(tiles) :], 1)
    return pairs


def grouped_kernel(kind: GgmlType, tile: int, *, has_up: bool, is_split: bool, unit: ExpertUnit = PLAIN) -> Kernel:
    """The kernel for weights of `kind` and tiles of `tile` tokens."""
    layout = LAYOUTS[kind]
    known: dict[str, Any] = {"LAYOUT": layout, "HAS_UP": has_up, "IS_SPLIT": is_split}
    known |= {"GROUPS": _GROUPS, "EIGHTS": tile // 4} | unit.constants
    step_cols = _GROUPS * GROUP_COLS
    # Without the compiler's own contractions, tiles of every size give identical bits.
    options = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": False}
    if (layout.bits, layout.scales, layout.has_minimum, tile) == (4, "nested", True, 4):
        options["maxnreg"] = _MAX_REGISTERS
    return Kernel(grouped_int_gemm_kernels.grouped_int_gemm, known, step_cols, options)


def group_and_split(
    x: torch.Tensor, ids: torch.Tensor, num_experts: int, tile: int, num_counters: int
) -> tuple[torch.Tensor, torch.Tensor, SplitRows]:
    """(tiles int32 [pairs, tile + 1], counters int32 [pairs, num_counters], x); see the kernel."""
    num_pairs, (num_tokens, cols) = ids.numel(), x.shape
    tiles, arrived = ids.new_empty((num_pairs, tile + 1)), ids.new_empty((num_pairs, num_counters))
    given = new_rows(x, num_tokens, cols)
    grouped_int_gemm_kernels.group_and_split[(num_pairs + num_tokens * -(-cols // _STEP_COLS),)](
        ids,
        x,
        tiles,
        arrived,
        given.terms,
        given.totals,
        num_pairs,
        num_experts,
        num_counters,
        cols,
        PAIRS=FEW_PAIRS if num_pairs <= FEW_PAIRS else MAX_PAIRS,
        TILE=tile,
        num_warps=1,
        **early(x.device),
    )
    return tiles, arrived, given


def new_rows(like: torch.Tensor, num_rows: int, cols: int) -> SplitRows:
    groups = cols // GROUP_COLS
    return SplitRows(
        like.new_empty((num_rows, groups, _TERM_NUMBERS), dtype=platform_of(like.device).term_dtype),
        like.new_empty((num_rows, groups, 2)),
    )


class GroupedProduct:
    """One launch: one matrix of each expert, or the two matrices whose results are combined."""

    def __init__(self, stacks: tuple[PanelStack, ...], num_used: int) -> None:
        """`num_used`: experts per token. It determines how columns are split, so that a token's sums do not depend on
        the number of tokens."""
        stack = stacks[0]
        self._stacks = stacks
        self.num_blocks = -(-stack.rows // _BLOCK_ROWS)
        self._num_groups = stack.cols // GROUP_COLS
        num_steps = -(-self._num_groups // _GROUPS)
        num_splits = round(_WANTED_PROGRAMS / (self.num_blocks * num_used * len(stacks)))
        self._steps_per_split = -(-num_steps // max(1, min(num_steps, num_splits)))
        self._num_splits = -(-num_steps // self._steps_per_split)

    @property
    def num_programs(self) -> int:
        """Number of programs that share a block of rows: splits of the columns of all matrices."""
        return self._num_splits * len(self._stacks)

    @property
    def is_split(self) -> bool:
        """Whether programs store partial sums, and each tile has `num_blocks` counters for them."""
        return self.num_programs > 1

    def launch(
        self,
        given: SplitRows,
        tiles: torch.Tensor,
        out: torch.Tensor,
        out_totals: torch.Tensor,
        arrived: torch.Tensor,
        sharing: int,
        unit: ExpertUnit = PLAIN,
    ) -> None:
        """`sharing` results share one row of `given`. `unit` is for two matrices."""
        stack, other = self._stacks[0], self._stacks[-1]
        layout = LAYOUTS[stack.ggml_type]
        num_results = len(tiles)
        partial = given.totals
        if self.is_split:
            partial = given.totals.new_empty((self.num_programs, num_results, stack.rows))
        kernel = grouped_kernel(
            stack.ggml_type, tiles.shape[1] - 1, has_up=len(self._stacks) > 1, is_split=self.is_split, unit=unit
        )
        kernel.function[self.num_blocks, num_results, self.num_programs](
            given.terms,
            given.totals,
            *stack.views[:2],
            *other.views[:2],
            *stack.operands(out.device)[3:],
            other.operands(out.device)[4],
            tiles,
            out,
            out_totals,
            partial,
            arrived,
            *unit.gate_and_up(out_totals),
            sharing,
            stack.rows,
            self._num_groups,
            stack.panels_per_expert,
            stack.panel_bytes // 4,
            layout.scale_bytes(stack.cols) // 4,
            self._steps_per_split,
            self._num_splits,
            num_results * stack.rows,
            **kernel.known,
            **kernel.options,
            **early(out.device),
        )

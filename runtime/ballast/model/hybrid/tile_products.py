"""Products of packed matrices with tiles of tokens: which kernel, compiled with what, launched how."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from gguf import GGMLQuantizationType as GgmlType

from ballast.model.hybrid import tile_kernels
from ballast.model.hybrid.panel_layout import FLOAT_TYPES, GROUP_COLS, IQ4_STEPS, LAYOUTS
from ballast.model.hybrid.panel_stack import PanelStack

_QUANTIZED_STEP = 256
_FLOAT_STEP = 64


@dataclass(frozen=True, slots=True)
class Groups:
    """Results in the order of their experts, and tiles of them."""

    order: torch.Tensor  # int32 [results]
    tiles: torch.Tensor  # int32 [tiles, 3]: an expert, and its bounds in `order`; expert -1: nothing
    sharing: int
    """Results that have one row of activations."""
    block: int
    """Results in a tile, at most."""


def step_cols(kind: GgmlType) -> int:
    return _FLOAT_STEP if kind in FLOAT_TYPES else _QUANTIZED_STEP


def split_terms(x: torch.Tensor, kind: GgmlType) -> torch.Tensor:
    """x float32 [rows, cols] → [2, rows, padded columns], as the kernel for weights of a type takes them; bfloat16 on a
    GPU."""
    step = step_cols(kind)
    num_steps = -(-x.shape[1] // step)
    terms = x.new_empty((2, len(x), num_steps * step), dtype=torch.bfloat16 if x.is_cuda else torch.float32)
    lines = 0 if kind in FLOAT_TYPES else step // 8
    if len(x):
        tile_kernels.split_terms[(len(x), num_steps)](x, terms, *x.shape, terms.shape[2], LINES=lines, STEP_COLS=step)
    return terms


def grouped_product(
    stack: PanelStack, terms: torch.Tensor, groups: Groups, out: torch.Tensor, gate: torch.Tensor | None = None
) -> None:
    """out[r] = W_e x[r // sharing], times silu(gate[r]) where there is one, for the results in tiles; out, gate float32
    [results, rows], which may be one tensor. Results in no tile are left as they are."""
    function, known, _ = kernel_for(stack.ggml_type, groups.block, is_grouped=True, has_gate=gate is not None)
    steps = -(-stack.cols // step_cols(stack.ggml_type))
    blocks = -(-stack.panels_per_expert * 16 // known["ROWS"])
    sizes = (0, stack.num_experts, groups.sharing, stack.rows, stack.cols, terms.shape[2], terms[0].numel())
    panels = (stack.panels_per_expert, *panel_sizes(stack))
    operands = (out, out if gate is None else gate, groups.order, groups.tiles)
    grid = (blocks, len(groups.tiles), 1)
    function[grid](terms, *weight_operands(stack, out.device), *operands, *sizes, *panels, steps, 0, **known)


def weight_operands(stack: PanelStack, device: torch.device) -> tuple[torch.Tensor, ...]:
    if stack.ggml_type in FLOAT_TYPES:
        return stack.views
    return (*stack.views, _steps(device))


def panel_sizes(stack: PanelStack) -> tuple[int, ...]:
    if stack.ggml_type in FLOAT_TYPES:
        return (stack.panel_bytes // stack.views[0].element_size(),)
    return (stack.panel_bytes, LAYOUTS[stack.ggml_type].scale_bytes(stack.cols))


def kernel_for(
    kind: GgmlType, block_t: int, *, is_grouped: bool, has_gate: bool
) -> tuple[Any, dict[str, Any], dict[str, str]]:
    """The kernel for weights of a type and `block_t` tokens a program, what it is compiled with, and the types of its
    pointers."""
    known: dict[str, Any] = {
        "IS_GROUPED": is_grouped,
        "HAS_GATE": has_gate,
        "ROWS": 64,
        "BLOCK_T": block_t,
        "num_warps": 4,
        "num_stages": 1,
    }
    pointers = {"terms": "*bf16", "out": "*fp32", "gate": "*fp32", "order": "*i32", "tiles": "*i32"}
    if kind in FLOAT_TYPES:
        element = {GgmlType.F32: "*fp32", GgmlType.F16: "*fp16", GgmlType.BF16: "*bf16"}[kind]
        return tile_kernels.float_tiles, known | {"STEP_COLS": _FLOAT_STEP}, pointers | {"values": element}
    layout = LAYOUTS[kind]
    known |= {
        "BITS": layout.bits,
        "SUBS": layout.subs_per_group,
        "OFFSET": layout.offset,
        "IS_FLAT": layout.scales == "flat",
        "IS_NIBBLES": layout.scales == "nibbles",
        "HAS_MINIMUM": layout.has_minimum,
        "IS_TABLE": layout.is_table,
        "SCALE_STRIDE": layout.scale_stride,
        "GROUPS": _QUANTIZED_STEP // GROUP_COLS,
    }
    pointers |= {"words": "*i32", "halves": "*fp16", "codes": "*i8", "steps": "*fp32"}
    return tile_kernels.quantized_tiles, known, pointers


@cache
def _steps(device: torch.device) -> torch.Tensor:
    return torch.tensor(IQ4_STEPS, device=device)

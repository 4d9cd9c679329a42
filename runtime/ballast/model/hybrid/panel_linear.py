"""Linear layers over packed weights on a GPU: the panels of the CPU kernels, decoded on the way to the tensor cores."""

from __future__ import annotations

from typing import Any

import torch
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from ballast.model.hybrid import panel_kernels
from ballast.model.hybrid.panel_layout import FLOAT_TYPES, GROUP_COLS, IQ4_STEPS, LAYOUTS

_FLOATS = {GgmlType.F32: torch.float32, GgmlType.F16: torch.float16, GgmlType.BF16: torch.bfloat16}
_PANELS = 2
"""Panels of 16 rows that a program takes."""
_STEP_COLS = 256
_WANTED_PROGRAMS = 512
"""A few for each processor of a GPU; with too few rows for that, columns are split among programs."""


class PanelLinear:
    """One matrix a head, [heads, rows, cols], packed. Activations and decoded weights are float32, which tensor cores
    take as sums of two TF32 numbers: three products for one (decision 40 says why)."""

    def __init__(
        self, matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool, device: torch.device
    ) -> None:
        """`rows` and `cols` are those of a head, as it is applied; one that was packed transposed holds floats."""
        packed = torch.from_numpy(matrix.panels.copy()).to(device)
        self._num_heads, self._panels_per_head, self._panel_bytes = packed.shape
        self._type = GgmlType.F32 if is_transposed else GgmlType(matrix.ggml_type)
        self._rows, self._cols = rows, cols
        self._packed = packed.reshape(-1)
        self._steps = torch.tensor(IQ4_STEPS, device=device)

    @property
    def num_bytes(self) -> int:
        """What the weights take on the device."""
        return self._packed.numel()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x float32 [T, heads, cols] → float32 [T, heads, rows]; without the heads where there is one."""
        num_tokens = x.shape[0]
        x = x.reshape(num_tokens, self._num_heads, self._cols).contiguous()
        num_steps = -(-self._cols // _STEP_COLS)
        num_blocks = -(-self._panels_per_head // _PANELS) * self._num_heads
        steps_per_split = -(-num_steps // max(1, min(num_steps, _WANTED_PROGRAMS // num_blocks)))
        num_splits = -(-num_steps // steps_per_split)
        out = x.new_empty((num_splits, num_tokens, self._num_heads, self._rows))
        block_t = 16 if num_tokens <= 16 else 64
        grid = (num_blocks, -(-num_tokens // block_t), num_splits)
        if num_tokens:
            self._launch(grid, x, out, steps_per_split, block_t)
        total = out[0] if num_splits == 1 else out.sum(0)
        return total if self._num_heads > 1 else total[:, 0]

    def _launch(
        self, grid: tuple[int, int, int], x: torch.Tensor, out: torch.Tensor, steps_per_split: int, block_t: int
    ) -> None:
        function, known, _ = kernel_for(self._type, block_t)
        sizes = (x.shape[0], self._num_heads, self._rows, self._cols, self._panels_per_head)
        if self._type in FLOAT_TYPES:
            values = self._packed.view(_FLOATS[self._type])
            panel_size = self._panel_bytes // values.element_size()
            function[grid](x, values, out, *sizes, panel_size, steps_per_split, **known)
            return
        views = (self._packed.view(kind) for kind in (torch.int32, torch.float16, torch.int8))
        scale_bytes = LAYOUTS[self._type].scale_bytes(self._cols)
        function[grid](x, *views, self._steps, out, *sizes, self._panel_bytes, scale_bytes, steps_per_split, **known)


def kernel_for(kind: GgmlType, block_t: int) -> tuple[Any, dict[str, Any], dict[str, str]]:
    """The kernel for weights of a type and `block_t` tokens a program, what it is compiled with, and the types of its
    pointers."""
    known: dict[str, Any] = {
        "PANELS": _PANELS,
        "BLOCK_T": block_t,
        "PRECISION": "tf32x3",
        "num_stages": 2 if block_t == 16 else 1,  # more would not fit the shared memory of a consumer's card
    }
    pointers = {"x": "*fp32", "out": "*fp32"}
    if kind in FLOAT_TYPES:
        element = {GgmlType.F32: "*fp32", GgmlType.F16: "*fp16", GgmlType.BF16: "*bf16"}[kind]
        return panel_kernels.float_product, known | {"BLOCK_K": _STEP_COLS}, pointers | {"values": element}
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
        "GROUPS": _STEP_COLS // GROUP_COLS,
    }
    pointers |= {"words": "*i32", "halves": "*fp16", "codes": "*i8", "steps": "*fp32"}
    return panel_kernels.quantized_product, known, pointers

"""Linear layers over packed weights on a GPU: the panels of the CPU kernels, decoded as they are multiplied."""

from __future__ import annotations

import torch
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from ballast.model.hybrid.panels.layout import FLOAT_TYPES
from ballast.model.hybrid.panels.products import (
    LEAST_WIDE_TOKENS,
    MOST_ROW_TOKENS,
    rows_product,
    split_terms,
    tiles_product,
    wide_product,
)
from ballast.model.hybrid.panels.stack import PanelStack


class PanelLinear:
    """One matrix a head, [heads, rows, cols], packed."""

    def __init__(
        self, matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool, device: torch.device
    ) -> None:
        """`rows` and `cols` are those of a head, as it is applied; one that was packed transposed holds floats."""
        packed = torch.from_numpy(matrix.panels.copy()).to(device)
        kind = GgmlType.F32 if is_transposed else GgmlType(matrix.ggml_type)
        self._stack = PanelStack(packed, kind, len(packed), rows, cols)
        self._arrived = torch.zeros(len(packed) * self._stack.panels_per_expert, dtype=torch.int32, device=device)

    @property
    def num_bytes(self) -> int:
        """What the weights take on the device."""
        return self._stack.packed.numel()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x float32 [T, heads, cols] → float32 [T, heads, rows]; without the heads where there is one."""
        stack, num_tokens = self._stack, len(x)
        flat = x.reshape(-1, stack.cols).contiguous()
        out = flat.new_empty((len(flat), stack.rows))
        if 0 < num_tokens <= MOST_ROW_TOKENS:
            rows_product(stack, flat, out, arrived=self._arrived)
        elif num_tokens >= LEAST_WIDE_TOKENS and stack.num_experts == 1 and stack.ggml_type not in FLOAT_TYPES:
            wide_product(stack, split_terms(flat, stack.ggml_type, parts=3), out)
        elif num_tokens:
            tiles_product(stack, split_terms(flat, stack.ggml_type), out)
        return out if stack.num_experts == 1 else out.view(num_tokens, stack.num_experts, stack.rows)

"""Linear layers over packed weights on a GPU: the panels of the CPU kernels, decoded as they are multiplied."""

from __future__ import annotations

import torch
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from ballast.model.hybrid.panels.code_products import code_terms, codes_product, num_counters
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

TRIED_TOKENS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of tokens at which the way of exact codes is tried; those between go as the next larger one."""

Shape = tuple[GgmlType, int, int, int]
"""(type, heads, rows, cols)"""


class PanelLinear:
    """One matrix a head, [heads, rows, cols], packed."""

    def __init__(
        self, matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool, device: torch.device
    ) -> None:
        """`rows` and `cols` are those of a head, as it is applied; one that was packed transposed holds floats."""
        packed = torch.from_numpy(matrix.panels.copy()).to(device)
        kind = GgmlType.F32 if is_transposed else GgmlType(matrix.ggml_type)
        self._stack = PanelStack(packed, kind, len(packed), rows, cols)
        self._arrived = torch.zeros(num_counters(self._stack), dtype=torch.int32, device=device)
        self.coded_tokens: frozenset[int] = frozenset()
        """Of TRIED_TOKENS, those that go by exact codes; see `trial`."""

    @property
    def num_bytes(self) -> int:
        """What the weights take on the device."""
        return self._stack.packed.numel()

    @property
    def shape(self) -> Shape:
        """Type and sizes."""
        return self._stack.ggml_type, self._stack.num_experts, self._stack.rows, self._stack.cols

    @property
    def has_codes(self) -> bool:
        """Whether there is a way of exact codes at all: floats have none."""
        return self._stack.ggml_type not in FLOAT_TYPES

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x float32 [T, heads, cols] → float32 [T, heads, rows]; without the heads where there is one."""
        return self.multiply(x, by_codes=_tried(len(x)) in self.coded_tokens)

    def multiply(self, x: torch.Tensor, *, by_codes: bool) -> torch.Tensor:
        """As a call, by exact codes or not: floats, and LEAST_WIDE_TOKENS or more, never go by them."""
        stack, num_tokens = self._stack, len(x)
        flat = x.reshape(-1, stack.cols).contiguous()
        out = flat.new_empty((len(flat), stack.rows))
        if by_codes and self.has_codes and 0 < num_tokens < LEAST_WIDE_TOKENS:
            terms = code_terms(flat, stack.ggml_type, stack.num_experts)
            codes_product(stack, terms, out, arrived=self._arrived)
        elif 0 < num_tokens <= MOST_ROW_TOKENS:
            rows_product(stack, flat, out, arrived=self._arrived)
        elif num_tokens >= LEAST_WIDE_TOKENS and stack.num_experts == 1 and self.has_codes:
            wide_product(stack, split_terms(flat, stack.ggml_type, parts=3), out)
        elif num_tokens:
            tiles_product(stack, split_terms(flat, stack.ggml_type), out)
        return out if stack.num_experts == 1 else out.view(num_tokens, stack.num_experts, stack.rows)


def _tried(num_tokens: int) -> int:
    return next((tried for tried in TRIED_TOKENS if num_tokens <= tried), TRIED_TOKENS[-1])

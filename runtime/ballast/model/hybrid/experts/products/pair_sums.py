"""Routed experts of thousands of tokens on a GPU: each expert is decoded to memory once and multiplied with all its
tokens."""

from __future__ import annotations

import torch

from ballast.model.hybrid.experts.products import many_pairs_kernels
from ballast.model.hybrid.experts.products.pair_sizes import DECODED_BYTES, HIDDEN_BYTES, SUMS
from ballast.model.hybrid.panels.layout import FLOAT_TYPES, GROUP_COLS, LAYOUTS, PANEL_ROWS
from ballast.model.hybrid.panels.matmul import gemm_input
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.panels.unit import PLAIN, ExpertUnit
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.steps.slices import even_bounds

_BLOCK, _ROWS = 128, 128
"""Pairs and rows per tile."""
_STEP_COLS = 256
_DECODED_ROWS = 32
_LINES = 32
"""Number of columns of a step that one code of each word covers; see `round_to_half`."""


def can_decode(*stacks: PanelStack) -> bool:
    """Whether these matrices can be decoded: they must be quantised and consist of whole panels."""
    return all(stack.ggml_type not in FLOAT_TYPES and stack.rows % PANEL_ROWS == 0 for stack in stacks)


class PairSums:
    """The sums of one layer's experts for T tokens. Experts are added in the order of calls, in rotation to SUMS sums:
    no two programs add to the same number, and the order of additions is fixed."""

    def __init__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, num_experts: int) -> None:
        """x float32 [T, D], ids int32 [T, k], weights float32 [T, k]. Ids outside 0…num_experts - 1 add nothing; a
        token has each expert at most once."""
        self._num_tokens, self._num_used = ids.shape
        self._x = gemm_input(x.contiguous(), next(iter(LAYOUTS)))  # the same for every quantised type
        self._shares = weights.contiguous()
        self._sums = x.new_zeros((SUMS, *x.shape))
        flat = ids.reshape(-1)
        keys, order = torch.where((flat >= 0) & (flat < num_experts), flat, num_experts).sort(stable=True)
        bounds = torch.arange(num_experts + 1, dtype=torch.int32, device=ids.device)
        self._order = order.int()
        self._begins = torch.searchsorted(keys, bounds).int()

    @property
    def total(self) -> torch.Tensor:
        """float32 [T, D], in the memory of the sums, which must not be used afterwards."""
        total = self._sums[0]
        for other in self._sums[1:]:
            total += other
        return total

    def _experts_at_once(self, gate: PanelStack, down: PanelStack) -> int:
        """Number of experts whose decoded matrices and hidden values fit in the buffers; at least one."""
        num_bytes = self._x.element_size()
        hidden_cols = _padded(gate.rows)
        gated_bytes = 2 * gate.rows * self._x.shape[1] * num_bytes
        down_bytes = down.rows * hidden_cols * num_bytes
        of_hidden = HIDDEN_BYTES // (self._num_tokens * hidden_cols * num_bytes)
        return max(1, min(gate.num_experts, DECODED_BYTES // max(gated_bytes, down_bytes), of_hidden))

    def add(self, first: int, gate: PanelStack, up: PanelStack, down: PanelStack, *, unit: ExpertUnit = PLAIN) -> None:
        """Add experts first … first + gate.num_experts - 1, whose matrices satisfy `can_decode`. Never waits for the
        device."""
        platform = platform_of(self._sums.device)
        tile = {
            "BLOCK": _BLOCK,
            "ROWS": _ROWS,
            "COLS": 64 if platform.has_large_memory else 32,
            "num_warps": 8,
            "num_stages": 4,
        }
        for begin, end in even_bounds(0, gate.num_experts, self._experts_at_once(gate, down)):
            hidden = self._hidden(first, begin, end, gate, up, unit, tile)
            self._add_down(first, begin, end, hidden, down, unit, tile)

    def _hidden(
        self,
        first: int,
        begin: int,
        end: int,
        gate: PanelStack,
        up: PanelStack,
        unit: ExpertUnit,
        tile: dict[str, int],
    ) -> torch.Tensor:
        """The hidden values of the pairs of slots begin … end - 1, whose first expert is first + begin."""
        padded_cols, hidden_cols, num_rows = self._x.shape[1], _padded(gate.rows), 2 * gate.rows
        gate_bias, up_bias, alpha, limit = unit.gate_and_up(self._shares)
        decoded = self._x.new_empty(((end - begin) * num_rows, padded_cols))
        _decode(gate, begin, end, decoded, row_step=2, row_place=0)
        _decode(up, begin, end, decoded, row_step=2, row_place=1)
        most_pairs = self._num_tokens * min(self._num_used, end - begin)
        # Padding columns are multiplied with zeros, and must not be NaN or infinite.
        make = torch.empty if hidden_cols == gate.rows else torch.zeros
        hidden = make((most_pairs, hidden_cols), dtype=decoded.dtype, device=decoded.device)
        many_pairs_kernels.gated_pairs[(platform_of(hidden.device).num_processors,)](
            self._x,
            self._order,
            self._begins,
            decoded,
            hidden,
            first + begin,
            end - begin,
            self._num_used,
            num_rows,
            padded_cols,
            hidden_cols,
            gate_bias,
            up_bias,
            begin,
            alpha,
            limit,
            LINES=_LINES,
            **unit.constants,
            **tile,
        )
        return hidden

    def _add_down(
        self,
        first: int,
        begin: int,
        end: int,
        hidden: torch.Tensor,
        down: PanelStack,
        unit: ExpertUnit,
        tile: dict[str, int],
    ) -> None:
        """Add the products of down with hidden values to the sums."""
        hidden_cols = hidden.shape[1]
        decoded = self._x.new_empty(((end - begin), down.rows, hidden_cols))
        _decode(down, begin, end, decoded, row_step=1, row_place=0)
        for expert in range(begin, end, len(self._sums)):
            many_pairs_kernels.add_pairs[(platform_of(hidden.device).num_processors,)](
                hidden,
                self._order,
                self._begins,
                self._shares,
                decoded[expert - begin],
                self._sums,
                first + begin,
                first + expert,
                min(len(self._sums), end - expert),
                self._num_tokens,
                self._num_used,
                down.rows,
                hidden_cols,
                self._shares if unit.down_bias is None else unit.down_bias,
                expert,
                HAS_BIAS=unit.down_bias is not None,
                **tile,
            )


def _decode(stack: PanelStack, begin: int, end: int, decoded: torch.Tensor, *, row_step: int, row_place: int) -> None:
    num_rows = (end - begin) * stack.rows
    layout, padded_cols = LAYOUTS[stack.ggml_type], decoded.shape[-1]
    many_pairs_kernels.decode_rows[padded_cols // _STEP_COLS, -(-num_rows // _DECODED_ROWS)](
        *stack.operands(decoded.device),
        decoded,
        begin * stack.rows,
        num_rows,
        row_place,
        stack.rows,
        stack.cols,
        stack.panel_bytes // 4,
        layout.scale_bytes(stack.cols) // 4,
        padded_cols,
        LAYOUT=layout,
        GROUPS=_STEP_COLS // GROUP_COLS,
        ROWS=_DECODED_ROWS,
        ROW_STEP=row_step,
        num_warps=4,
    )


def _padded(cols: int) -> int:
    return -(-cols // _STEP_COLS) * _STEP_COLS

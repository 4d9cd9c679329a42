"""A reference for `ExpertPanels` with torch operations, for any device and panels of float32."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.panels.unit import PLAIN, ExpertUnit
from devkit.kernels.torch_unit import unit_of


class FloatExperts:
    """GroupedExperts that read their panels when they are called."""

    def __init__(
        self,
        gate: PanelStack,
        up: PanelStack,
        down: PanelStack,
        *,
        unit: ExpertUnit = PLAIN,
        rounded: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.float,
    ) -> None:
        """`rounded`: applied to both factors of each product."""
        self._matrices = gate, up, down
        self._unit = unit
        self._rounded = rounded

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See `GroupedExperts`."""
        total = torch.zeros_like(x)
        for expert in range(self._matrices[0].num_experts):
            share = (weights * (ids == expert)).sum(1, keepdim=True)
            if not share.any():
                continue  # most experts of a small step
            gate, up, down = (self._rounded(self._floats(each, expert)) for each in self._matrices)
            given = self._rounded(x)
            gates = _biased(given @ gate.T, self._unit.gate_bias, expert)
            hidden = unit_of(gates, _biased(given @ up.T, self._unit.up_bias, expert), self._unit.unit)
            total += share * _biased(self._rounded(hidden) @ down.T, self._unit.down_bias, expert)
        return total

    @staticmethod
    def _floats(panels: PanelStack, expert: int) -> torch.Tensor:
        """[rows, cols]; panels are [column][16 rows]."""
        floats = panels.packed.view(torch.float32).view(panels.num_experts, -1, panels.cols, 16)[expert]
        return floats.transpose(1, 2).flatten(0, 1)[: panels.rows]


def _biased(products: torch.Tensor, bias: torch.Tensor | None, expert: int) -> torch.Tensor:
    return products if bias is None else products + bias[expert]

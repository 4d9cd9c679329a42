"""Routed experts over float32 panels in plain torch: what `ExpertPanels` is to a GPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ballast.model.hybrid.panel_layout import PANEL_ROWS
from ballast.model.hybrid.panel_stack import PanelStack


class FloatExperts:
    """Reads the panels when it is called."""

    def __init__(self, gate: PanelStack, up: PanelStack, down: PanelStack) -> None:
        self._stacks = gate, up, down

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x float32 [T, D], ids int32 [T, k], weights float32 [T, k] → float32 [T, D]; other ids add nothing."""
        gate, up, down = map(_weights, self._stacks)
        total = torch.zeros_like(x)
        for expert in range(len(gate)):
            share = (weights * (ids == expert)).sum(1, keepdim=True)
            hidden = F.silu(x @ gate[expert].T) * (x @ up[expert].T)
            total += share * (hidden @ down[expert].T)
        return total


def _weights(stack: PanelStack) -> torch.Tensor:
    """[experts, rows, cols]; a panel is [column][16 rows]."""
    floats = stack.packed.view(torch.float32).view(stack.num_experts, -1, stack.cols, PANEL_ROWS)
    return floats.transpose(2, 3).flatten(1, 2)[:, : stack.rows]

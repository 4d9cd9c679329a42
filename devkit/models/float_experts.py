"""A reference for `ExpertPanels` with torch operations, for any device and panels of float32."""

from __future__ import annotations

import torch

from ballast.model.hybrid.panels.stack import PanelStack


class FloatExperts:
    """GroupedExperts that read their panels when they are called."""

    def __init__(self, *matrices: PanelStack) -> None:
        """Gate, up and down."""
        self._matrices = matrices

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See `GroupedExperts`."""
        gate, up, down = map(self._floats, self._matrices)
        total = torch.zeros_like(x)
        for expert in range(self._matrices[0].num_experts):
            share = (weights * (ids == expert)).sum(1, keepdim=True)
            hidden = torch.nn.functional.silu(x @ gate[expert].T) * (x @ up[expert].T)
            total += share * (hidden @ down[expert].T)
        return total

    @staticmethod
    def _floats(panels: PanelStack) -> torch.Tensor:
        """[experts, rows, cols]; panels are [column][16 rows]."""
        floats = panels.packed.view(torch.float32).view(panels.num_experts, -1, panels.cols, 16)
        return floats.transpose(2, 3).flatten(1, 2)[:, : panels.rows]

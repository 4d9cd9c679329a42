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
        total = torch.zeros_like(x)
        for expert in range(self._matrices[0].num_experts):
            share = (weights * (ids == expert)).sum(1, keepdim=True)
            if not share.any():
                continue  # most experts of a small step
            gate, up, down = (self._floats(each, expert) for each in self._matrices)
            hidden = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
            total += share * (hidden @ down.T)
        return total

    @staticmethod
    def _floats(panels: PanelStack, expert: int) -> torch.Tensor:
        """[rows, cols]; panels are [column][16 rows]."""
        floats = panels.packed.view(torch.float32).view(panels.num_experts, -1, panels.cols, 16)[expert]
        return floats.transpose(1, 2).flatten(0, 1)[: panels.rows]

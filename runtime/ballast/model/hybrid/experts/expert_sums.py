"""The sums of a layer's experts that come to a GPU chunk by chunk."""

from __future__ import annotations

import torch

from ballast.model.hybrid.experts import pair_sums
from ballast.model.hybrid.experts.expert_panels import ExpertPanels
from ballast.model.hybrid.experts.pair_sums import PairSums
from ballast.model.hybrid.panels.stack import PanelStack


class ExpertSums:
    """`LayerSums` on a GPU. What all chunks need of the tokens is made once."""

    def __init__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, num_experts: int) -> None:
        """See `MakeSums`."""
        self.total = torch.zeros_like(x)
        self._given = x, ids, weights
        self._pairs: PairSums | None = None
        if pair_sums.pays(ids.shape[0], ids.shape[1], num_experts):
            self._pairs = PairSums(x, ids, weights, num_experts, self.total)

    def add(self, first: int, gate: PanelStack, up: PanelStack, down: PanelStack) -> None:
        """See `LayerSums`."""
        if self._pairs is not None and pair_sums.can_decode(gate, up, down):
            self._pairs.add(first, gate, up, down)
            return
        x, ids, weights = self._given
        self.total += ExpertPanels(gate, up, down)(x, ids - first, weights)

"""The sums of a layer's experts that arrive on a GPU chunk by chunk."""

from __future__ import annotations

import torch

from ballast.model.hybrid.experts.products.expert_panels import ExpertPanels
from ballast.model.hybrid.experts.products.pair_sizes import is_faster
from ballast.model.hybrid.experts.products.pair_sums import PairSums, can_decode
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.panels.unit import PLAIN, ExpertUnit


class ExpertSums:
    """`LayerSums` on a GPU. Data of the tokens that all chunks need is computed once."""

    def __init__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, num_experts: int) -> None:
        """See `MakeSums`."""
        self._given = x, ids, weights
        self._pairs = PairSums(x, ids, weights, num_experts) if is_faster(len(ids), ids.shape[1], num_experts) else None
        self._others: torch.Tensor | None = None

    @property
    def total(self) -> torch.Tensor:
        """See `LayerSums`."""
        if self._pairs is None:
            assert self._others is not None, "no expert was added"
            return self._others
        total = self._pairs.total
        return total if self._others is None else total.add_(self._others)

    def add(self, first: int, gate: PanelStack, up: PanelStack, down: PanelStack, *, unit: ExpertUnit = PLAIN) -> None:
        """See `LayerSums`."""
        if self._pairs is not None and can_decode(gate, up, down):
            self._pairs.add(first, gate, up, down, unit=unit)
            return
        x, ids, weights = self._given
        found = ExpertPanels(gate, up, down, unit=unit)(x, ids - first, weights)
        self._others = found if self._others is None else self._others.add_(found)

"""Sparse attention of one lane: stores the positions that a layer selects for the layers that attend to them."""

from __future__ import annotations

import torch

from ballast.model.hybrid.recurrent.state_rows import owners_of
from ballast.model.hybrid.sparse.choice import PositionChoice
from ballast.model.hybrid.sparse.chosen import ChosenAttention
from ballast.model.hybrid.steps.step import Step


class SparseAttention:
    """`Attention` to the positions that the layer itself, or the nearest layer below with an indexer, has selected for
    each slice."""

    def __init__(self, choose: PositionChoice, attend: ChosenAttention, *, is_shared: bool) -> None:
        """`is_shared`: whether some layers use the selection of a layer below; otherwise each selection is freed after
        its use."""
        self._choose = choose
        self._attend = attend
        self._is_shared = is_shared
        # By the number of a slice in its step.
        self._owners: dict[int, torch.Tensor] = {}
        self._chosen: dict[int, torch.Tensor] = {}
        self._single_owners: dict[int, torch.Tensor] = {}

    def prepare(self, step: Step) -> None:
        """See `Attention`. Owners of single tokens stay at one address for graphs."""
        self._chosen.clear()
        self._owners.clear()
        for own in [part.step for part in step.slices] or [step]:
            self._owners[own.requests.place] = self._owners_of(own)

    def choose(self, query: torch.Tensor, weights: torch.Tensor | None, keys: torch.Tensor, step: Step) -> None:
        """Select positions for this layer and the layers above it without an indexer; see `PositionChoice`."""
        place = step.requests.place
        self._chosen[place] = self._choose(query, weights, keys, self._owners[place], step)

    def __call__(
        self, query: torch.Tensor, cache: torch.Tensor, step: Step, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Attention`; there are no sinks."""
        place = step.requests.place
        chosen = self._chosen[place] if self._is_shared else self._chosen.pop(place)
        return self._attend(query, cache, chosen, self._owners[place], step)

    def _owners_of(self, step: Step) -> torch.Tensor:
        """int32 [T]: the request of each token. A step with states already has them on the device."""
        requests, device = step.requests, step.requests.lens.device
        if step.states is not None:
            return step.states.owners
        if not requests.adds_one_each:
            return torch.from_numpy(owners_of(requests.host_begins)).to(device)
        if requests.num_requests not in self._single_owners:
            self._single_owners[requests.num_requests] = torch.arange(
                requests.num_requests, dtype=torch.int32, device=device
            )
        return self._single_owners[requests.num_requests]

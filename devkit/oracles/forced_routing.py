"""A model that uses the experts that another model has chosen, if the choice was a near tie.

Two experts can have scores so similar that rounding decides between them. Another choice changes the token's result as
much as a wrong kernel would, although nothing is wrong. If both models use the same experts, only rounding differs
between them. A choice that is not a near tie is rejected and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ballast.model.hybrid.experts.routing import Choose
from ballast.model.hybrid.model import HybridModel
from devkit.kernels.plain_routing import Router, scores_of

MAX_MOVED = 2e-3
"""Largest score difference (probability or sigmoid) that counts as a near tie."""
_ROUNDED = 1e-6
"""Exceeds the difference between two ways to compute an exponential."""


class ForcedRouting:
    """Makes `follower` use the experts that `leader` has chosen in the same step. `leader` runs first."""

    def __init__(self, leader: HybridModel, follower: HybridModel, most_tokens: int) -> None:
        """Call before `leader` captures its steps. These have at most `most_tokens` tokens. `follower` is on the
        CPU."""
        self.num_choices = 0
        """Expert selections so far, one per token and layer."""
        self.num_differing = 0
        """Selections that the follower would have made differently."""
        self.num_refused = 0
        """Selections that the follower made differently, because the leader's is not a near tie."""
        spec = leader._spec
        self.num_layers = sum(layer.experts is not None and not layer.experts.table_rows for layer in spec.layers)
        """Number of layers whose experts are selected by scores."""
        # On the device of the layer: a captured step copies to no other device.
        device_of = {layer: each.torch_device for each in leader.devices for layer in each.layers}
        devices, routing = [device_of[layer] for layer in spec.routed_layers], spec.routing
        self._logits = [torch.zeros((most_tokens, routing.num_experts), device=device) for device in devices]
        self._chosen = [
            torch.zeros((most_tokens, routing.num_experts_used), dtype=torch.int32, device=device) for device in devices
        ]
        _rechoose(leader, self._noted)
        _rechoose(follower, self._forced)

    def _noted(self, layer: int, choose: Choose) -> Choose:
        def chosen(logits: torch.Tensor, token_ids: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
            ids, weights = choose(logits, token_ids)
            self._logits[layer][: len(ids)].copy_(logits)  # a captured step replays this copy
            self._chosen[layer][: len(ids)].copy_(ids)
            return ids, weights

        return chosen

    def _forced(self, layer: int, choose: Choose) -> Choose:
        assert isinstance(choose, Router)
        rule, bias = choose._rule, 0.0 if choose._bias is None else choose._bias

        def chosen(logits: torch.Tensor, token_ids: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
            theirs = self._chosen[layer][: len(logits)].cpu().long()
            apart = scores_of(self._logits[layer][: len(logits)].cpu(), rule) - scores_of(logits, rule)
            moved = apart.clamp(-MAX_MOVED, MAX_MOVED)
            moved += torch.full_like(moved, -_ROUNDED).scatter(1, theirs, _ROUNDED)
            ids, weights = Router(rule, bias + moved)(logits)
            self.num_choices += len(ids)
            self.num_differing += _count_differing(choose(logits)[0], theirs)
            self.num_refused += _count_differing(ids, theirs)
            return ids, weights

        return chosen


def _rechoose(model: HybridModel, make: Callable[[int, Choose], Choose]) -> None:
    layers, index = [], 0
    for layer, own in zip(model.layers.weights.layers, model._spec.layers, strict=True):
        if layer.routed is not None:
            if own.experts is not None and not own.experts.table_rows:
                layer = replace(layer, routed=replace(layer.routed, choose=make(index, layer.routed.choose)))
            index += 1
        layers.append(layer)
    model.layers.weights = replace(model.layers.weights, layers=tuple(layers))


def _count_differing(ids: torch.Tensor, theirs: torch.Tensor) -> int:
    return int((ids.long().sort(1).values != theirs.sort(1).values).any(1).sum())

"""A model whose tokens attend to the positions that another model has chosen, if the choice was a near tie.

Like `forced_routing.py` for experts: the scores of two positions may be so close that rounding decides between them.
Attending to the other position changes a token as much as a wrong kernel would. A choice that is not a near tie is
rejected and counted.
"""

from __future__ import annotations

from typing import Any

import torch

from ballast.model.hybrid.layers.attention_layers import AttentionLayers
from ballast.model.hybrid.layers.compressed_attention import CompressedAttention
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.sparse.choice import PlainPositionChoice, PositionChoice, highest
from ballast.model.hybrid.sparse.sparse import SparseAttention
from ballast.model.hybrid.steps.step import Step

MAX_MOVED = 0.02
"""Largest score difference that counts as a near tie, as a fraction of the row's largest score."""


def _chooser(lane: AttentionLayers) -> Any:
    """What selects positions, or compressed entries, in a lane: one object for all layers."""
    [chooser] = {
        kind._compression if isinstance(kind, CompressedAttention) else kind.attend
        for kind in lane.kinds
        if isinstance(kind.attend, SparseAttention) or (isinstance(kind, CompressedAttention) and kind._mixer.index)
    }
    return chooser


class ForcedPositions:
    """Makes `follower` attend to the positions, or the compressed entries, that `leader` has chosen in the same step.
    `leader` runs first. Steps are not cut into slices."""

    def __init__(self, leader: HybridModel, follower: HybridModel, most_tokens: int) -> None:
        """Call before `leader` captures its steps. These have at most `most_tokens` tokens. `follower` is on the
        CPU."""
        self.num_choices = 0
        """Position choices so far, one per token and layer in which more positions are visible than may be chosen."""
        self.num_differing = 0
        """Choices that the follower would have made differently."""
        self.num_refused = 0
        """Choices that the follower made differently, because the leader's is not a near tie."""
        self._sizes = _chooser(leader.devices[0].attention)._choose._sizes
        shape = most_tokens, self._sizes.most_chosen
        caches = [layer for device in leader.devices for layer in device.kv.layers]
        # On the device of the layer: a captured step copies to no other device.
        self._chosen = [
            torch.zeros(shape, dtype=torch.int32, device=cache.index_keys.device)
            for cache in caches
            if cache.index_keys is not None
        ]
        for model, make in ((leader, self._noted), (follower, self._forced)):
            layers = [layer for device in model.devices for layer in device.kv.layers]
            keys = [layer.index_keys for layer in layers if layer.index_keys is not None]
            of_layer = {of.data_ptr(): number for number, of in enumerate(keys)}
            lanes = [lane for device in model.devices for lane in (device.attention, device.prefill_attention)]
            for chooser in dict.fromkeys(map(_chooser, lanes)):
                chooser._choose = make(of_layer, chooser._choose)

    def _noted(self, of_layer: dict[int, int], choose: PositionChoice) -> PositionChoice:
        def chosen(
            query: torch.Tensor, weights: torch.Tensor | None, keys: torch.Tensor, owners: torch.Tensor, step: Step
        ) -> torch.Tensor:
            found = choose(query, weights, keys, owners, step)
            self._chosen[of_layer[keys.data_ptr()]][: len(found)].copy_(found)  # a captured step replays this copy
            return found

        return chosen

    def _forced(self, of_layer: dict[int, int], choose: PositionChoice) -> PositionChoice:
        assert isinstance(choose, PlainPositionChoice)

        def chosen(
            query: torch.Tensor, weights: torch.Tensor | None, keys: torch.Tensor, owners: torch.Tensor, step: Step
        ) -> torch.Tensor:
            ours = choose(query, weights, keys, owners, step)
            theirs = self._chosen[of_layer[keys.data_ptr()]][: len(ours)].cpu()
            for token, owner in enumerate(owners.tolist()):
                num_seen = (int(step.positions[token]) + 1) // self._sizes.pool
                if num_seen <= self._sizes.top_pools:
                    continue
                own = slice(token, token + 1)
                own_weights = None if weights is None else weights[own]
                [scores] = choose.scores(query[own], own_weights, keys, step.requests.blocks[owner])
                ours[token] = self._nearest(scores[:num_seen], ours[token], theirs[token])
            return ours

        return chosen

    def _nearest(self, scores: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        """The leader's choice (`theirs`) where its scores are within the tolerance, else the follower's (`ours`)."""
        self.num_choices += 1
        pool = self._sizes.pool if self._sizes.spreads else 1
        num_pooled = self._sizes.top_pools * pool
        their_pools = theirs[:num_pooled:pool] // pool
        if torch.equal(ours[:num_pooled], theirs[:num_pooled]):
            return ours
        self.num_differing += 1
        moved = torch.zeros_like(scores)
        moved[their_pools.long()] = MAX_MOVED * scores.abs().max()
        num_seen = torch.tensor([len(scores)])
        if torch.equal(highest((scores + moved)[None], num_seen, self._sizes.top_pools)[0], their_pools):
            return theirs
        self.num_refused += 1
        return ours

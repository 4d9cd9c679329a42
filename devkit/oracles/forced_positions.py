"""A model whose tokens attend to the positions that another model has chosen, if the choice was a near tie.

Like `forced_routing.py` for experts: the scores of two positions may be so close that rounding decides between them.
Attending to the other position changes a token as much as a wrong kernel would. A choice that is not a near tie is
rejected and counted.
"""

from __future__ import annotations

import torch

from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.sparse.choice import PlainPositionChoice, PositionChoice, highest
from ballast.model.hybrid.sparse.sparse import SparseAttention
from ballast.model.hybrid.steps.step import Step

MAX_MOVED = 0.02
"""Largest score difference that counts as a near tie, as a fraction of the row's largest score."""


class ForcedPositions:
    """Makes `follower` attend to the positions that `leader` has chosen in the same step. `leader` runs first. Steps
    are not cut into slices."""

    def __init__(self, leader: HybridModel, follower: HybridModel, most_tokens: int) -> None:
        """Call before `leader` captures its steps. These have at most `most_tokens` tokens. `follower` is on the
        CPU."""
        self.num_choices = 0
        """Position choices so far, one per token and layer in which more positions are visible than may be chosen."""
        self.num_differing = 0
        """Choices that the follower would have made differently."""
        self.num_refused = 0
        """Choices that the follower made differently, because the leader's is not a near tie."""
        spec = leader._spec
        self._pool, self._top_pools = spec.choices[0].pool, spec.choices[0].top_k // spec.choices[0].pool
        shape = most_tokens, spec.choices[0].most_chosen
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
            for lane in (lane for device in model.devices for lane in (device.attention, device.prefill_attention)):
                [attend] = {kind.attend for kind in lane.kinds if kind.attend is not None}
                assert isinstance(attend, SparseAttention)
                attend._choose = make(of_layer, attend._choose)

    def _noted(self, of_layer: dict[int, int], choose: PositionChoice) -> PositionChoice:
        def chosen(
            query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, owners: torch.Tensor, step: Step
        ) -> torch.Tensor:
            found = choose(query, weights, keys, owners, step)
            self._chosen[of_layer[keys.data_ptr()]][: len(found)].copy_(found)  # a captured step replays this copy
            return found

        return chosen

    def _forced(self, of_layer: dict[int, int], choose: PositionChoice) -> PositionChoice:
        assert isinstance(choose, PlainPositionChoice)

        def chosen(
            query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, owners: torch.Tensor, step: Step
        ) -> torch.Tensor:
            ours = choose(query, weights, keys, owners, step)
            theirs = self._chosen[of_layer[keys.data_ptr()]][: len(ours)].cpu()
            for token, owner in enumerate(owners.tolist()):
                num_seen = (int(step.positions[token]) + 1) // self._pool
                if num_seen <= self._top_pools:
                    continue
                own = slice(token, token + 1)
                [scores] = choose.scores(query[own], weights[own], keys, step.requests.blocks[owner])
                ours[token] = self._nearest(scores[:num_seen], ours[token], theirs[token])
            return ours

        return chosen

    def _nearest(self, scores: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        """The leader's choice (`theirs`) where its scores are within the tolerance, else the follower's (`ours`)."""
        self.num_choices += 1
        their_pools = theirs[: self._top_pools * self._pool : self._pool] // self._pool
        if torch.equal(ours[: self._top_pools * self._pool], theirs[: self._top_pools * self._pool]):
            return ours
        self.num_differing += 1
        moved = torch.zeros_like(scores)
        moved[their_pools.long()] = MAX_MOVED * scores.abs().max()
        num_seen = torch.tensor([len(scores)])
        if torch.equal(highest((scores + moved)[None], num_seen, self._top_pools)[0], their_pools):
            return theirs
        self.num_refused += 1
        return ours

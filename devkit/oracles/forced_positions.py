"""A model whose tokens attend to the positions that another has chosen, wherever the choice was a near tie.

Like `forced_routing.py` for experts: two positions may have such close scores that any rounding decides between them. A
token that attends to the other changes as much as a wrong kernel would change it. A choice that no near tie explains is
refused, and counted.
"""

from __future__ import annotations

import torch

from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.sparse.choice import PlainPositionChoice, PositionChoice, highest
from ballast.model.hybrid.sparse.sparse import SparseAttention
from ballast.model.hybrid.step import Step
from ballast.model.layers.latent import LatentSpec

MAX_MOVED = 0.02
"""How far the follower takes a score for the leader's, as a share of the largest of its row."""


class ForcedPositions:
    """Makes `follower` attend to what `leader` has chosen in the same step, which `leader` has run before. Steps are
    not cut into slices."""

    def __init__(self, leader: HybridModel, follower: HybridModel, most_tokens: int) -> None:
        """Before `leader` captures its steps, which have at most `most_tokens` tokens. `follower` is on the CPU."""
        self.num_choices = 0
        """Of the positions of a token in a layer that sees more than it may choose, so far."""
        self.num_differing = 0
        """Of them, those that the follower would have made otherwise."""
        self.num_refused = 0
        """Of them, those that it has made otherwise, for no near tie explains the leader's."""
        spec = leader._spec
        num_indexers = sum(isinstance(layer.mixer, LatentSpec) and layer.mixer.has_indexer for layer in spec.layers)
        shape = num_indexers, most_tokens, spec.choices[0].top_k
        self._chosen = torch.zeros(shape, dtype=torch.int32, device=leader.devices[0].torch_device)
        for model, make in ((leader, self._noted), (follower, self._forced)):
            layers = [layer for device in model.devices for layer in device.kv.layers]
            keys = [layer.index_keys for layer in layers if layer.index_keys is not None]
            of_layer = {of.data_ptr(): number for number, of in enumerate(keys)}
            for lane in (lane for device in model.devices for lane in (device.attention, device.prefill_attention)):
                attend = lane.kinds[0].attend
                assert isinstance(attend, SparseAttention)
                attend._choose = make(of_layer, attend._choose)

    def _noted(self, of_layer: dict[int, int], choose: PositionChoice) -> PositionChoice:
        def chosen(
            query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, owners: torch.Tensor, step: Step
        ) -> torch.Tensor:
            found = choose(query, weights, keys, owners, step)
            self._chosen[of_layer[keys.data_ptr()], : len(found)].copy_(found)  # which a captured step does again
            return found

        return chosen

    def _forced(self, of_layer: dict[int, int], choose: PositionChoice) -> PositionChoice:
        assert isinstance(choose, PlainPositionChoice)

        def chosen(
            query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, owners: torch.Tensor, step: Step
        ) -> torch.Tensor:
            ours = choose(query, weights, keys, owners, step)
            theirs = self._chosen[of_layer[keys.data_ptr()], : len(ours)].cpu()
            for token, owner in enumerate(owners.tolist()):
                num_seen = int(step.positions[token]) + 1
                if num_seen <= ours.shape[1]:
                    continue
                own = slice(token, token + 1)
                [scores] = choose.scores(query[own], weights[own], keys, step.requests.blocks[owner])
                ours[token] = self._nearest(scores[:num_seen], ours[token], theirs[token])
            return ours

        return chosen

    def _nearest(self, scores: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        """Theirs, where their scores could be as high as ours."""
        self.num_choices += 1
        if torch.equal(ours, theirs):
            return ours
        self.num_differing += 1
        moved = torch.zeros_like(scores)
        moved[theirs.long()] = MAX_MOVED * scores.abs().max()
        num_seen = torch.tensor([len(scores)])
        if torch.equal(highest((scores + moved)[None], num_seen, len(ours))[0], theirs):
            return theirs
        self.num_refused += 1
        return ours

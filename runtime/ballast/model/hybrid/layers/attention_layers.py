"""The mixers of layers, attention or recurrent ones, from their normed input to their contribution to the stream.

A long step is computed slice by slice, so that the size of queries and intermediate results is bounded. A slice's
tokens are in the cache before its queries read it, and the next slice begins with the state that it leaves. Shapes:
T tokens, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import torch

from ballast.model.batch import Batch
from ballast.model.hybrid.attention.attention import Attention
from ballast.model.hybrid.steps.pieces import Pieces
from ballast.model.hybrid.steps.slices import SliceSizes
from ballast.model.hybrid.steps.step import Step

Weights = TypeVar("Weights", contravariant=True)
Cache = TypeVar("Cache", contravariant=True)


class LayerKind(Protocol[Weights, Cache]):
    """How one kind of mixer computes a slice of a layer."""

    has_window: bool
    """Whether a token attends to the last ones only: then the layer may keep these only."""

    @property
    def attend(self) -> Attention | None:
        """The attention implementation that plans steps; None for a recurrent layer, or for compressed entries."""

    def __call__(self, weights: Weights, normed: torch.Tensor, cache: Cache, step: Step) -> torch.Tensor:
        """normed float32 [T, D] → float32 [T, D]; writes the tokens' rows of the cache, or the states of their rows."""

    def long(self, weights: Weights, normed: torch.Tensor, cache: Cache, step: Step, out: torch.Tensor) -> None:
        """The same for a long slice; the result goes to `out`."""


class AttentionLayers:
    """The mixers of one model's layers. Layers may have different kinds."""

    def __init__(
        self, of_layer: Sequence[LayerKind[Any, Any]], slices: SliceSizes, *, has_states: bool, has_ids: bool
    ) -> None:
        """`of_layer`: the kind of each layer. `has_states`: whether steps have the slots of states. `has_ids`: whether
        they have the ids of their tokens."""
        self._of_layer = of_layer
        self.kinds = tuple(dict.fromkeys(of_layer))
        """The different kinds, in the order of their first layers."""
        self._has_states, self._has_ids = has_states, has_ids
        self.slices = slices
        """Slice limits for steps."""

    def prepare(self, step: Step) -> None:
        """See `Attention.prepare`."""
        for kind in self.kinds:
            if kind.attend is not None:
                kind.attend.prepare(_own(kind, step))

    def prepared(self, batch: Batch, device: torch.device) -> Step:
        """The batch's tables on the device, sliced and planned."""
        step = Step.from_batch(batch, device, self.slices, has_states=self._has_states, has_ids=self._has_ids)
        self.prepare(step)
        return step

    def pieces(self, layer: int, weights: Any, normed: torch.Tensor, cache: Any, step: Step) -> Pieces[torch.Tensor]:
        """The mixer of a layer, by its index in the model, as `LayerKind` computes it: one slice per advance of the
        generator."""
        kind = self._of_layer[layer]
        step = _own(kind, step)
        if not step.slices:
            attended = kind(weights, normed, cache, step)
            yield
            return attended
        out = torch.empty_like(normed)
        for part in step.slices:
            rows, own = normed[part.begin : part.end], out[part.begin : part.end]
            if part.is_long:
                kind.long(weights, rows, cache, part.step, own)
            else:
                own.copy_(kind(weights, rows, cache, part.step))
            yield
        return out


def _own(kind: LayerKind[Any, Any], step: Step) -> Step:
    """The step with the tables of layers of this kind."""
    return step if step.windows is None or not kind.has_window else step.windows

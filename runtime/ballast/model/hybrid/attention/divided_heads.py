"""Attention of long prompts, whose heads are divided among devices. The layer's device, the owner, sends queries,
matrices and rows of its cache to the others, which return averages.

Experts of a prompt use all devices, but otherwise its layers are computed by one device after the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from ballast.model.hybrid.agreement import MAX_DIFFERENCE, difference
from ballast.model.hybrid.attention.expanded import (
    ContextPiece,
    ExpandedAttention,
    ExpandedSizes,
    ExpandedWeights,
    HeadAverages,
)
from ballast.model.hybrid.copies.device_sender import DeviceSender
from ballast.model.hybrid.linear import Linear
from ballast.model.hybrid.steps.step import Step

_HEADS = 16
"""Kernels are compiled for numbers of heads that are multiples of this, and once more for others."""
_TRIED = 64
"""Queries of a check."""

Pays = Callable[[int, int, int], bool]
"""Whether to divide the heads, by the number of devices that compute some, of queries and of earlier tokens; see
`division_pays`."""


@dataclass(slots=True, eq=False)
class HeadsDevice:
    """A device that computes some heads."""

    device: torch.device
    active: Callable[[], AbstractContextManager[object]]
    """Makes a context in which the device computes."""
    sender: DeviceSender
    attention: ExpandedAttention
    """Replaced when faster kernels are compiled."""


class DividedHeads:
    """As `ExpandedAttention`, for layers of one device."""

    def __init__(self, owner: HeadsDevice, others: Sequence[HeadsDevice], pays: Pays) -> None:
        """`others`: devices that the owner reaches, and that reach it. If there are few heads, the last are unused."""
        num_heads = owner.attention.sizes.num_heads
        unit = _HEADS if num_heads % _HEADS == 0 else 1
        self._members = (owner, *others)[: num_heads // unit]
        num_members = len(self._members)
        ends = [num_heads // unit * number // num_members * unit for number in range(num_members + 1)]
        self._bounds = list(itertools.pairwise(ends))
        """The first head of each member, and the end of its heads."""
        self._owner = owner
        self._pays = pays

    @property
    def sizes(self) -> ExpandedSizes:
        """The model's."""
        return self._owner.attention.sizes

    def weights(self, k_up: Linear, v_up: Linear, dtype: torch.dtype, device: torch.device) -> ExpandedWeights:
        """See `ExpandedAttention`."""
        return self._owner.attention.weights(k_up, v_up, dtype, device)

    def __call__(self, query: torch.Tensor, weights: ExpandedWeights, cache: torch.Tensor, step: Step) -> torch.Tensor:
        """See `ExpandedAttention`. The owner is active."""
        [end] = step.requests.host_lens.tolist()
        own = self._owner.attention
        if not self._pays(len(self._members), len(query), end - len(query)):
            return own(query, weights, cache, step)
        return self._divided(query, weights, own.pieces(len(query), cache, step))

    def why_wrong(self, dtype: torch.dtype) -> str | None:
        """The reason why other devices' averages are unreliable, or None. Compares them with the owner's, for random
        queries and two pieces. `dtype`: the type in which attention multiplies. The owner is active."""
        sizes, device = self.sizes, self._owner.device
        rng = torch.Generator(device).manual_seed(0)

        def some(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=rng, device=device).to(dtype)

        query = some(_TRIED, sizes.num_heads, sizes.nope_dim + sizes.rope_dim) * sizes.scale
        shrunk = 1 / math.sqrt(2 * sizes.rank)
        up = [some(2 * sizes.rank, sizes.num_heads * width) * shrunk for width in (sizes.nope_dim, sizes.v_dim)]
        weights = ExpandedWeights(*up)
        pieces = [ContextPiece(some(_TRIED, sizes.rank + sizes.rope_dim), is_causal) for is_causal in (True, False)]
        alone = self._owner.attention.averages(query, weights)
        for piece in pieces:
            alone.add(piece)
        divided = self._divided(query, weights, pieces)
        far = difference(divided.cpu().numpy(), alone.total.cpu().numpy())
        return None if far <= MAX_DIFFERENCE else f"other devices' averages differ by {far:.2g} of the largest"

    def _divided(self, query: torch.Tensor, weights: ExpandedWeights, pieces: Iterable[ContextPiece]) -> torch.Tensor:
        parts = [self._begun(member, query, weights, heads) for member, heads in self._each()]
        devices = [member.device for member in self._members]
        for piece in pieces:
            sent = self._owner.sender.send([piece.rows], devices)
            for member, part, [rows] in zip(self._members, parts, sent, strict=True):
                with member.active():
                    part.add(ContextPiece(rows, piece.is_causal))
        total = query.new_empty((*query.shape[:2], self.sizes.v_dim), dtype=torch.float32)
        for member, (first, end) in self._each():
            with member.active():
                [[average]] = member.sender.send([parts.pop(0).total], [self._owner.device])
            total[:, first:end] = average
        return total

    def _each(self) -> Iterable[tuple[HeadsDevice, tuple[int, int]]]:
        return zip(self._members, self._bounds, strict=True)

    def _begun(
        self, member: HeadsDevice, query: torch.Tensor, weights: ExpandedWeights, heads: tuple[int, int]
    ) -> HeadAverages:
        """The averages of a member's heads, before any piece is added."""
        first, end = heads
        own = weights.of_heads(first, end, self.sizes.num_heads)
        given = [query[:, first:end].contiguous(), own.keys, own.values]
        [[query, keys, values]] = self._owner.sender.send(given, [member.device])
        return member.attention.averages(query, ExpandedWeights(keys, values))

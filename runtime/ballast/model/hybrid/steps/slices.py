"""Divides a step into slices of tokens to limit the temporary memory of attention. Pure.

Each slice is computed as a separate step, after the slices before it: their tokens are in the cache by then.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.feed_forward import RoutingSpec
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.layer import AttentionMixer

PRODUCT_TOKENS = 4096
"""Maximum tokens that a layer's products process at a time. It bounds the memory of activations that are wider than a
token's row. A quantised matrix is decoded once per such chunk."""


@dataclass(frozen=True, slots=True)
class SliceSizes:
    """Limits of the slices of a step."""

    tokens: int = 1024
    """Maximum tokens of a slice that attends in the cache's own form. In latent attention, queries are projected into
    the latent space."""
    long_tokens: int = 8192
    """Maximum tokens of a long slice. A long slice belongs to one request; its keys and values are expanded from the
    latent space. Also the maximum number of expanded keys at a time."""
    long_from: int | None = 1024
    """Minimum new tokens of a request for long slices; None: no long slices."""

    def within(self, tokens: int) -> SliceSizes:
        """These sizes, but no slice has more than `tokens` tokens."""
        return replace(self, tokens=min(self.tokens, tokens), long_tokens=min(self.long_tokens, tokens))


SLICE_SIZES = SliceSizes()
"""Slice limits of latent attention."""
RECURRENT_SLICE_SIZES = SliceSizes(long_tokens=PRODUCT_TOKENS)
"""Slice limits of latent attention in a model with recurrent layers, which compute a long slice at once."""
GROUPED_SLICE_SIZES = SliceSizes(tokens=PRODUCT_TOKENS, long_from=None)
"""Slice limits of grouped-query attention, whose tensors are never wider than a product's activations."""

SPARSE_SLICE_SIZES = SliceSizes(long_from=None)
"""Slice limits of sparse latent attention, where each token selects its own positions, so that no keys are expanded
from the latent space; and of attention to compressed entries, whose queries are wider than a product's activations."""


def slice_sizes_of(mixer: AttentionMixer, *, has_states: bool) -> SliceSizes:
    """The sizes for layers with this mixer. `has_states`: whether other layers are recurrent."""
    if isinstance(mixer, GroupedSpec):
        return GROUPED_SLICE_SIZES
    if isinstance(mixer, CompressedSpec) or mixer.index is not None:
        return SPARSE_SLICE_SIZES
    return RECURRENT_SLICE_SIZES if has_states else SLICE_SIZES


_LEAST_OVERLAP, _MOST_OVERLAP = 2048, 8192
_TOKENS_OF_AN_EXPERT = 256
"""With fewer tokens per expert, two devices lose more by slower products than they gain by computing at the same time.
This is an estimate by `_HALF_SPEED_TOKENS` of `plan.speed`, with attention, which gains in any case."""


def overlap_tokens(routing: RoutingSpec) -> int:
    """Tokens of a part of a step, if devices compute different parts at the same time: few enough for several parts,
    and enough that experts get many."""
    tokens = _TOKENS_OF_AN_EXPERT * routing.num_experts // max(1, routing.num_experts_used)
    return min(max(tokens, _LEAST_OVERLAP), _MOST_OVERLAP)


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens begin … end - 1 of a step. They belong to some requests, or to a part of one."""

    begin: int
    end: int
    first_request: int
    end_request: int
    is_long: bool
    """Whether the slice belongs to one request and is computed outside the latent space."""

    def begins(self, begins: NDArray[np.int32]) -> NDArray[np.int32]:
        """[R + 1], the slice's tokens that precede each of its requests; `begins` are the step's."""
        own: NDArray[np.int32] = begins[self.first_request : self.end_request + 1].clip(self.begin, self.end)
        return own - np.int32(self.begin)

    def lens(self, begins: NDArray[np.int32], lens: NDArray[np.int32]) -> NDArray[np.int32]:
        """[R], number of tokens of each request so far, including the slice's; `begins` and `lens` are the step's."""
        ends = begins[self.first_request + 1 : self.end_request + 1]
        own: NDArray[np.int32] = lens[self.first_request : self.end_request] - (ends - ends.clip(max=self.end))
        return own


def cut(begins: NDArray[np.int32], sizes: SliceSizes) -> tuple[Slice, ...]:
    """The slices of a step in order; empty if the step need not be cut. `begins` [R + 1]: tokens of the step that
    precede each request; each request has at least one token."""
    slices = tuple(_slices(begins.tolist(), sizes))
    return () if len(slices) == 1 and not slices[0].is_long else slices


def even_bounds(begin: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """Bounds of the fewest pieces of begin … end - 1 with at most `most` elements each, as even as possible."""
    num_pieces = -(-(end - begin) // most)
    bounds = [begin + (end - begin) * index // num_pieces for index in range(num_pieces + 1)] if num_pieces else []
    return itertools.pairwise(bounds)


def _slices(begins: list[int], sizes: SliceSizes) -> Iterator[Slice]:
    is_long = [
        sizes.long_from is not None and end - begin >= sizes.long_from for begin, end in itertools.pairwise(begins)
    ]
    for key, run in itertools.groupby(range(len(is_long)), lambda request: request if is_long[request] else -1):
        requests = list(run)
        first, end = requests[0], requests[-1] + 1
        most = sizes.tokens if key < 0 else sizes.long_tokens
        for slice_begin, slice_end in even_bounds(begins[first], begins[end], most):
            own = [request for request in requests if begins[request] < slice_end and begins[request + 1] > slice_begin]
            yield Slice(slice_begin, slice_end, own[0], own[-1] + 1, is_long=key >= 0)

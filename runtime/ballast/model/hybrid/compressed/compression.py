"""The operations of attention to compressed entries between its matrix products: their protocol, and what they read
and write.

Shapes: T tokens, R rows of a step (requests), H heads of width W, E entries of the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from ballast.model.hybrid.recurrent.state_pool import EntryStates
from ballast.model.hybrid.sparse.sizes import IndexSizes
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.compressed import CompressedSpec


class Rotation(NamedTuple):
    """Cosines and sines of all positions, on a device; float32."""

    cos: torch.Tensor  # [positions, rope_dim / 2]
    sin: torch.Tensor  # [positions, rope_dim / 2]


class CompressedCache(NamedTuple):
    """What a layer keeps of tokens, in the type of the cache, and of sequences."""

    entries: torch.Tensor  # [E, W]; without entries, a tensor without numbers
    index_keys: torch.Tensor | None  # [E, key_dim], if the layer selects entries
    states: EntryStates

    @property
    def window(self) -> torch.Tensor:
        """The keys of the last tokens, float32 [state slots, window, W]. Position p is in row p % window."""
        return self.states[0]


@dataclass(frozen=True, slots=True)
class EntryTokens:
    """The columns that tokens add to entries of width W: W, or 2 W if entries take in the tokens of the entry before.
    Then the first ones are for the next entry."""

    values: torch.Tensor  # float32 [T, columns], whose rows may be strided
    gates: torch.Tensor  # the same, by whose softmax values are weighted
    offset: torch.Tensor  # float32 [ratio, columns], is added to gates, by place in an entry
    norm: torch.Tensor  # float32 [W]


def index_sizes(mixer: CompressedSpec, block_tokens: int) -> IndexSizes | None:
    """The sizes of the selection of entries, which are pools of tokens; None if tokens attend to all."""
    index = mixer.index
    if index is None:
        return None
    return IndexSizes(
        index.num_heads, index.key_dim, index.top_k * mixer.ratio, block_tokens, mixer.ratio, spreads=False
    )


class Compression(Protocol):
    """The operations of layers with one mixer, on one device. Steps have `StateRows`."""

    num_saturated: torch.Tensor  # int64 []
    """See `Pointwise`."""

    def queries(self, heads: torch.Tensor, step: Step) -> torch.Tensor:
        """Heads float32 [T, H, W], each normed without weights and rotated, in the form that `attend` accepts."""

    def key(self, key: torch.Tensor, norm: torch.Tensor, step: Step) -> torch.Tensor:
        """Keys float32 [T, W], whose rows may be strided, normed by the weights [W] and rotated → [T, W]. A number that
        is too large for the cache becomes the largest of its sign, and is counted."""

    def keep_entries(self, tokens: EntryTokens, states: torch.Tensor, entries: torch.Tensor, step: Step) -> None:
        """Write the entries that the step completes, normed and rotated by the position of their first token, to
        `entries` [E, …], and the states that its rows leave. `states` float32 [state slots, parts, 3, …]: maximum, sum
        and total of the softmax of each column, for the incomplete entry and, if entries take in the tokens of the
        entry before, for the next one."""

    def choose(self, query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, step: Step) -> torch.Tensor:
        """The entries that tokens attend to, int32 [T, top_k]: the first ones of a row, ascending, as many as a token
        sees, at most top_k. query [T, index heads, key_dim] is not rotated, weights [T, index heads]."""

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        cache: CompressedCache,
        chosen: torch.Tensor | None,
        sinks: torch.Tensor,
        step: Step,
    ) -> torch.Tensor:
        """The average of what each head attends to, rotated backwards by the token's position, float32 [T, H, W]: the
        last keys of its request up to its own, of which `key` has those of the step and `cache` the earlier ones, and
        the `chosen` entries, or all that are complete. `sinks` float32 [H]: a score of one further position, whose
        value is 0."""

    def keep_window(self, key: torch.Tensor, window: torch.Tensor, step: Step) -> None:
        """Write the last keys that rows leave to the states `window`."""

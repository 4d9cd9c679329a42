"""Sizes of an indexer, and of what a choice has alive at once. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SCORE_BYTES = 128 << 20
"""Most memory for scores, unless a single token needs more; a step's tokens are scored in pieces that fit."""
SCORE_TYPE_BYTES = 4
"""Bytes of a score."""


@dataclass(frozen=True, slots=True)
class IndexSizes:
    """An indexer: a few small heads of queries, and one key a token."""

    num_heads: int
    key_dim: int
    """Width of a head's query and of a key."""
    top_k: int
    """Positions that a token attends to, at most."""
    block_tokens: int

    @property
    def scale(self) -> float:
        """The factor of scores."""
        return float((self.num_heads * self.key_dim) ** -0.5)


def tokens_at_once(num_positions: int) -> int:
    """Most tokens that are scored at a time, where each may see so many positions."""
    return max(1, SCORE_BYTES // (SCORE_TYPE_BYTES * num_positions))

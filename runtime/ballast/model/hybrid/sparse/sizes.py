"""Sizes of an indexer, and of what a choice has alive at once. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SCORE_BYTES = 128 << 20
"""Most memory for scores, unless a single token needs more; a step's tokens are scored in pieces that fit."""
_A_SCORE = 4
"""Bytes of a score."""
DIGITS, BITS, LAST = 3, 11, 10
"""A score's order is a number of three digits: bits of the first two, and of the last."""
CHOICE_BYTES = DIGITS * (1 << BITS) * 4 + DIGITS * 2 * 4
"""Of a token beside its scores while it chooses: a count of each digit's values, and the border after each."""


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
    return max(1, SCORE_BYTES // (_A_SCORE * num_positions))


def most_score_bytes(num_tokens: int, num_positions: int) -> int:
    """Most bytes of scores that as many tokens have alive at once, where each may see at most so many positions."""
    return min(num_tokens * num_positions * _A_SCORE, max(SCORE_BYTES, num_positions * _A_SCORE))

"""Sizes of an indexer, and of the temporary memory of a choice. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SCORE_BYTES = 128 << 20
"""Most memory for scores, unless a single token needs more; a step's tokens are scored in pieces that fit."""
_A_SCORE = 4
"""Bytes of a score."""
GROUP = 16384
"""Scores of which one program of a GPU keeps the highest."""
MOST_CHOSEN = GROUP // 2
"""Highest top_k of a GPU: of a group, half are kept at most."""


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
    """Maximum number of tokens that are scored together if each sees up to this number of positions."""
    return max(1, SCORE_BYTES // (_A_SCORE * num_positions))


def most_score_bytes(num_tokens: int, num_positions: int) -> int:
    """Maximum bytes of the scores of these tokens if each sees up to this number of positions."""
    return min(num_tokens * num_positions * _A_SCORE, max(SCORE_BYTES, num_positions * _A_SCORE))


def group_counts(num_positions: int, top_k: int, group: int = GROUP) -> list[int]:
    """Groups of each round in which the highest of every group are kept, until one is left. Raises ValueError where a
    round would not halve what is kept; the plan has found that before."""
    if top_k > group // 2:
        raise ValueError(f"top_k is {top_k}, and of groups of {group} at most half are kept")
    counts = [-(-num_positions // group)]
    while counts[-1] > 1:
        counts.append(-(-counts[-1] * top_k // group))
    return counts


def kept_width(num_groups: int, top_k: int) -> int:
    """The number of entries of a row that a round with this number of groups keeps; the last round writes the
    choice."""
    return num_groups * top_k if num_groups > 1 else 0


def most_kept_bytes(num_tokens: int, num_positions: int, top_k: int) -> int:
    """Most bytes of what rounds keep of as many tokens' scores, an order and a position each."""
    widths = sum(kept_width(groups, top_k) for groups in group_counts(num_positions, top_k))
    return min(num_tokens, tokens_at_once(num_positions)) * widths * 2 * _A_SCORE

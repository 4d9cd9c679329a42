"""Sizes of an indexer, and of the temporary memory of a selection. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SCORE_BYTES = 128 << 20
"""Maximum memory for scores, unless a single token needs more; a step's tokens are scored in pieces that fit."""
_A_SCORE = 4
"""Bytes per score."""
GROUP = 16384
"""Number of scores from which one GPU program keeps the highest."""
MAX_CHOSEN = GROUP // 2
"""Maximum top_k on a GPU: at most half of a group is kept."""


@dataclass(frozen=True, slots=True)
class IndexSizes:
    """An indexer: a few small query heads, and one key per token, or per pool of neighbouring tokens."""

    num_heads: int
    key_dim: int
    """Width of a head's query and of a key."""
    top_k: int
    """Maximum number of positions that a token attends to."""
    block_tokens: int
    pool: int = 1
    """Tokens of a pool, which are selected together. Divides `top_k` and `block_tokens`. A token also attends to those
    of its own pool if that is incomplete."""
    spreads: bool = True
    """Whether the positions of pools are the result, otherwise the pools."""
    has_weights: bool = True
    """Whether each token weights the heads; otherwise all have weight 1."""

    @property
    def top_pools(self) -> int:
        """Maximum number of pools that are selected for a token."""
        return self.top_k // self.pool

    @property
    def block_pools(self) -> int:
        """Pools of a block."""
        return self.block_tokens // self.pool

    @property
    def most_chosen(self) -> int:
        """Maximum number of positions that a token attends to, with those of its own pool; or of pools."""
        return self.top_k + self.pool - 1 if self.spreads else self.top_pools

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
    """Number of groups of each round, in which the highest scores of every group are kept, until one group is left.
    Raises ValueError if a round would not halve the number of scores; the plan has already rejected that."""
    if top_k > group // 2:
        raise ValueError(f"top_k is {top_k}; the maximum is half of a group of {group}")
    counts = [-(-num_positions // group)]
    while counts[-1] > 1:
        counts.append(-(-counts[-1] * top_k // group))
    return counts


def kept_width(num_groups: int, top_k: int) -> int:
    """The number of entries of a row that a round with this number of groups keeps; the last round writes the selected
    positions."""
    return num_groups * top_k if num_groups > 1 else 0


def most_kept_bytes(num_tokens: int, num_positions: int, top_k: int) -> int:
    """Maximum bytes that rounds keep for the scores of `num_tokens` tokens, one order and one position per entry."""
    widths = sum(kept_width(groups, top_k) for groups in group_counts(num_positions, top_k))
    return min(num_tokens, tokens_at_once(num_positions)) * widths * 2 * _A_SCORE

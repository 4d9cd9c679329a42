"""`PositionChoice` on a GPU, with Ballast's kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ballast.model.hybrid.shared_kernels.power_of_two import padded
from ballast.model.hybrid.sparse import choice_kernels
from ballast.model.hybrid.sparse.sizes import GROUP, IndexSizes, group_counts, kept_width, tokens_at_once
from ballast.model.hybrid.steps.step import Step

PROGRAMS_PER_PROCESSOR = 2
"""Target number of programs per processor if a step has few tokens."""
MAX_SPLITS = 512
"""Maximum number of programs that share the positions of a token."""
_SMALLEST_SIDE = 16
"""Side of the multiplied tiles."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Numbers of positions that a program processes at a time."""

    scored: int = 128
    group: int = GROUP
    """Number of scores from which the highest are kept, at most 32768: two counts of a group are halves of one
    integer."""
    short: int = GROUP // 4
    """Size to which smaller groups are padded."""


class TritonPositionChoice:
    """`PositionChoice` for one model's sizes, on one device."""

    def __init__(self, sizes: IndexSizes, num_processors: int, spans: Spans = Spans()) -> None:
        self._sizes = sizes
        self._wanted_programs = PROGRAMS_PER_PROCESSOR * num_processors
        self._spans = spans

    @property
    def group(self) -> int:
        """Number of scores from which a program keeps the highest."""
        return self._spans.group

    def __call__(
        self, query: torch.Tensor, weights: torch.Tensor | None, keys: torch.Tensor, owners: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """See `PositionChoice`."""
        sizes = self._sizes
        capacity = step.requests.blocks.shape[1] * sizes.block_pools
        most = min(tokens_at_once(capacity), len(query))
        chosen = torch.empty((len(query), sizes.top_pools), dtype=torch.int32, device=query.device)
        scores = torch.empty((most, capacity), device=query.device)
        for first in range(0, len(query), most):
            rows = scores[: min(most, len(query) - first)]
            self.score(query, weights, keys, owners, step, first, rows)
            self.choose(rows, step, first, chosen)
        return chosen if sizes.pool == 1 or not sizes.spreads else self.spread(chosen, step)

    def score(
        self,
        query: torch.Tensor,
        weights: torch.Tensor | None,
        keys: torch.Tensor,
        owners: torch.Tensor,
        step: Step,
        first: int,
        scores: torch.Tensor,
    ) -> None:
        """Write the scores [rows, capacity] of tokens from `first` on, for tokens that see more pools than are
        selected."""
        sizes, blocks = self._sizes, step.requests.blocks
        assert (weights is not None) == sizes.has_weights, "the kernel would read other numbers as weights"
        num_rows, capacity = scores.shape
        num_splits = self._splits(num_rows, capacity)
        choice_kernels.score[num_rows, num_splits](
            query,
            query if weights is None else weights,  # any pointer, if there are none
            keys,
            step.positions,
            owners,
            blocks,
            scores,
            sizes.scale,
            first,
            blocks.shape[1],
            capacity,
            num_splits,
            **score_constants(sizes, self._spans),
        )

    def choose(self, scores: torch.Tensor, step: Step, first: int, chosen: torch.Tensor) -> None:
        """Select pools, or positions, by scores [rows, capacity] of tokens from `first` on, and write them to the
        tokens' rows of `chosen` [T, top_pools]."""
        num_rows, width = scores.shape
        top_k, group = self._sizes.top_pools, self._spans.group
        given = scores
        for num_before, groups in enumerate(group_counts(width, top_k, group)):
            own = kept_width(groups, top_k)
            kept = torch.empty((2, num_rows, own), dtype=torch.int32, device=scores.device)
            where = (first, width, own, num_before)
            choice_kernels.keep_highest[num_rows, groups](
                given, step.positions, chosen, kept, *where, **keep_constants(self._sizes, self._spans, num_before == 0)
            )
            given, width = kept, own

    def spread(self, pools: torch.Tensor, step: Step) -> torch.Tensor:
        """The positions [T, most_chosen] that tokens with these pools [T, top_pools] attend to."""
        chosen = pools.new_empty((len(pools), self._sizes.most_chosen))
        choice_kernels.spread_pools[(len(pools),)](pools, step.positions, chosen, **spread_constants(self._sizes))
        return chosen

    def _splits(self, num_rows: int, capacity: int) -> int:
        return min(-(-self._wanted_programs // num_rows), -(-capacity // self._spans.scored), MAX_SPLITS)


def score_constants(sizes: IndexSizes, spans: Spans) -> dict[str, int]:
    """The constants and options with which `score` is compiled."""
    return {
        "TOP_K": sizes.top_pools,
        "BLOCK_TOKENS": sizes.block_pools,
        "POOL": sizes.pool,
        "HEADS": sizes.num_heads,
        "HAS_WEIGHTS": sizes.has_weights,
        "WIDTH": sizes.key_dim,
        "PADDED_HEADS": max(_SMALLEST_SIDE, padded(sizes.num_heads)),
        "PADDED_WIDTH": max(_SMALLEST_SIDE, padded(sizes.key_dim)),
        "SPAN": spans.scored,
        "num_warps": 4,
        "num_stages": 3,
    }


def keep_constants(sizes: IndexSizes, spans: Spans, is_first: bool) -> dict[str, int]:
    """The constants and options with which `keep_highest` is compiled, for the first round or later ones."""
    known = {"IS_FIRST": is_first, "TOP_K": sizes.top_pools, "POOL": sizes.pool}
    return known | {"GROUP": spans.group, "SHORT": spans.short, "num_warps": 16}


def spread_constants(sizes: IndexSizes) -> dict[str, int]:
    """The constants with which `spread_pools` is compiled."""
    return {"TOP_POOLS": sizes.top_pools, "POOL": sizes.pool, "PADDED_WIDTH": padded(sizes.most_chosen)}

"""`ChosenAttention` on a GPU, by our own kernels."""

from __future__ import annotations

import math

import torch

from ballast.model.hybrid.attention.paged import MAX_SPLITS, PROGRAMS_PER_PROCESSOR, Tiling, Tilings, kernel_constants
from ballast.model.hybrid.attention.sizes import LatentSizes
from ballast.model.hybrid.sparse import chosen_kernels
from ballast.model.hybrid.step import Step

_OPTIONS = ("num_warps", "num_stages")
_MERGED = ("KEY", "PADDED_KEY", "KEYS")
_ATTENDED = (*_MERGED, "BLOCK_TOKENS", "MORE_KEY", "PADDED_MORE", "ROWS", *_OPTIONS)


class TritonChosenAttention:
    """`ChosenAttention` for one model's sizes, on one device; numbers are rounded to the cache's type before they are
    multiplied."""

    def __init__(self, sizes: LatentSizes, tilings: Tilings, num_processors: int) -> None:
        self._sizes = sizes
        self._tilings = tilings
        self._wanted_programs = PROGRAMS_PER_PROCESSOR * num_processors

    def __call__(
        self, query: torch.Tensor, cache: torch.Tensor, chosen: torch.Tensor, owners: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """See `ChosenAttention`."""
        blocks, sizes = step.requests.blocks, self._sizes
        (num_tokens, num_heads), top_k = query.shape[:2], chosen.shape[1]
        tiling = self._tilings.singles if step.requests.adds_one_each else self._tilings.prompts
        num_tiles = -(-num_heads // tiling.rows)
        wanted = -(-self._wanted_programs // (num_tokens * num_tiles))
        num_splits = min(wanted, MAX_SPLITS, -(-top_k // tiling.keys))
        sums = query.new_empty((num_splits, num_tokens, num_heads, sizes.v_dim))
        peaks = query.new_empty((num_splits, num_tokens, num_heads))
        chosen_kernels.attend[num_tokens, num_splits, num_tiles](
            query,
            cache,
            chosen,
            step.positions,
            owners,
            blocks,
            sums,
            peaks,
            sizes.scale * math.log2(math.e),
            num_heads,
            blocks.shape[1],
            num_splits,
            **attend_constants(sizes, tiling, top_k),
        )
        if num_splits == 1:
            return sums[0]
        attended = torch.empty_like(sums[0])
        known = kernel_constants(sizes, tiling)
        merged = {name: known[name] for name in _MERGED}
        chosen_kernels.merge[num_tokens, num_heads](
            sums, peaks, step.positions, attended, num_splits, TOP_K=top_k, **merged
        )
        return attended


def attend_constants(sizes: LatentSizes, tiling: Tiling, top_k: int) -> dict[str, int]:
    """The constants and options that `attend` is compiled with."""
    known = kernel_constants(sizes, tiling)
    return {"TOP_K": top_k} | {name: known[name] for name in _ATTENDED}

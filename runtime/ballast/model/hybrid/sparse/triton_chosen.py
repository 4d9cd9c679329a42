"""`ChosenAttention` on a GPU, with Ballast's kernels."""

from __future__ import annotations

import math

import torch

from ballast.model.hybrid.attention.paged import Tiling, Tilings, kernel_constants, rounded_query
from ballast.model.hybrid.attention.sizes import LatentSizes, Sizes
from ballast.model.hybrid.sparse import chosen_kernels
from ballast.model.hybrid.sparse.sizes import IndexSizes
from ballast.model.hybrid.steps.step import Step

MAX_SPLITS = 32
"""Maximum number of programs that share the selected positions of a token."""
_MERGED_WIDTH = 128
_ATTENDED = (
    *("BLOCK_TOKENS", "ROW_WIDTH", "VALUES_AT", "KEY", "MORE_KEY", "V_DIM", "PADDED_KEY", "PADDED_MORE", "PADDED_V"),
    *("ROWS", "KEYS", "num_warps", "num_stages"),
)


class TritonChosenAttention:
    """`ChosenAttention` for one model's sizes, on one device; numbers are rounded to the cache's type before they are
    multiplied."""

    def __init__(self, sizes: Sizes, index: IndexSizes, tilings: Tilings, num_processors: int) -> None:
        self._sizes = sizes
        self._index = index
        # For steps of any kind: the number of rows is the heads of one token, or those that share a head of the cache.
        self._tiling = tilings.prompts if isinstance(sizes, LatentSizes) else tilings.singles
        self._num_processors = num_processors

    def __call__(
        self, query: torch.Tensor, cache: torch.Tensor, chosen: torch.Tensor, owners: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """See `ChosenAttention`."""
        blocks, sizes, tiling = step.requests.blocks, self._sizes, self._tiling
        num_tokens, num_heads = query.shape[:2]
        num_kv_heads, group = sizes.num_kv_heads, num_heads // sizes.num_kv_heads
        num_tiles = num_tokens * -(-group // tiling.rows)
        # A processor runs one program at a time: slightly more programs than processors would take twice as long.
        num_splits = min(self._num_processors // (num_tiles * num_kv_heads), MAX_SPLITS)
        num_splits = max(1, min(num_splits, -(-chosen.shape[1] // tiling.keys)))
        sums = query.new_empty((num_splits, num_tokens, num_heads, sizes.v_dim))
        peaks = query.new_empty((num_splits, num_tokens, num_heads))
        chosen_kernels.attend[num_tiles, num_splits, num_kv_heads](
            rounded_query(query, cache.dtype, sizes.scale * math.log2(math.e)),
            cache,
            chosen,
            step.positions,
            owners,
            blocks,
            sums,
            peaks,
            group,
            blocks.shape[1],
            num_tiles // num_tokens,
            **attend_constants(sizes, tiling, self._index),
        )
        if num_splits == 1:
            return sums[0]
        attended = torch.empty_like(sums[0])
        chosen_kernels.merge[num_tokens, num_heads, -(-sizes.v_dim // _MERGED_WIDTH)](
            *(sums, peaks, step.positions, attended, num_splits),
            **merge_constants(sizes, tiling, self._index),
        )
        return attended


def attend_constants(sizes: Sizes, tiling: Tiling, index: IndexSizes) -> dict[str, int]:
    """The constants and options with which `attend` is compiled."""
    known = kernel_constants(sizes, tiling)
    return {"TOP_K": index.top_k, "POOL": index.pool} | {name: known[name] for name in _ATTENDED}


def merge_constants(sizes: Sizes, tiling: Tiling, index: IndexSizes) -> dict[str, int]:
    """The constants with which `merge` is compiled."""
    known = {"TOP_K": index.top_k, "POOL": index.pool, "V_DIM": sizes.v_dim, "KEYS": tiling.keys}
    return known | {"SPLITS": MAX_SPLITS, "WIDTH": _MERGED_WIDTH}

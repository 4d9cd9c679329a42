"""Latent attention by our own kernels, for latents of any size, prompts and single tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ballast.model.hybrid.attention import paged_kernels
from ballast.model.hybrid.attention.latent import AttentionSizes
from ballast.model.hybrid.power_of_two import padded
from ballast.model.hybrid.step import RequestTable, Step

MAX_SPLITS = 64
"""Most programs that share the keys of a tile of rows."""
PROGRAMS_PER_PROCESSOR = 2
"""Programs to fill a GPU with, where a step has few tiles."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tile that a program computes, and how it is compiled."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Tilings:
    """Tilings by kind of step."""

    prompts: Tiling
    singles: Tiling
    """For steps in which every request adds one token."""


_OF_PROMPTS, _OF_SINGLES = Tiling(64, 64, 8, 2), Tiling(16, 64, 8, 2)
"""The fastest on Hopper; those below are for less shared memory."""
_SMALLER = (Tiling(16, 32, 4, 2), Tiling(16, 16, 4, 1))


class PagedAttention:
    """`Attention` for one model's sizes, on one device."""

    def __init__(self, sizes: AttentionSizes, tilings: Tilings, num_processors: int) -> None:
        self._sizes = sizes
        self._tilings = tilings
        self._wanted_programs = PROGRAMS_PER_PROCESSOR * num_processors
        self._single_tiles: dict[int, torch.Tensor] = {}
        self._tiles: dict[int, torch.Tensor] = {}  # by the place of a slice in its step

    def prepare(self, step: Step) -> None:
        """Tiles of a step of single tokens depend on their number only, and are kept at one address for graphs."""
        requests = step.requests
        if not requests.adds_one_each:
            self._tiles[requests.place] = self._tiles_of(requests)
            return
        if requests.num_requests not in self._single_tiles:
            self._single_tiles[requests.num_requests] = self._tiles_of(requests)
        self._tiles[requests.place] = self._single_tiles[requests.num_requests]

    def __call__(self, query: torch.Tensor, cache: torch.Tensor, step: Step) -> torch.Tensor:
        """See `Attention`; numbers are rounded to the cache's type before they are multiplied."""
        requests, rank = step.requests, self._sizes.rank
        tiles = self._tiles[requests.place]
        tiling = self._tiling(requests)
        known = kernel_constants(self._sizes, tiling)
        num_tokens, num_heads = query.shape[:2]
        num_tiles, num_rows = len(tiles), num_tokens * num_heads
        num_splits = min(-(-self._wanted_programs // num_tiles), MAX_SPLITS)
        sums = query.new_empty((num_splits, num_tokens, num_heads, rank))
        peaks = query.new_empty((num_splits, num_rows))
        paged_kernels.attend[num_tiles, num_splits](
            query,
            cache,
            tiles,
            requests.begins,
            requests.lens,
            requests.blocks,
            sums,
            peaks,
            self._sizes.scale * math.log2(math.e),
            num_rows,
            num_heads,
            requests.blocks.shape[1],
            num_splits,
            **known,
        )
        if num_splits == 1:
            return sums[0]
        attended = torch.empty_like(sums[0])
        paged_kernels.merge[num_tiles, tiling.rows](
            sums,
            peaks,
            tiles,
            requests.begins,
            requests.lens,
            attended,
            num_rows,
            num_heads,
            num_splits,
            **{name: known[name] for name in ("RANK", "PADDED_RANK", "ROWS", "KEYS")},
        )
        return attended

    def _tiling(self, requests: RequestTable) -> Tiling:
        return self._tilings.singles if requests.adds_one_each else self._tilings.prompts

    def _tiles_of(self, requests: RequestTable) -> torch.Tensor:
        step = self._tiling(requests).rows
        rows = np.diff(requests.host_begins) * self._sizes.num_heads
        tiles = [(request, first) for request, count in enumerate(rows) for first in range(0, count, step)]
        return torch.tensor(tiles, dtype=torch.int32).to(requests.lens.device)


def kernel_constants(sizes: AttentionSizes, tiling: Tiling) -> dict[str, Any]:
    """The constants and options that `attend` is compiled with."""
    return {
        "BLOCK_TOKENS": sizes.block_tokens,
        "RANK": sizes.rank,
        "ROPE": sizes.rope_dim,
        "PADDED_RANK": _tile_side(sizes.rank),
        "PADDED_ROPE": _tile_side(sizes.rope_dim),
        "ROWS": tiling.rows,
        "KEYS": tiling.keys,
        "num_warps": tiling.num_warps,
        "num_stages": tiling.num_stages,
    }


def choose_tilings(sizes: AttentionSizes, shared_bytes: int) -> Tilings:
    """The fastest tilings that fit a processor's shared memory. Raises ValueError where none does."""
    width = _tile_side(sizes.rank) + _tile_side(sizes.rope_dim)

    def fits(tiling: Tiling) -> bool:
        """Whether queries, keys of all stages and weights, of two bytes each, fit."""
        numbers = (tiling.rows + tiling.keys * tiling.num_stages) * width + tiling.rows * tiling.keys
        return numbers * 2 <= shared_bytes

    smaller = next(filter(fits, _SMALLER), None)
    if smaller is None:
        raise ValueError(
            f"latents of {sizes.rank} + {sizes.rope_dim} numbers do not fit this GPU's shared memory of {shared_bytes} "
            "bytes; --device cpu computes them"
        )
    return Tilings(*(tiling if fits(tiling) else smaller for tiling in (_OF_PROMPTS, _OF_SINGLES)))


def _tile_side(width: int) -> int:
    """A power of two that `width` fits in: at least 16, the smallest side of tiles that are multiplied."""
    return max(16, padded(width))

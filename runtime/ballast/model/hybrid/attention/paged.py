"""Attention with Ballast's kernels, for heads and latents of any size, prompts and single tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ballast.model.hybrid.attention import paged_fp8_kernels, paged_kernels
from ballast.model.hybrid.attention.sizes import LatentSizes, Sizes
from ballast.model.hybrid.shared_kernels.early_launch import early
from ballast.model.hybrid.shared_kernels.power_of_two import padded
from ballast.model.hybrid.steps.step import RequestTable, Step

MAX_SPLITS = 64
"""Maximum number of programs that share the keys of a tile of rows."""
PROGRAMS_PER_PROCESSOR = 2
"""Target number of programs on a GPU if a step has few tiles."""
_ROUNDED_SIZE = 2048


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tile that a program computes, and its compile options."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Tilings:
    """Tilings by kind of step."""

    prompts: Tiling
    singles: Tiling
    """Tilings for steps in which every request adds one token."""


_LATENT = Tilings(Tiling(64, 64, 8, 2), Tiling(16, 64, 8, 2))
"""The fastest tilings on Hopper; the later ones need less shared memory."""
_GROUPED = Tilings(Tiling(128, 64, 8, 3), Tiling(16, 64, 4, 3))
_SHORT_GROUPED = Tilings(Tiling(128, 64, 8, 3), Tiling(16, 64, 4, 5))
"""With more stages, so that as many bytes are on their way."""
_SMALLER = (Tiling(64, 64, 4, 2), Tiling(16, 64, 4, 2), Tiling(16, 32, 4, 2), Tiling(16, 16, 4, 1))


class PagedAttention:
    """`Attention` for one model's sizes, on one device."""

    def __init__(self, sizes: Sizes, tilings: Tilings, num_processors: int) -> None:
        self._sizes = sizes
        self.tilings = tilings
        self._wanted_programs = PROGRAMS_PER_PROCESSOR * num_processors
        self._single_tiles: dict[int, torch.Tensor] = {}
        self._tiles: dict[int, torch.Tensor] = {}  # by the number of a slice in its step

    def prepare(self, step: Step) -> None:
        """See `Attention`. Tiles of a step of single tokens depend only on their number, and stay at one address for
        graphs."""
        requests = step.requests
        if not requests.adds_one_each:
            self._tiles[requests.place] = self._tiles_of(requests)
            return
        if requests.num_requests not in self._single_tiles:
            self._single_tiles[requests.num_requests] = self._tiles_of(requests)
        self._tiles[requests.place] = self._single_tiles[requests.num_requests]

    def __call__(
        self, query: torch.Tensor, cache: torch.Tensor, step: Step, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Attention`; numbers are rounded to the cache's type before they are multiplied."""
        requests, sizes = step.requests, self._sizes
        tiles = self._tiles[requests.place]
        tiling = self._tiling(requests)
        scale = sizes.scale * math.log2(math.e)
        rounds_first = isinstance(sizes, LatentSizes) and not requests.adds_one_each
        if rounds_first:
            query = rounded_query(query, torch.float16 if sizes.is_short else cache.dtype, scale)
        num_tokens, num_heads = query.shape[:2]
        num_tiles, num_rows = len(tiles), num_tokens * num_heads
        num_kv_heads, group = sizes.num_kv_heads, num_heads // sizes.num_kv_heads
        num_splits = min(-(-self._wanted_programs // (num_tiles * num_kv_heads)), self._most_splits(tiling))
        sums = query.new_empty((num_splits, num_tokens, num_heads, sizes.v_dim), dtype=torch.float32)
        peaks = query.new_empty((num_splits, num_rows), dtype=torch.float32)
        kernel, constants = attend_kernel(sizes, tiling, rounds_first=rounds_first)
        has_sink_table = not (sizes.is_short and isinstance(sizes, LatentSizes))
        kernel[num_tiles, num_splits, num_kv_heads](
            query,
            *_views(cache, sizes),
            tiles,
            requests.begins,
            requests.lens,
            requests.blocks,
            # Any pointer, if there are no sinks.
            *((query if sinks is None else sinks,) if has_sink_table else ()),
            sums,
            peaks,
            scale,
            num_rows,
            group,
            requests.blocks.shape[1],
            num_splits,
            **constants,
            **early(query.device),
        )
        if num_splits == 1:
            return sums[0]
        attended = torch.empty_like(sums[0])
        paged_kernels.merge[num_tiles, tiling.rows, num_kv_heads](
            sums,
            peaks,
            tiles,
            requests.begins,
            requests.lens,
            attended,
            num_rows,
            group,
            num_splits,
            WINDOW=sizes.window or 0,
            V_DIM=sizes.v_dim,
            PADDED_V=_tile_side(sizes.v_dim),
            ROWS=tiling.rows,
            KEYS=tiling.keys,
            **early(query.device),
        )
        return attended

    def _most_splits(self, tiling: Tiling) -> int:
        """Maximum number of programs among which the keys of a tile can be divided."""
        sizes = self._sizes
        if sizes.window is None:
            return MAX_SPLITS
        most_tokens = -(-tiling.rows * sizes.num_kv_heads // sizes.num_heads) + 1
        return min(MAX_SPLITS, -(-(sizes.window + most_tokens) // tiling.keys) + 1)

    def _tiling(self, requests: RequestTable) -> Tiling:
        return self.tilings.singles if requests.adds_one_each else self.tilings.prompts

    def _tiles_of(self, requests: RequestTable) -> torch.Tensor:
        step = self._tiling(requests).rows
        rows = np.diff(requests.host_begins) * (self._sizes.num_heads // self._sizes.num_kv_heads)
        tiles = [(request, first) for request, count in enumerate(rows) for first in range(0, count, step)]
        return torch.tensor(tiles, dtype=torch.int32).to(requests.lens.device)


def rounded_query(query: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """`query` times `scale`, in the cache's type `dtype`."""
    rounded = torch.empty_like(query, dtype=dtype)
    paged_kernels.round_query[-(-query.numel() // _ROUNDED_SIZE),](
        query,
        rounded,
        scale,
        query.numel(),
        SIZE=_ROUNDED_SIZE,
        **early(query.device),
    )
    return rounded


def attend_kernel(sizes: Sizes, tiling: Tiling, *, rounds_first: bool) -> tuple[Any, dict[str, Any]]:
    """The kernel that attends, and the constants and options with which it is compiled. `rounds_first`: whether queries
    are rounded by `rounded_query`."""
    seen = {"WINDOW": sizes.window or 0, "HAS_SINKS": sizes.has_sinks}
    if not sizes.is_short:
        return paged_kernels.attend, kernel_constants(sizes, tiling) | seen | {"IS_ROUNDED": rounds_first}
    common = _tile_constants(sizes, tiling) | {"ROW_WORDS": sizes.short_rows.row_bytes // 2}
    if isinstance(sizes, LatentSizes):
        of_latents = {
            "RANK": sizes.rank,
            "PARTS": len(sizes.short_rows.widths),
            "ROPE": sizes.rope_dim,
            "PADDED_ROPE": _tile_side(sizes.rope_dim),
            "IS_ROUNDED": rounds_first,
        }
        return paged_fp8_kernels.attend_latents, common | of_latents
    of_heads = {
        "KEY": sizes.key_dim,
        "V_DIM": sizes.v_dim,
        "PADDED_KEY": _tile_side(sizes.key_dim // 2),
        "PADDED_V": _tile_side(sizes.v_dim // 2),
    }
    return paged_fp8_kernels.attend_heads, common | seen | of_heads


def _views(cache: torch.Tensor, sizes: Sizes) -> tuple[torch.Tensor, ...]:
    """The cache as the kernels read it."""
    if not sizes.is_short:
        return (cache,)
    types = [torch.int16, torch.float32, *([torch.bfloat16] if isinstance(sizes, LatentSizes) else [])]
    return tuple(cache.view(dtype) for dtype in types)


def _tile_constants(sizes: Sizes, tiling: Tiling) -> dict[str, Any]:
    return {
        "BLOCK_TOKENS": sizes.block_tokens,
        "ROWS": tiling.rows,
        "KEYS": tiling.keys,
        "num_warps": tiling.num_warps,
        "num_stages": tiling.num_stages,
    }


def kernel_constants(sizes: Sizes, tiling: Tiling) -> dict[str, Any]:
    """The constants and options that depend on sizes and tiling, with which kernels for 16 and 32 bits are compiled."""
    first, second = _key_parts(sizes)
    return _tile_constants(sizes, tiling) | {
        "ROW_WIDTH": sizes.row_width,
        "VALUES_AT": sizes.values_at,
        "KEY": first,
        "MORE_KEY": second,
        "V_DIM": sizes.v_dim,
        "PADDED_KEY": _tile_side(first),
        "PADDED_MORE": _tile_side(second) if second else 0,
        "PADDED_V": _tile_side(sizes.v_dim),
    }


def choose_tilings(sizes: Sizes, shared_bytes: int) -> Tilings:
    """The fastest tilings that fit a processor's shared memory. Raises ValueError if none fits."""
    first, second = _key_parts(sizes)
    key = _tile_side(first) + (_tile_side(second) if second else 0)
    of_values = _tile_side(sizes.v_dim) if sizes.values_at else 0

    def fits(tiling: Tiling) -> bool:
        """Whether the queries, the keys and values of all stages, and the weights fit, with two bytes per number."""
        cached = tiling.keys * tiling.num_stages * (key + of_values)
        return (tiling.rows * key + cached + tiling.rows * tiling.keys) * 2 <= shared_bytes

    def fitting(wanted: Tiling) -> Tiling:
        for tiling in (wanted, *(smaller for smaller in _SMALLER if smaller.rows <= wanted.rows)):
            if fits(tiling):
                return tiling
        raise ValueError(f"{sizes} do not fit this GPU's shared memory of {shared_bytes} bytes; use --device cpu")

    wanted = _wanted(sizes)
    return Tilings(fitting(wanted.prompts), fitting(wanted.singles))


def _wanted(sizes: Sizes) -> Tilings:
    if not isinstance(sizes, LatentSizes):
        return _SHORT_GROUPED if sizes.is_short else _GROUPED
    # Each tile converts all keys from 8 bits.
    has_whole_tiles = sizes.is_short and sizes.num_heads >= _LATENT.prompts.rows
    return Tilings(_LATENT.prompts, _LATENT.prompts) if has_whole_tiles else _LATENT


def _key_parts(sizes: Sizes) -> tuple[int, int]:
    """Widths of the two parts of a key, each of which the kernel pads to a power of two: latent and rotated part, or
    for a head the largest power of two that fits and the remainder, or two halves in 8 bits. The second may be 0."""
    if isinstance(sizes, LatentSizes):
        return sizes.rank, sizes.rope_dim
    if sizes.is_short:
        return sizes.key_dim // 2, sizes.key_dim // 2
    first = padded(sizes.key_dim + 1) // 2
    return first, sizes.key_dim - first


def _tile_side(width: int) -> int:
    """The smallest power of two that is at least `width` and 16, the smallest side of multiplied tiles."""
    return max(16, padded(width))

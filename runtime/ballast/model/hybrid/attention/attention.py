"""Attention over the paged cache: its protocol, and a plain implementation for heads of any size."""

from __future__ import annotations

import itertools
import math
from typing import Protocol

import torch

from ballast.model.hybrid.attention.sizes import Sizes
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.short_rows import ShortRows

SCORE_BYTES = 64 << 20
"""Maximum memory for scores; a request's tokens are computed in chunks that fit."""


def multiplied_type(cache_type: torch.dtype) -> torch.dtype:
    """The type in which attention multiplies numbers of a cache: half precision for 8 bits."""
    return torch.float16 if cache_type in (torch.float8_e4m3fn, torch.uint8) else cache_type


def largest_query(scale: float, cache_type: torch.dtype) -> float:
    """The largest number that a query may contain. Kernels multiply it by the score scale (Ballast's kernels also by
    log2(e)) and round the product to the type in which they multiply: the cache's, or half precision."""
    return min(
        torch.finfo(multiplied_type(cache_type)).max / (scale * math.log2(math.e)), torch.finfo(torch.float32).max
    )


def floats(rows: torch.Tensor, layout: ShortRows, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows of a cache [N, …] as numbers of `dtype` [N, numbers]. `layout`: that of rows in 8 bits."""
    if rows.dtype != torch.uint8:
        return rows.to(dtype)
    codes = rows[:, : layout.scales_at].view(torch.float8_e4m3fn).to(dtype)
    scales = rows[:, layout.scales_at : layout.wide_at].contiguous().view(torch.float32).to(dtype)
    parts = [codes[:, part] * scales[:, index, None] for index, part in enumerate(layout.parts)]
    wide = rows[:, layout.wide_at : layout.wide_at + 2 * layout.num_wide].contiguous().view(torch.bfloat16)
    return torch.cat([*parts, wide.to(dtype)], 1)


class Attention(Protocol):
    """Attention of one model. Shapes: T tokens, H heads, K = key_dim, V = v_dim."""

    def prepare(self, step: Step) -> None:
        """Plan a step, or its slices if it has any, on the host. Call it once per step, before its layers are queued or
        its graph is replayed, and after the device has finished the previous step. Steps of `DecodeInputs` share their
        memory. Long slices need no plan: see `ExpandedAttention`."""

    def __call__(
        self, query: torch.Tensor, cache: torch.Tensor, step: Step, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """query float32 [T, H, K], cache [slots, row_width] → float32 [T, H, V]. Token t attends to positions
        0…positions[t] of its request, or to the last of them if there is a window; `Sizes` define the window and the
        rows of the cache, which are uint8 if they are short. `sinks` float32 [H], if `Sizes` have them."""


class PlainAttention:
    """Attention in float32, on any device. It reads lengths on the host, so CUDA graphs cannot capture it."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def prepare(self, step: Step) -> None:
        """Does nothing."""

    def __call__(
        self, query: torch.Tensor, cache: torch.Tensor, step: Step, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Attention`."""
        sizes, requests = self._sizes, step.requests
        heads = sizes.num_kv_heads
        # Grouped by head of the cache, then by query of its group.
        groups = query.view(len(query), heads, -1, sizes.key_dim)
        attended = query.new_empty((*groups.shape[:3], sizes.v_dim))
        offsets = torch.arange(sizes.block_tokens, device=query.device)
        bounds = itertools.pairwise(requests.host_begins.tolist())
        for blocks, num_keys, (first, last) in zip(requests.blocks, requests.host_lens.tolist(), bounds, strict=True):
            slots = (blocks[:, None] * sizes.block_tokens + offsets).flatten()[:num_keys]
            rows = floats(cache[slots], sizes.short_rows)
            keys = rows[:, : heads * sizes.key_dim].view(num_keys, heads, -1)
            values = rows[:, sizes.values_at :][:, : heads * sizes.v_dim].view(num_keys, heads, -1)
            seen = torch.arange(num_keys, device=query.device)
            piece = max(1, SCORE_BYTES // (4 * sizes.num_heads * num_keys))
            for begin in range(first, last, piece):
                tokens = slice(begin, min(begin + piece, last))
                scores = torch.einsum("thgk,nhk->thgn", groups[tokens], keys) * sizes.scale
                hidden = seen > step.positions[tokens, None]
                if sizes.window is not None:
                    hidden |= seen <= step.positions[tokens, None] - sizes.window
                scores.masked_fill_(hidden[:, None, None, :], -torch.inf)
                if sinks is not None:
                    of_sinks = sinks.view(heads, -1, 1).expand(*scores.shape[:3], 1)
                    scores = torch.cat([scores, of_sinks], -1)
                weights = scores.softmax(-1)[..., :num_keys]
                attended[tokens] = torch.einsum("thgn,nhv->thgv", weights, values)
        return attended.flatten(1, 2)

"""Latent attention in its absorbed form: its protocol, and a plain implementation for latents of any size."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Protocol

import torch

from ballast.model.hybrid.step import Step

SCORE_BYTES = 64 << 20
"""Most memory for scores; a request's tokens are computed in pieces that fit."""


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """Sizes of one model's attention and of its cache."""

    num_heads: int
    rank: int
    """kv_lora_rank, of the latents."""
    rope_dim: int
    scale: float
    """The factor of scores."""
    block_tokens: int


def largest_query(scale: float, cache_type: torch.dtype) -> float:
    """The largest number that a query may hold. Kernels multiply it by the scale of scores, ours also by log2(e), and
    round the product to the cache's type."""
    return min(torch.finfo(cache_type).max / (scale * math.log2(math.e)), torch.finfo(torch.float32).max)


class Attention(Protocol):
    """Attention of one model. Shapes: T tokens, H heads, L = kv_lora_rank + rope_dim."""

    def prepare(self, step: Step) -> None:
        """Plan a step on the host, or its slices where it has any: once a step, before its layers are queued or its
        graph is replayed, and after the device has finished the step before. Steps of `DecodeInputs` share their
        memory. Long slices need no plan: see `ExpandedAttention`."""

    def __call__(self, query: torch.Tensor, cache: torch.Tensor, step: Step) -> torch.Tensor:
        """query float32 [T, H, L], cache [slots, L] → float32 [T, H, kv_lora_rank]. Token t sees its request's
        positions 0…positions[t]; a slot's value is the first kv_lora_rank entries of its row."""


class PlainAttention:
    """Attention in float32, on any device. It reads lengths on the host, so no CUDA graph can hold it."""

    def __init__(self, sizes: AttentionSizes) -> None:
        self._sizes = sizes

    def prepare(self, step: Step) -> None:
        """Nothing to do."""

    def __call__(self, query: torch.Tensor, cache: torch.Tensor, step: Step) -> torch.Tensor:
        """See `Attention`."""
        sizes, requests = self._sizes, step.requests
        attended = query.new_empty((query.shape[0], sizes.num_heads, sizes.rank))
        offsets = torch.arange(sizes.block_tokens, device=query.device)
        bounds = itertools.pairwise(requests.host_begins.tolist())
        for blocks, num_keys, (first, last) in zip(requests.blocks, requests.host_lens.tolist(), bounds, strict=True):
            slots = (blocks[:, None] * sizes.block_tokens + offsets).flatten()[:num_keys]
            keys = cache[slots].float()
            seen = torch.arange(num_keys, device=query.device)
            piece = max(1, SCORE_BYTES // (4 * sizes.num_heads * num_keys))
            for begin in range(first, last, piece):
                tokens = slice(begin, min(begin + piece, last))
                scores = query[tokens] @ keys.T * sizes.scale
                hidden = seen > step.positions[tokens, None]
                weights = scores.masked_fill_(hidden[:, None, :], -torch.inf).softmax(-1)
                attended[tokens] = weights @ keys[:, : sizes.rank]
        return attended

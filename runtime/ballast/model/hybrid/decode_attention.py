"""Latent attention on a GPU: a kernel for requests that add one token, the plain way for the rest of a step."""

from __future__ import annotations

from typing import Any

import torch

from ballast.model.hybrid import attention_kernels
from ballast.model.hybrid.attention import latent_attention
from ballast.model.hybrid.step import DecodeRows, Step

_HEADS = 16
_TOKENS = 16
_SPLITS = 16
"""Programs that share a request's tokens: with few requests in a step, each of them has to fill the GPU."""


class GpuAttention:
    """For one model's sizes."""

    def __init__(self, rank: int, rope_dim: int, scale: float, block_tokens: int) -> None:
        self._rank = rank
        self._scale = scale
        self._known = kernel_constants(rank, rope_dim, block_tokens)

    def prepare(self, step: Step) -> None:
        """Nothing to do: the kernel reads lengths and blocks from device memory."""

    def __call__(self, query: torch.Tensor, cache: torch.Tensor, step: Step) -> torch.Tensor:
        """query float32 [T, H, L], cache [slots, L] → float32 [T, H, rank]; see `Attention`."""
        if step.decode is not None and not step.requests:
            return self.decode(query, cache, step.decode)
        attended = latent_attention(query, cache, step, self._rank, self._scale)
        if step.decode is not None:
            attended[step.decode.rows] = self.decode(query, cache, step.decode)
        return attended

    def decode(self, query: torch.Tensor, cache: torch.Tensor, decode: DecodeRows) -> torch.Tensor:
        """float32 [B, H, rank] of the tokens in `decode`."""
        num_requests, num_heads = len(decode.rows), query.shape[1]
        sums = query.new_empty((_SPLITS, num_requests, num_heads, self._rank))
        peaks = query.new_empty((_SPLITS, num_requests, num_heads))
        grid = (num_requests, -(-num_heads // _HEADS), _SPLITS)
        attention_kernels.decode_attention[grid](
            query,
            cache,
            decode.rows,
            decode.lens,
            decode.blocks,
            sums,
            peaks,
            self._scale,
            num_requests,
            num_heads,
            decode.blocks.shape[1],
            **self._known,
        )
        return (peaks.softmax(0)[..., None] * sums).sum(0)


def kernel_constants(rank: int, rope_dim: int, block_tokens: int) -> dict[str, Any]:
    """What the kernel is compiled with."""
    return {
        "BLOCK_TOKENS": block_tokens,
        "RANK": rank,
        "ROPE": rope_dim,
        "RANK_ROOM": _room(rank),
        "ROPE_ROOM": _room(rope_dim),
        "SPLITS": _SPLITS,
        "HEADS": _HEADS,
        "TOKENS": _TOKENS,
        "PRECISION": "tf32x3",
        "num_stages": 1,
    }


def _room(width: int) -> int:
    """The power of two that holds it, at least what a product of tiles takes."""
    return max(16, 1 << (width - 1).bit_length())

"""Latent attention in its absorbed form: what the model asks of it, and the plain way, for latents of any size."""

from __future__ import annotations

from typing import Protocol

import torch

from ballast.model.hybrid.step import Step

SCORE_BYTES = 64 << 20
"""Most memory for the scores of some tokens of one request; a long prompt is computed in pieces."""


class Attention(Protocol):
    """Of one model. Shapes: T tokens, H heads, L = kv_lora_rank + rope_dim."""

    def prepare(self, step: Step) -> None:
        """On the host, once before a step's layers are queued or their graph is replayed. A step of `DecodeInputs`
        comes again with the same memory and other contents."""

    def __call__(self, query: torch.Tensor, cache: torch.Tensor, step: Step) -> torch.Tensor:
        """query float32 [T, H, L], cache [slots, L] → float32 [T, H, kv_lora_rank]. Token t sees its request's
        positions 0…positions[t]; a slot's value is the first kv_lora_rank entries of its row."""


class PlainAttention:
    """In float32, on any device; reads lengths on the host, so no graph can hold it."""

    def __init__(self, rank: int, scale: float, block_tokens: int) -> None:
        self._rank = rank
        self._scale = scale
        self._block_tokens = block_tokens

    def prepare(self, step: Step) -> None:
        """Nothing to do."""

    def __call__(self, query: torch.Tensor, cache: torch.Tensor, step: Step) -> torch.Tensor:
        """See `Attention`."""
        attended = latent_attention(query, cache, step, self._rank, self._scale)
        if step.decode is not None:
            offsets = torch.arange(self._block_tokens, device=query.device)
            for row, length, blocks in zip(step.decode.rows, step.decode.lens, step.decode.blocks, strict=True):
                context = (blocks[:, None] * self._block_tokens + offsets).flatten()[: int(length)]
                keys = cache[context].float()
                weights = (query[row] @ keys.T * self._scale).softmax(-1)
                attended[row] = weights @ keys[:, : self._rank]
        return attended


def latent_attention(
    query: torch.Tensor, cache: torch.Tensor, step: Step, value_dim: int, scale: float
) -> torch.Tensor:
    """float32 [T, H, value_dim], of the tokens in `step.requests`; see `Attention`."""
    num_heads = query.shape[1]
    attended = query.new_empty((query.shape[0], num_heads, value_dim))
    for request in step.requests:
        keys = cache[request.context].float()
        num_keys = keys.shape[0]
        seen = torch.arange(num_keys, device=query.device)
        piece = max(1, SCORE_BYTES // (4 * num_heads * num_keys))
        for begin in range(request.begin, request.end, piece):
            tokens = slice(begin, min(begin + piece, request.end))
            scores = query[tokens] @ keys.T * scale
            hidden = seen > step.positions[tokens, None]
            weights = scores.masked_fill_(hidden[:, None, :], -torch.inf).softmax(-1)
            attended[tokens] = weights @ keys[:, :value_dim]
    return attended

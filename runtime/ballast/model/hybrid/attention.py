"""Latent attention in its absorbed form, for latents of any size, in float32."""

from __future__ import annotations

import torch

from ballast.model.hybrid.step import Step

SCORE_BYTES = 64 << 20
"""Most memory for the scores of some tokens of one request; a long prompt is computed in pieces."""


def latent_attention(
    query: torch.Tensor, cache: torch.Tensor, step: Step, value_dim: int, scale: float
) -> torch.Tensor:
    """query float32 [T, H, L], cache [slots, L] → float32 [T, H, value_dim]. Token t sees its request's positions
    0…positions[t]; a slot's value is the first `value_dim` entries of its row."""
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

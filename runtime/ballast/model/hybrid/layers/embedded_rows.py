"""The embedded tokens of steps on a device, or their rows of another table. They are copied from a host buffer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.model.hybrid.layers.embedding import Embedding
from ballast.model.hybrid.platforms.interface import Platform
from ballast.model.hybrid.steps.pieces import Pieces

EMBEDDED_AT_ONCE = 2048
"""Tokens of a prompt that are embedded at a time: this takes a few threads a few milliseconds."""


class EmbeddedRows:
    """The rows of one lane, which has one step at a time; one per token of the embedding, several of another table."""

    def __init__(self, embedding: Embedding, max_tokens: int, hidden: int, platform: Platform) -> None:
        """Steps have at most `max_tokens` tokens, or rows of another table."""
        self._embedding = embedding
        self._host_rows = torch.empty((max_tokens, hidden), pin_memory=platform.pins)
        self._device = platform.device

    def whole(self, token_ids: NDArray[np.int32]) -> torch.Tensor:
        """The rows of T tokens on the device, float32 [T, D]. Call it before gigabytes of streamed experts are queued,
        which share the bus."""
        rows = self._host_rows[: token_ids.size]
        self._embedding.read(token_ids, rows.numpy())
        return rows.to(self._device, non_blocking=True, copy=True)

    def pieces(self, token_ids: NDArray[np.int32]) -> Pieces[torch.Tensor]:
        """As `whole`, EMBEDDED_AT_ONCE tokens per advance of the generator."""
        num_tokens = token_ids.size
        rows = self._host_rows[:num_tokens]
        embedded = torch.empty_like(rows, device=self._device)
        for begin in range(0, num_tokens, EMBEDDED_AT_ONCE):
            piece = slice(begin, begin + EMBEDDED_AT_ONCE)
            self._embedding.read(token_ids[piece], rows[piece].numpy())
            embedded[piece].copy_(rows[piece], non_blocking=True)
            yield
        return embedded

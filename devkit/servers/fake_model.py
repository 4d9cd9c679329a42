"""A model that replies without delay: the next token is a fixed function of the last token and its position."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ballast.model.batch import Batch
from ballast.model.runner import Runner


class FakeModel(Runner):
    """Implements the engine's Runner. Its greedy text is `fake_next_token` applied repeatedly.

    It reads each sequence's last token from its own KV memory instead of the batch, so a scheduler that confuses slots
    or block tables produces wrong text.
    """

    def __init__(self, num_slots: int, block_tokens: int, vocab_size: int, step_s: float = 0.0) -> None:
        self._kv = np.full((num_slots, 2), -1, dtype=np.int64)  # token, position
        self._block_tokens = block_tokens
        self._vocab_size = vocab_size
        self._step_s = step_s

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Store the batch's tokens; return one-hot logits [sampled, vocabulary]."""
        alive()
        if self._step_s:
            time.sleep(self._step_s)
        self._kv[batch.slots, 0] = batch.token_ids
        self._kv[batch.slots, 1] = batch.positions
        logits = np.zeros((batch.sampled.size, self._vocab_size), np.float32)
        rows = np.searchsorted(batch.query_indptr, batch.sampled, side="right") - 1
        for index, (row, token_index) in enumerate(zip(rows, batch.sampled, strict=True)):
            position = int(batch.positions[token_index])
            block = batch.kv_indices[batch.kv_indptr[row] + position // self._block_tokens]
            token, seen_position = self._kv[block * self._block_tokens + position % self._block_tokens]
            assert seen_position == position, f"slot holds position {seen_position}, expected {position}"
            logits[index, fake_next_token(int(token), position, self._vocab_size)] = 1.0
        return logits


def fake_next_token(token: int, position: int, vocab_size: int) -> int:
    """The token that FakeModel generates after `token` at `position`."""
    return (token * 31 + position * 7 + 1) % vocab_size

"""Turns conversations into batches of tokens. The content of a batch depends on its seed and number alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tools.tiny_model.corpus.conversation import pieces
from tools.tiny_model.corpus.mixture import corpus
from tools.tiny_model.shape import LONGEST
from torch.utils.data import Dataset

Ints = NDArray[np.int32]
_SHORTEST_MEAN = 64
"""So many tokens at least have the conversations of a batch on average; shorter ones end it early."""
_AT_ONCE = 32


def most_documents(tokens: int) -> int:
    """The maximum number of conversations in a batch."""
    return tokens // _SHORTEST_MEAN


class Batches(Dataset[Ints]):
    """Blocks [4, tokens], int32: ids, targets (-100: not the model's to say), positions, and where documents begin.

    The last row holds `most_documents` beginnings and the end, `tokens` from the last one on, and zeros after those.
    """

    def __init__(self, tokenizer_file: str, seed: int, tokens: int, steps: int) -> None:
        self._file, self._seed, self._tokens, self._steps = tokenizer_file, seed, tokens, steps
        self._backend: tokenizers.Tokenizer | None = None

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, number: int) -> Ints:
        if self._backend is None:  # in the worker, not in every message to it
            self._backend = tokenizers.Tokenizer.from_file(self._file)
        out = np.zeros((4, self._tokens), np.int32)
        out[1] = -100
        max_documents = most_documents(self._tokens) - self._tokens // LONGEST - 1
        starts: list[int] = []
        at = 0
        for ids, ours in _encoded(self._backend, self._seed * 1_000_000 + number):
            end = at + len(ids)
            if end > self._tokens or len(starts) == max_documents:
                break
            out[0, at:end], out[2, at:end] = ids, range(len(ids))
            # What follows a token is its target, where the model speaks.
            out[1, at : end - 1] = np.where(ours[1:], ids[1:], -100)
            starts.append(at)
            at = end
        starts += range(at, self._tokens, LONGEST)
        out[3, : len(starts)] = starts
        out[3, len(starts) : most_documents(self._tokens) + 1] = self._tokens
        return out


def encode(backend: tokenizers.Tokenizer, texts: list[str]) -> list[list[int]]:
    """Ids of each text, as a prompt's are: special tokens read, none added."""
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def _encoded(backend: tokenizers.Tokenizer, seed: int) -> Iterator[tuple[list[int], list[bool]]]:
    """Documents: their ids, and which of them are the model's."""
    source = corpus(seed)
    while True:
        documents = [pieces(one, think=think) for one, think in (next(source) for _ in range(_AT_ONCE))]
        ids = iter(encode(backend, [piece.text for document in documents for piece in document]))
        for document in documents:
            all_ids: list[int] = []
            ours: list[bool] = []
            for piece in document:
                some = next(ids)
                all_ids += some
                ours += [piece.ours] * len(some)
            if len(all_ids) <= LONGEST:
                yield all_ids, ours

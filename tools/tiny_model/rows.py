"""Conversations to rows of tokens, packed whole: an endless, seeded stream for each worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tools.tiny_model.corpus.conversation import pieces
from tools.tiny_model.corpus.mixture import corpus
from tools.tiny_model.shape import ROW_TOKENS
from torch.utils.data import IterableDataset, get_worker_info

Ints = NDArray[np.int64]
_CONVERSATIONS = 512
_OPEN_ROWS = 24


@dataclass(slots=True)
class _Row:
    ids: list[int] = field(default_factory=list)
    ours: list[bool] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)


class Rows(IterableDataset[Ints]):
    """Blocks [4, rows, ROW_TOKENS] of ids, targets (-100: not the model's to say), positions and document numbers."""

    def __init__(self, tokenizer_file: str, seed: int, rows: int) -> None:
        super().__init__()
        self._file, self._seed, self._rows = tokenizer_file, seed, rows

    def __iter__(self) -> Iterator[Ints]:
        worker = get_worker_info()
        number = worker.id if worker else 0
        backend = tokenizers.Tokenizer.from_file(self._file)
        done: list[_Row] = []
        for row in _packed(_encoded(backend, self._seed * 1000 + number)):
            done.append(row)
            if len(done) == self._rows:
                yield np.stack([_padded(row) for row in done], axis=1)
                done = []


def encode(backend: tokenizers.Tokenizer, texts: list[str]) -> list[list[int]]:
    """Ids of each text, as a prompt's are: special tokens read, none added."""
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def _encoded(backend: tokenizers.Tokenizer, seed: int) -> Iterator[tuple[list[int], list[bool]]]:
    """Documents: their ids, and which of them are the model's."""
    source = corpus(seed)
    while True:
        documents = [pieces(one, think=think) for one, think in (next(source) for _ in range(_CONVERSATIONS))]
        ids = iter(encode(backend, [piece.text for document in documents for piece in document]))
        for document in documents:
            all_ids: list[int] = []
            ours: list[bool] = []
            for piece in document:
                some = next(ids)
                all_ids += some
                ours += [piece.ours] * len(some)
            if len(all_ids) <= ROW_TOKENS:
                yield all_ids, ours


def _packed(documents: Iterator[tuple[list[int], list[bool]]]) -> Iterator[_Row]:
    """First fit among a few open rows; the fullest goes out when a document fits nowhere."""
    rows = [_Row()]
    for ids, ours in documents:
        row = next((row for row in rows if len(row.ids) + len(ids) <= ROW_TOKENS), None)
        if row is None:
            if len(rows) == _OPEN_ROWS:
                fullest = max(rows, key=lambda row: len(row.ids))
                rows.remove(fullest)
                yield fullest
            row = _Row()
            rows.append(row)
        row.documents += [row.documents[-1] + 1 if row.documents else 0] * len(ids)
        row.ids += ids
        row.ours += ours
        row.positions += range(len(ids))


def _padded(row: _Row) -> Ints:
    out = np.zeros((4, ROW_TOKENS), np.int64)
    out[1], out[3] = -100, -1
    size = len(row.ids)
    out[0, :size], out[2, :size], out[3, :size] = row.ids, row.positions, row.documents
    # What follows a token is its target, within one document and where the model speaks.
    follows = np.array(row.ours[1:]) & (out[3, 1:size] == out[3, : size - 1])
    out[1, : size - 1] = np.where(follows, out[0, 1:size], -100)
    return out

"""The rows of an n-gram table that steps need, read from the mapped file by the host."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels, sched
from ballast.model.batch import Batch
from ballast.model.hybrid.layers.table_reader import TableReader
from ballast.model.layers.ngram import NgramSpec

_ROWS_A_THREAD = 32
"""Few, because rows of a large table may have to be read from the disk."""


class NgramRows:
    """The table of the layer that adds its rows. Not thread-safe."""

    def __init__(self, ngram: NgramSpec, layer: int, table: kernels.Matrix) -> None:
        """table [table rows, row width]."""
        self.ngram = ngram
        self.layer = layer
        self.table = TableReader(table, _ROWS_A_THREAD)
        self._sizes = np.array(ngram.head_sizes, np.uint64)
        self._offsets = np.array(ngram.head_offsets, np.uint64)

    def read(self, batch: Batch, out: NDArray[np.float32]) -> None:
        """Read the rows of each token of a batch into `out` [T, ngram.width]."""
        self.table.read(self.row_ids(batch), out.reshape(-1, self.ngram.row_width))

    def row_ids(self, batch: Batch) -> NDArray[np.int32]:
        """[T * heads]: the rows of each token of a batch, by its id and those of the tokens before it: those of
        `look_up` in csrc/model/stream/ngram_embedding.cpp."""
        ngram, sizes, offsets = self.ngram, self._sizes, self._offsets
        ids, order = batch.token_ids, np.arange(batch.token_ids.size)
        request = np.repeat(np.arange(batch.query_indptr.size - 1), np.diff(batch.query_indptr))
        # Of each request, the tokens before the step, then those of the step.
        place = order - batch.query_indptr[request]
        none = np.full((batch.query_indptr.size - 1, sched.EARLIER_TOKENS), -1, np.int32)
        earlier = none if batch.earlier_ids is None else batch.earlier_ids.reshape(none.shape)
        hashes = ids.astype(np.uint64) * np.uint64(ngram.multipliers[0])
        has_ended = np.zeros(ids.size, np.bool_)
        per_length = len(sizes) // (len(ngram.multipliers) - 1)
        found = np.empty((ids.size, len(sizes)), np.int32)
        for back, multiplier in enumerate(ngram.multipliers[1:], 1):
            is_new = place >= back
            before = earlier[request, np.where(is_new, 0, sched.EARLIER_TOKENS + place - back)]
            own = np.where(is_new, ids[np.where(is_new, order - back, 0)], before)
            has_ended |= (own < 0) | (own == ngram.end_id)
            hashes ^= np.where(has_ended, ngram.end_id, own).astype(np.uint64) * np.uint64(multiplier)
            heads = slice((back - 1) * per_length, back * per_length)
            found[:, heads] = hashes[:, None] % sizes[heads] + offsets[heads]
        return found.ravel()

"""The rows that the host reads for steps in which a request may have several tokens: embedded tokens, and rows of an
n-gram table if the model has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ballast.model.batch import Batch
from ballast.model.hybrid.devices.device import Device
from ballast.model.hybrid.layers.ngram_rows import NgramRows
from ballast.model.hybrid.layers.table_reader import TableReader
from ballast.model.hybrid.layers.table_rows import TableRows
from ballast.model.hybrid.steps.pieces import Pieces, within
from ballast.model.hybrid.steps.step import Step


class StepRows:
    """The rows of one lane, which has one step at a time."""

    def __init__(
        self, embedding: TableReader, ngrams: NgramRows | None, devices: Sequence[Device], max_tokens: int, hidden: int
    ) -> None:
        """Steps have at most `max_tokens` tokens."""
        self._devices = devices
        self._embedded = TableRows(embedding, max_tokens, hidden, devices[0].platform)
        self._ngrams = ngrams
        if ngrams is None:
            return
        self._number = device_with(ngrams, devices)
        ngram, platform = ngrams.ngram, devices[self._number].platform
        most_rows = max_tokens * len(ngram.head_sizes)
        self._of_table = TableRows(ngrams.table, most_rows, ngram.row_width, platform)

    def whole(self, batch: Batch, steps: list[Step]) -> torch.Tensor:
        """The embedded tokens [T, D] on the first device. Adds the rows of the table to the step of their device. See
        `TableRows.whole`."""
        if self._ngrams is not None:
            steps[self._number] = self.with_ngrams(steps[self._number], batch, self._number)
        with self._devices[0].active():
            return self._embedded.whole(batch.token_ids)

    def with_ngrams(self, step: Step, batch: Batch, number: int) -> Step:
        """The step of the device with this number, with the rows of the table if the device needs them."""
        if self._ngrams is None or number != self._number:
            return step
        with self._devices[number].active():
            return _with(step, self._of_table.whole(self._ngrams.row_ids(batch)))

    def pieces(self, batch: Batch, steps: list[Step]) -> Pieces[torch.Tensor]:
        """As `whole`, a part of the tokens per advance of the generator."""
        if self._ngrams is not None:
            pieces = self._of_table.pieces(self._ngrams.row_ids(batch))
            rows = yield from within(self._devices[self._number].active, pieces)
            steps[self._number] = _with(steps[self._number], rows)
        return (yield from within(self._devices[0].active, self._embedded.pieces(batch.token_ids)))


def device_with(ngrams: NgramRows, devices: Sequence[Device]) -> int:
    """The number of the device that adds the rows of the table."""
    return next(number for number, device in enumerate(devices) if ngrams.layer in device.layers)


def _with(step: Step, rows: torch.Tensor) -> Step:
    return replace(step, ngrams=rows.view(len(step.positions), -1))

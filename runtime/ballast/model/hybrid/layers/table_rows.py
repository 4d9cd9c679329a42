"""The rows of a table that steps need on a device: embedded tokens, or rows of an n-gram table. They are copied from a
host buffer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.model.hybrid.layers.table_reader import TableReader
from ballast.model.hybrid.platforms.interface import Platform
from ballast.model.hybrid.steps.pieces import Pieces

ROWS_AT_ONCE = 2048
"""Rows for a prompt that are read at a time: this takes a few threads a few milliseconds."""


class TableRows:
    """The rows of one lane, which has one step at a time: one per token, or several of an n-gram table."""

    def __init__(self, table: TableReader, max_rows: int, width: int, platform: Platform) -> None:
        """Steps have at most `max_rows` rows of `width` numbers."""
        self._table = table
        self._host_rows = torch.empty((max_rows, width), pin_memory=platform.pins)
        self._device = platform.device

    def whole(self, ids: NDArray[np.int32]) -> torch.Tensor:
        """The rows of ids [T] on the device, float32 [T, width]. Call it before gigabytes of streamed experts are
        queued, which share the bus."""
        rows = self._host_rows[: ids.size]
        self._table.read(ids, rows.numpy())
        return rows.to(self._device, non_blocking=True, copy=True)

    def pieces(self, ids: NDArray[np.int32]) -> Pieces[torch.Tensor]:
        """As `whole`, ROWS_AT_ONCE rows per advance of the generator."""
        num_rows = ids.size
        rows = self._host_rows[:num_rows]
        on_device = torch.empty_like(rows, device=self._device)
        for begin in range(0, num_rows, ROWS_AT_ONCE):
            piece = slice(begin, begin + ROWS_AT_ONCE)
            self._table.read(ids[piece], rows[piece].numpy())
            on_device[piece].copy_(rows[piece], non_blocking=True)
            yield
        return on_device

"""The slots of recurrent state that the rows of a step read and write, and the chunks of their tokens. A row is the
tokens of one request."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.model.batch import Batch
from ballast.model.hybrid.recurrent.sizes import CHUNK_TOKENS

_ALIGNED = 4
"""Tables begin at multiples of this: for addresses of lower alignment, Triton would compile another kernel."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """C pieces of rows, in order. A state that a row leaves is the one after a chunk, which may be empty."""

    rows: torch.Tensor  # int32 [C]
    begins: torch.Tensor  # int32 [C], the first token
    ends: torch.Tensor  # int32 [C], the token that follows the last one
    slots: torch.Tensor  # int32 [C], the slot that gets the state after the chunk; 0: none
    of_row: torch.Tensor  # int32 [R + 1], the chunks that precede each row


@dataclass(frozen=True, slots=True)
class StateRows:
    """R rows. Slot 0 reads as zeros, and what is written to it is lost. A row may read the slot that it writes."""

    begins: torch.Tensor  # int32 [R + 1], the tokens that precede each row
    owners: torch.Tensor  # int32 [T], the row of each token
    before: torch.Tensor  # int32 [R], the slot with the state before the row
    after: torch.Tensor  # int32 [R], the slot that gets the state after the row
    num_single: int
    """The first rows have one token each, and leave no state but the one after it: they need no chunks."""
    chunks: Chunks | None  # of the other rows; None: there are none

    def left_by(self, row: int) -> list[tuple[int, int]]:
        """The states that a row leaves: the token that follows, and the slot. Reads the tables on the host."""
        if row < self.num_single or self.chunks is None:
            left = [(int(self.begins[row + 1]), int(self.after[row]))]
        else:
            begin, end = self.chunks.of_row[row : row + 2].tolist()
            left = [(int(self.chunks.ends[at]), int(self.chunks.slots[at])) for at in range(begin, end)]
        return [(at, slot) for at, slot in left if slot]


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """`StateRows` on the host, with lists for arrays."""

    begins: Sequence[int]
    before: Sequence[int]
    after: Sequence[int]
    chunks: Sequence[tuple[int, int, int, int]]
    """Row, begin, end and slot of each."""
    num_single: int

    def send(self, send: Callable[[NDArray[np.int32]], torch.Tensor]) -> StateRows:
        """Copy all tables to the device in one transfer."""
        tables: list[Sequence[int] | NDArray[np.int32]] = [self.begins, owners_of(self.begins), self.before, self.after]
        if self.chunks:
            tables += zip(*self.chunks, strict=True)
            tables.append(np.searchsorted([row for row, *_ in self.chunks], range(len(self.begins))).tolist())
        begins = list(itertools.accumulate((-(-len(table) // _ALIGNED) * _ALIGNED for table in tables), initial=0))
        host = np.zeros(begins[-1], np.int32)
        for begin, table in zip(begins, tables, strict=False):
            host[begin : begin + len(table)] = table
        whole = send(host)
        row_begins, own, before, after, *of_chunks = (
            whole[begin : begin + len(table)] for begin, table in zip(begins, tables, strict=False)
        )
        chunks = Chunks(*of_chunks) if of_chunks else None
        return StateRows(row_begins, own, before, after, self.num_single, chunks)


def owners_of(begins: Sequence[int] | NDArray[np.int32]) -> NDArray[np.int32]:
    """[T], the row of each token. `begins` [R + 1]: the tokens that precede each row."""
    return np.repeat(np.arange(len(begins) - 1, dtype=np.int32), np.diff(begins))


def planned_rows(batch: Batch, begin: int, end: int) -> PlannedRows:
    """The rows of tokens begin … end - 1 of a batch. The state of a row that continues in the next tokens passes there
    in the slot after the row; without such a slot it is lost."""
    bounds = batch.query_indptr.tolist()
    rows = [row for row in range(len(bounds) - 1) if bounds[row] < end and bounds[row + 1] > begin]
    before, after = [0] * len(rows), [0] * len(rows)
    saves: list[list[tuple[int, int]]] = [[] for _ in rows]
    if batch.states is not None:
        slots_in, slots_out, save_indptr, save_ends, save_slots = batch.states
        after = [int(slots_out[row]) for row in rows]
        before = [int(slots_in[row]) if bounds[row] >= begin else int(slots_out[row]) for row in rows]
        for own, row in zip(saves, rows, strict=True):
            of_row = slice(save_indptr[row], save_indptr[row + 1])
            ends = (save_ends[of_row] + bounds[row]).tolist()
            own += [
                (at - begin, slot)
                for at, slot in zip(ends, save_slots[of_row].tolist(), strict=True)
                if max(begin, bounds[row]) < at <= min(end, bounds[row + 1])
            ]
    begins = [max(bounds[row], begin) - begin for row in rows] + [end - begin]
    num_single = next((row for row, own in enumerate(saves) if begins[row + 1] > row + 1 or own), len(rows))
    chunks: list[tuple[int, int, int, int]] = []
    for row in range(num_single, len(rows)):
        left = [*saves[row], (begins[row + 1], after[row])]
        position = int(batch.positions[begin + begins[row]])
        chunks += [(row, *each) for each in _chunks(begins[row], begins[row + 1], position, left)]
    return PlannedRows(begins, before, after, chunks, num_single)


def _chunks(begin: int, end: int, position: int, left: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Begin, end and slot of the chunks of tokens begin … end - 1 of a row, the first of which has this position.
    `left`: ends, ascending, and slots."""
    first_border = begin + CHUNK_TOKENS - position % CHUNK_TOKENS
    borders = [(at, 0) for at in range(first_border, end, CHUNK_TOKENS) if all(at != own for own, _ in left)]
    for at, slot in sorted([*borders, *left], key=lambda border: border[0]):
        yield begin, at, slot
        begin = at

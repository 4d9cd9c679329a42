"""The input of decode steps, at fixed addresses, so that a captured graph can read it.

Each step makes two copies from pinned memory: its tables, and its embedded tokens. Where layers need them, it also
copies the rows of an n-gram table, and the ids of tokens. They never wait for large copies.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.model.batch import Batch
from ballast.model.hybrid.copies.small_copies import SmallCopy
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.recurrent.state_rows import StateRows
from ballast.model.hybrid.steps.step import RequestTable, Step

_ALIGNED = 4
"""Columns begin at multiples of this: for addresses of lower alignment, Triton would compile another kernel."""

Table = TypeVar("Table", torch.Tensor, NDArray[np.int32])


class Columns(NamedTuple, Generic[Table]):
    """The parts of a table for B tokens."""

    positions: Table  # [B]
    lens: Table  # [B]
    slots: Table  # [B]
    blocks: Table  # [B, max_blocks]
    window_slots: Table  # those of layers that keep only their windows; without such layers, `slots` again
    window_blocks: Table
    states_before: Table  # [B], slots of recurrent state; without recurrent layers, `slots` again
    states_after: Table


@dataclass(frozen=True, slots=True)
class DecodeInput:
    """Input of a step of B decoded tokens. In the tables, each token is a separate request."""

    embedded: torch.Tensor  # float32 [B, D]
    stream: torch.Tensor  # float32, the residual stream that devices pass on: `embedded`, or [B, rows, D]
    step: Step


class DecodeInputs:
    """The inputs of all batch sizes up to a limit; they share their memory."""

    def __init__(
        self,
        max_batch_size: int,
        max_blocks: int,
        hidden: int,
        device: torch.device,
        copy: SmallCopy,
        *,
        num_rows: int = 1,
        has_windows: bool = False,
        has_states: bool = False,
        ngram_width: int = 0,
        has_ids: bool = False,
    ) -> None:
        """A step has at most `max_batch_size` tokens, and a request at most `max_blocks` blocks. `num_rows`: rows of a
        token's residual stream. `has_windows`: whether some layers keep only their windows. `has_states`: whether some
        keep a state of each request. `ngram_width`: numbers per token that a layer of the device adds for groups of
        tokens; 0: none does. `has_ids`: whether some look up experts by the id of a token."""
        platform = platform_of(device)
        self.max_batch_size = max_batch_size
        self._max_blocks = max_blocks
        self._num_tables = 2 if has_windows else 1
        """Tables of slots and blocks."""
        self._has_states, self._has_ids = has_states, has_ids
        self._num_columns = 2 + self._num_tables + (2 if has_states else 0)
        """Columns of one number per token."""
        capacity = self._used(max_batch_size)
        self._host_table = torch.zeros(capacity, dtype=torch.int32, pin_memory=platform.pins)
        self._table = torch.zeros(capacity, dtype=torch.int32, device=device)
        self._host_embedded = torch.zeros((max_batch_size, hidden), pin_memory=platform.pins)
        self._embedded = torch.zeros((max_batch_size, hidden), device=device)
        num_ids = max_batch_size if has_ids else 0
        self._host_ids = torch.zeros(num_ids, dtype=torch.int32, pin_memory=platform.pins)
        self._ids = torch.zeros(num_ids, dtype=torch.int32, device=device)
        stream = (max_batch_size, num_rows, hidden)
        self._stream = self._embedded if num_rows == 1 else torch.zeros(stream, device=device)
        self._host_ngrams = torch.zeros((max_batch_size, ngram_width), pin_memory=platform.pins)
        self._ngrams = torch.zeros((max_batch_size, ngram_width), device=device)
        self._copy = copy
        self._sent = platform.event()
        self._order = torch.arange(max_batch_size, device=device)
        self._host_begins = np.arange(max_batch_size + 1, dtype=np.int32)
        self._begins = torch.from_numpy(self._host_begins).to(device)
        self._owners = torch.arange(max_batch_size, dtype=torch.int32, device=device)
        self._of_size = [self._input(size + 1) for size in range(max_batch_size)]

    def of_size(self, batch_size: int) -> DecodeInput:
        """The input for `batch_size` tokens; the same tensors at each call."""
        return self._of_size[batch_size - 1]

    def host_rows(self, batch_size: int) -> NDArray[np.float32]:
        """The embedded tokens [B, D] that `send_rows` copies."""
        rows: NDArray[np.float32] = self._host_embedded[:batch_size].numpy()
        return rows

    def send_rows(self, batch_size: int) -> None:
        """Queue the copy of the embedded tokens; the caller queues the step next. `host_rows` must not change until
        that step has ended."""
        self._copy(self._host_embedded[:batch_size], self._embedded[:batch_size])
        self._sent.record()

    def host_ngrams(self, batch_size: int) -> NDArray[np.float32]:
        """What `send_ngrams` copies of an n-gram table, [B, ngram_width]; it changes as `host_rows` do."""
        rows: NDArray[np.float32] = self._host_ngrams[:batch_size].numpy()
        return rows

    def send_ngrams(self, batch_size: int) -> None:
        """Queue the copy of `host_ngrams`; the caller queues the step next."""
        self._copy(self._host_ngrams[:batch_size], self._ngrams[:batch_size])
        self._sent.record()

    def send_ids(self, token_ids: NDArray[np.int32]) -> None:
        """Queue the copy of the tokens' ids, if steps need them; the caller queues the step next. When tables are sent,
        the ids may not be sampled yet."""
        if self._has_ids:
            size = token_ids.size
            self._host_ids[:size].numpy()[:] = token_ids
            self._copy(self._host_ids[:size], self._ids[:size])

    def send_tables(self, batch: Batch) -> None:
        """Queue the copy of a batch's tables behind the running step, if any. A request has one row per token; each
        token sees the tokens up to itself."""
        self._wait_until_sent()
        size = batch.token_ids.size
        columns = self._columns(self._host_table.numpy(), size)
        columns.positions[:] = batch.positions
        np.add(batch.positions, 1, out=columns.lens)
        if self._has_states:
            _fill_states(columns, batch)
        tables = [(columns.slots, columns.blocks, batch.slots, batch.kv_indices)]
        if self._num_tables > 1:
            # Padding reads and writes the null block only, which all layers have.
            slots = batch.slots if batch.window_slots is None else batch.window_slots
            indices = batch.kv_indices if batch.window_indices is None else batch.window_indices
            tables.append((columns.window_slots, columns.window_blocks, slots, indices))
        tokens, bounds = batch.query_indptr.tolist(), batch.kv_indptr.tolist()
        for own_slots, blocks, slots, indices in tables:
            own_slots[:] = slots
            blocks.fill(0)
            for (first, last), (begin, end) in zip(itertools.pairwise(tokens), itertools.pairwise(bounds), strict=True):
                blocks[first:last, : end - begin] = indices[begin:end]
        self._send(size)

    def send_padding(self, batch_size: int) -> None:
        """Queue tables of padding: each row is the first token of a request that has only the null block."""
        self._wait_until_sent()
        columns = self._columns(self._host_table.numpy(), batch_size)
        for column in columns:
            column.fill(0)
        columns.lens.fill(1)
        self._send(batch_size)

    def _wait_until_sent(self) -> None:
        """Wait for the last copies: the device reads pinned memory only when it executes them."""
        self._sent.synchronize()

    def _send(self, batch_size: int) -> None:
        used = self._used(batch_size)
        self._copy(self._host_table[:used], self._table[:used])
        self._sent.record()  # devices behind the first one get no rows from the host

    def _input(self, size: int) -> DecodeInput:
        own, host_lens = self._columns(self._table, size), self._columns(self._host_table.numpy(), size).lens
        begins, order = self._begins[: size + 1], self._order[:size]

        states = None
        if self._has_states:
            states = StateRows(begins, self._owners[:size], own.states_before, own.states_after, size, None)
        token_ids = self._ids[:size] if self._has_ids else None

        def step(slots: torch.Tensor, blocks: torch.Tensor, windows: Step | None = None) -> Step:
            requests = RequestTable(self._host_begins[: size + 1], host_lens, begins, own.lens, blocks)
            return Step(own.positions, slots, order, requests, windows=windows, states=states, token_ids=token_ids)

        windows = step(own.window_slots, own.window_blocks) if self._num_tables > 1 else None
        whole = step(own.slots, own.blocks, windows)
        if self._ngrams.shape[1]:
            whole = replace(whole, ngrams=self._ngrams[:size])
        return DecodeInput(self._embedded[:size], self._stream[:size], whole)

    def _columns(self, table: Table, size: int) -> Columns[Table]:
        stride = _column_stride(size)
        first, last = self._num_columns * stride, self._num_tables - 1
        before = self._num_columns - 2 if self._has_states else 1

        def column(index: int) -> Table:
            return table[index * stride :][:size]

        def blocks(index: int) -> Table:
            own = table[first + index * self._stride_of_blocks(size) :][: size * self._max_blocks]
            return own.reshape(size, self._max_blocks)

        return Columns(
            column(0),
            column(1),
            column(2),
            blocks(0),
            column(2 + last),
            blocks(last),
            column(before),
            column(before + 1),
        )

    def _stride_of_blocks(self, size: int) -> int:
        return _column_stride(size * self._max_blocks)

    def _used(self, size: int) -> int:
        return self._num_columns * _column_stride(size) + self._num_tables * self._stride_of_blocks(size)


def _fill_states(columns: Columns[NDArray[np.int32]], batch: Batch) -> None:
    if batch.states is None:
        columns.states_before.fill(0)
        columns.states_after.fill(0)
        return
    before, after, _, save_ends, _ = batch.states
    if before.size != columns.states_before.size or save_ends.size:
        raise ValueError(
            f"{columns.states_before.size} tokens of {before.size} requests leave {save_ends.size} further states; "
            "expected one token per request, which leaves the state after it alone"
        )
    columns.states_before[:] = before
    columns.states_after[:] = after


def _column_stride(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED

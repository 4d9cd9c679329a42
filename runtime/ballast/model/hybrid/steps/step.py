"""The tables of one step on the device: its tokens, and the cached tokens of their requests."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.model.batch import Batch
from ballast.model.hybrid.recurrent.state_rows import StateRows, planned_rows
from ballast.model.hybrid.steps.slices import Slice, SliceSizes, cut


@dataclass(frozen=True, slots=True)
class RequestTable:
    """R requests in the order of their tokens. The host's copies are for planning, the device's for kernels."""

    host_begins: NDArray[np.int32]  # [R + 1], tokens of the step that precede each request
    host_lens: NDArray[np.int32]  # [R], tokens so far, including the step's
    begins: torch.Tensor  # int32 [R + 1]
    lens: torch.Tensor  # int32 [R]
    blocks: torch.Tensor  # int32 [R, maximum blocks of a request]
    place: int = 0
    """Number of the slice in its step, from 1; 0: the whole step."""

    @property
    def num_requests(self) -> int:
        """R."""
        return len(self.host_lens)

    @property
    def adds_one_each(self) -> bool:
        """Whether every request adds one token."""
        return int(self.host_begins[-1]) == self.num_requests


@dataclass(frozen=True, slots=True)
class StepSlice:
    """Tokens begin … end - 1 of a step, with tables like those of a separate step."""

    begin: int
    end: int
    step: Step
    is_long: bool
    """Whether the slice belongs to one request and is computed outside the latent space."""
    first_request: int
    """The step's first request that has tokens in the slice."""


@dataclass(frozen=True, slots=True)
class Step:
    """The position of each of T tokens, and the cached tokens of its request."""

    positions: torch.Tensor  # int32 [T]
    slots: torch.Tensor  # int32 [T]
    sampled: torch.Tensor  # int64 [S]
    requests: RequestTable
    slices: tuple[StepSlice, ...] = ()
    """Slices that attention computes one after the other; empty: the step as a whole."""
    windows: Step | None = None
    """The same step, with the slots and blocks of layers that keep only their windows; None: all layers keep all
    tokens."""
    states: StateRows | None = None
    """The slots of recurrent layers; None: no layer is recurrent."""
    ngrams: torch.Tensor | None = None
    """float32 [T, W], the rows of an n-gram table, for all slices; None: no layer of the device adds them."""
    token_ids: torch.Tensor | None = None  # int32 [T]
    """None: no layer looks up experts by them. Slices have none."""

    def rows(self, begin: int, end: int) -> Step:
        """Positions and slots of tokens begin … end - 1, with the step's other tables unchanged. They are copies: for
        views at odd addresses Triton would compile its kernels once more and delay all requests."""
        return replace(self, positions=self.positions[begin:end].clone(), slots=self.slots[begin:end].clone())

    @classmethod
    def from_batch(
        cls,
        batch: Batch,
        device: torch.device,
        sizes: SliceSizes | None = None,
        *,
        has_states: bool = False,
        has_ids: bool = False,
    ) -> Step:
        """Copy a batch's tables to the device; the batch is not needed afterwards. `sizes` None: the step is not cut
        into slices. `has_states`: whether layers are recurrent. `has_ids`: whether some look up experts by the id of a
        token."""
        begins = batch.query_indptr.copy()
        lens = batch.positions[begins[1:] - 1] + np.int32(1)

        def send(values: NDArray[np.int32] | NDArray[np.int64]) -> torch.Tensor:
            return torch.from_numpy(values).to(device)

        whole = cls(
            positions=send(batch.positions.copy()),
            slots=send(batch.slots.copy()),
            sampled=send(batch.sampled.copy()),
            requests=RequestTable(begins, lens, send(begins), send(lens), send(_rows_of(batch.kv_indices, batch))),
        )
        if sizes is not None:
            whole = whole._cut(begins, lens, sizes, send)
        if has_states:
            whole = whole._with_states(batch, send)
        if has_ids:
            whole = replace(whole, token_ids=send(batch.token_ids.copy()))
        if batch.window_slots is None or batch.window_indices is None:
            return whole
        blocks = send(_rows_of(batch.window_indices, batch))
        return replace(whole, windows=whole._elsewhere(send(batch.window_slots.copy()), blocks))

    def _cut(
        self,
        begins: NDArray[np.int32],
        lens: NDArray[np.int32],
        sizes: SliceSizes,
        send: Callable[[NDArray[np.int32]], torch.Tensor],
    ) -> Step:
        """The step with its slices."""
        cuts = cut(begins, sizes)
        tables = [table for own in cuts for table in (own.begins(begins), own.lens(begins, lens))]
        split = torch.split(send(np.concatenate(tables)), [table.size for table in tables]) if tables else ()
        on_device = [table.clone() for table in split]  # as in `rows`
        pairs = zip(cuts, tables[::2], tables[1::2], on_device[::2], on_device[1::2], strict=True)
        return replace(self, slices=tuple(self._slice(place, *own) for place, own in enumerate(pairs, 1)))

    def _with_states(self, batch: Batch, send: Callable[[NDArray[np.int32]], torch.Tensor]) -> Step:
        """The step with the slots of recurrent state of each slice, or of the whole step if there are none."""
        if not self.slices:
            return replace(self, states=planned_rows(batch, 0, batch.token_ids.size).send(send))
        slices = []
        for part in self.slices:
            states = planned_rows(batch, part.begin, part.end).send(send)
            slices.append(replace(part, step=replace(part.step, states=states)))
        return replace(self, slices=tuple(slices))

    def _elsewhere(self, slots: torch.Tensor, blocks: torch.Tensor) -> Step:
        """The step and its slices, with other slots [T] and blocks [R, maximum blocks of a request]."""
        slices = []
        for part in self.slices:
            own = part.step.requests
            rows = blocks[part.first_request : part.first_request + own.num_requests].clone()
            step = part.step._elsewhere(slots[part.begin : part.end].clone(), rows)
            slices.append(replace(part, step=step))
        return replace(self, slots=slots, requests=replace(self.requests, blocks=blocks), slices=tuple(slices))

    def _slice(
        self,
        place: int,
        own: Slice,
        host_begins: NDArray[np.int32],
        host_lens: NDArray[np.int32],
        begins: torch.Tensor,
        lens: torch.Tensor,
    ) -> StepSlice:
        blocks = self.requests.blocks[own.first_request : own.end_request].clone()
        requests = RequestTable(host_begins, host_lens, begins, lens, blocks, place)
        step = replace(self.rows(own.begin, own.end), sampled=self.sampled[:0], requests=requests, slices=())
        return StepSlice(own.begin, own.end, step, own.is_long, own.first_request)


def _rows_of(indices: NDArray[np.int32], batch: Batch) -> NDArray[np.int32]:
    """[R, maximum blocks of a request]: blocks by request, from those of all requests."""
    rows = np.zeros((batch.kv_indptr.size - 1, int(np.diff(batch.kv_indptr).max())), np.int32)
    for row, (begin, end) in zip(rows, itertools.pairwise(batch.kv_indptr.tolist()), strict=True):
        row[: end - begin] = indices[begin:end]
    return rows

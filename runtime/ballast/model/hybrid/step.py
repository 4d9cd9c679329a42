"""A batch's tables on the device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.model.batch import Batch


@dataclass(frozen=True, slots=True)
class RequestRows:
    """Tokens begin…end of a step belong to one request, which sees the cache's slots `context`."""

    begin: int
    end: int
    context: torch.Tensor  # int64 [tokens so far, the step's included]


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """B requests that add one token each."""

    rows: torch.Tensor  # int32 [B], their tokens in the step, ascending
    lens: torch.Tensor  # int32 [B], tokens so far, the step's included
    blocks: torch.Tensor  # int32 [B, most blocks of one or more]
    host_lens: NDArray[np.int32]  # the same in host memory
    host_blocks: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Step:
    """Where each of T tokens stands, and what its request has cached."""

    positions: torch.Tensor  # int32 [T]
    slots: torch.Tensor  # int32 [T]
    sampled: torch.Tensor  # int64 [S]
    requests: tuple[RequestRows, ...]
    decode: DecodeRows | None = None
    """Requests that are not among `requests`."""

    @classmethod
    def from_batch(cls, batch: Batch, block_tokens: int, device: torch.device, *, decodes_apart: bool) -> Step:
        """Copy a batch's tables; the batch is not needed afterwards. `decodes_apart`: requests of one token go to
        `decode`."""
        bounds, blocks = batch.query_indptr.tolist(), batch.kv_indptr.tolist()
        requests, single = [], []
        for index, (begin, end) in enumerate(itertools.pairwise(bounds)):
            own = batch.kv_indices[blocks[index] : blocks[index + 1]]
            if decodes_apart and end - begin == 1:
                single.append((begin, own))
                continue
            slots = (own.astype(np.int64)[:, None] * block_tokens + np.arange(block_tokens)).reshape(-1)
            context = torch.from_numpy(slots[: int(batch.positions[end - 1]) + 1])
            requests.append(RequestRows(begin, end, context.to(device)))
        return cls(
            positions=torch.from_numpy(batch.positions.copy()).to(device),
            slots=torch.from_numpy(batch.slots.copy()).to(device),
            sampled=torch.from_numpy(batch.sampled.copy()).to(device),
            requests=tuple(requests),
            decode=_decode_rows(batch, single, device) if single else None,
        )


def _decode_rows(batch: Batch, single: Sequence[tuple[int, NDArray[np.int32]]], device: torch.device) -> DecodeRows:
    rows = np.array([row for row, _ in single], np.int32)
    blocks = np.zeros((len(single), max(own.size for _, own in single)), np.int32)
    for index, (_, own) in enumerate(single):
        blocks[index, : own.size] = own
    lens = batch.positions[rows] + np.int32(1)
    return DecodeRows(
        rows=torch.from_numpy(rows).to(device),
        lens=torch.from_numpy(lens).to(device),
        blocks=torch.from_numpy(blocks).to(device),
        host_lens=lens,
        host_blocks=blocks,
    )

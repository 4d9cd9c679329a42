"""A batch's tables on the device."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch

from ballast.model.batch import Batch


@dataclass(frozen=True, slots=True)
class RequestRows:
    """Tokens begin…end of a step belong to one request, which sees the cache's slots `context`."""

    begin: int
    end: int
    context: torch.Tensor  # int64 [tokens so far, the step's included]


@dataclass(frozen=True, slots=True)
class Step:
    """Where each of T tokens stands, and what its request has cached."""

    positions: torch.Tensor  # int64 [T]
    slots: torch.Tensor  # int64 [T]
    sampled: torch.Tensor  # int64 [S]
    requests: tuple[RequestRows, ...]

    @classmethod
    def from_batch(cls, batch: Batch, block_tokens: int, device: torch.device) -> Step:
        """Copy a batch's tables; the batch is not needed afterwards."""

        def on_device(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> torch.Tensor:
            return torch.from_numpy(values).to(device)

        requests = []
        bounds, blocks = batch.query_indptr.tolist(), batch.kv_indptr.tolist()
        for index, (begin, end) in enumerate(itertools.pairwise(bounds)):
            own = batch.kv_indices[blocks[index] : blocks[index + 1]].astype(np.int64)
            slots = (own[:, None] * block_tokens + np.arange(block_tokens)).reshape(-1)
            requests.append(RequestRows(begin, end, on_device(slots[: int(batch.positions[end - 1]) + 1])))
        return cls(
            positions=on_device(batch.positions.astype(np.int64)),
            slots=on_device(batch.slots.astype(np.int64)),
            sampled=on_device(batch.sampled.copy()),
            requests=tuple(requests),
        )

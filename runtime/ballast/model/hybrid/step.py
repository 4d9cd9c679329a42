"""One step's tables on the device: which tokens it has, and what their requests have cached."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.model.batch import Batch


@dataclass(frozen=True, slots=True)
class RequestTable:
    """R requests in the order of their tokens. The host's copies are for planning, the device's for kernels."""

    host_begins: NDArray[np.int32]  # [R + 1], tokens of the step that precede each request's
    host_lens: NDArray[np.int32]  # [R], tokens so far, the step's included
    begins: torch.Tensor  # int32 [R + 1]
    lens: torch.Tensor  # int32 [R]
    blocks: torch.Tensor  # int32 [R, most blocks of one or more]

    @property
    def num_requests(self) -> int:
        """R."""
        return len(self.host_lens)

    @property
    def adds_one_each(self) -> bool:
        """Whether every request adds one token."""
        return int(self.host_begins[-1]) == self.num_requests


@dataclass(frozen=True, slots=True)
class Step:
    """Where each of T tokens stands, and what its request has cached."""

    positions: torch.Tensor  # int32 [T]
    slots: torch.Tensor  # int32 [T]
    sampled: torch.Tensor  # int64 [S]
    requests: RequestTable

    @classmethod
    def from_batch(cls, batch: Batch, device: torch.device) -> Step:
        """Copy a batch's tables; the batch is not needed afterwards."""
        begins = batch.query_indptr.copy()
        lens = batch.positions[begins[1:] - 1] + np.int32(1)
        bounds = batch.kv_indptr.tolist()
        blocks = np.zeros((len(lens), int(np.diff(batch.kv_indptr).max())), np.int32)
        for request, (begin, end) in enumerate(itertools.pairwise(bounds)):
            blocks[request, : end - begin] = batch.kv_indices[begin:end]

        def send(values: NDArray[np.int32] | NDArray[np.int64]) -> torch.Tensor:
            return torch.from_numpy(values).to(device)

        return cls(
            positions=send(batch.positions.copy()),
            slots=send(batch.slots.copy()),
            sampled=send(batch.sampled.copy()),
            requests=RequestTable(begins, lens, send(begins), send(lens), send(blocks)),
        )

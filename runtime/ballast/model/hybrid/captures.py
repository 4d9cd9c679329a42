"""Captures of CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE


@contextmanager
def captured(pool: _POOL_HANDLE | None = None) -> Iterator[torch.cuda.CUDAGraph]:
    """A graph of what this thread queues within, in the memory of `pool`; other threads may use the device meanwhile.
    What fails within is raised; torch's own warning, that the graph of such a capture is empty, is not given."""
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        try:
            yield graph
        except BaseException:
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            raise

"""Capture of CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from ballast.model.hybrid.platforms.cuda_platform import CudaPlatform

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE


@contextmanager
def captured(
    pool: _POOL_HANDLE | None = None, stream: torch.cuda.Stream | None = None
) -> Iterator[torch.cuda.CUDAGraph]:
    """A context that captures the work that this thread queues in it, with memory from `pool`. Other threads may use
    the device in the meantime. The graph's kernels have the priority of `stream`, which belongs to the current device;
    None: the lowest.

    An error inside is raised without torch's warning that the graph is empty."""
    graph = torch.cuda.CUDAGraph()
    if stream is None:
        # torch's default is one stream for all devices, and capturing on it would change the current device.
        stream = CudaPlatform(torch.device("cuda")).new_stream()
    with (
        warnings.catch_warnings(),
        torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
    ):
        try:
            yield graph
        except BaseException:
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            raise

"""Captured decode steps, one graph for each batch size: a step costs the host one launch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from ballast.errors import EngineDeadError
from ballast.model.hybrid.captures import captured

log = logging.getLogger(__name__)

MOST_CAPTURED = 256
"""Requests of a step: beyond, one takes so long that queueing its kernels costs little, and more graphs would cost
minutes of the start and gigabytes."""


class DecodeGraphs:
    """Share one pool of device memory: no two replay at a time."""

    def __init__(self) -> None:
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @property
    def count(self) -> int:
        """Batch sizes that are captured."""
        return len(self._graphs)

    def holds(self, batch_size: int) -> bool:
        """Whether steps of so many requests are captured."""
        return batch_size in self._graphs

    def capture(
        self,
        max_batch_size: int,
        run: Callable[[int], None],
        queue: Callable[[int], None],
        report: Callable[[float], None],
    ) -> None:
        """Capture every batch size up to a limit, MOST_CAPTURED at most, the largest first: all find room in its
        memory. `run` makes a whole step of padding, which brings up whatever the first use brings up; `queue` queues
        what the graph is to hold. `report` gets the share done, 0…1. Raises what a step raises; EngineDeadError where
        it cannot be captured."""
        begin = time.monotonic()
        free, _ = torch.cuda.mem_get_info()
        pool = torch.cuda.graph_pool_handle()
        most = min(max_batch_size, MOST_CAPTURED)
        for size in range(most, 0, -1):
            run(size)
            try:
                with captured(pool) as graph:
                    queue(size)
            except RuntimeError as error:
                # What fails in a capture may make its end fail as well.
                first = error.__context__ or error
                if isinstance(first, torch.AcceleratorError) and "out of memory" in str(first):
                    raise torch.OutOfMemoryError(str(first)) from first  # a graph's own memory is none of torch's
                if isinstance(first, (torch.AcceleratorError, torch.OutOfMemoryError)):
                    raise first from None
                raise EngineDeadError(f"a decode step of {size} requests cannot be captured: {first}") from error
            self._graphs[size] = graph
            report(len(self._graphs) / most)
        taken = free - torch.cuda.mem_get_info()[0]
        seconds = round(time.monotonic() - begin, 2)
        log.info("decode graphs captured", extra={"graphs": most, "seconds": seconds, "gpu_bytes": taken})

    def replay(self, batch_size: int) -> None:
        """Queue a captured step on the current stream."""
        self._graphs[batch_size].replay()

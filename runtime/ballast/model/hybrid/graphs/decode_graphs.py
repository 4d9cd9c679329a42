"""Decode steps as CUDA graphs, one for each batch size, so that a step costs the host one launch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from ballast.errors import EngineDeadError
from ballast.model.hybrid.device_errors import DEVICE_ERRORS
from ballast.model.hybrid.graphs.capture import captured

log = logging.getLogger(__name__)

MOST_CAPTURED = 256
"""Most requests in a captured step. In a larger step the queueing of kernels hardly counts, while more graphs would
take minutes at start and gigabytes of memory."""


class DecodeGraphs:
    """The graphs of one model. They share one pool of device memory, so only one may run at a time."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        """They are captured on `stream`, and have its priority."""
        self._stream = stream
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
        """Capture every batch size up to `max_batch_size`, MOST_CAPTURED at most; the largest first, so that the others
        fit in its memory.

        `run(size)` runs a step of padding before the capture, so that nothing is used for the first time in it;
        `queue(size)` queues what is captured; `report` gets the share done, 0…1. Raises what a step raises, and
        EngineDeadError where a step cannot be captured."""
        begin = time.monotonic()
        free, _ = torch.cuda.mem_get_info()
        pool = torch.cuda.graph_pool_handle()
        most = min(max_batch_size, MOST_CAPTURED)
        for size in range(most, 0, -1):
            run(size)
            try:
                with captured(pool, self._stream) as graph:
                    queue(size)
            except RuntimeError as error:
                # An error inside a capture may make the end of the capture fail too: the first is the cause.
                first = error.__context__ or error
                if isinstance(first, torch.AcceleratorError) and "out of memory" in str(first):
                    raise torch.OutOfMemoryError(str(first)) from first  # torch does not allocate a graph's own memory
                if isinstance(first, DEVICE_ERRORS):
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

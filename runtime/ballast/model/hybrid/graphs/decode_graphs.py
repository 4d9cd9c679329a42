"""Decode steps as CUDA graphs, one per batch size, so that the host makes one launch per step."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ballast.errors import EngineDeadError, first_line
from ballast.model.hybrid.faults.device_errors import DEVICE_ERRORS, is_full
from ballast.model.hybrid.graphs.capture import captured

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

log = logging.getLogger(__name__)

MAX_CAPTURED = 256
"""Maximum requests in a captured step. In larger steps the time to queue kernels is negligible, while more graphs would
take minutes at start and gigabytes of memory."""
_COMMON = 32
_COMMON_MULTIPLE = 16
"""Batch sizes up to the first number, and multiples of the second, are captured before a server is ready. The others
are captured later, because each graph takes a tenth of a second."""


class DecodeGraphs:
    """The graphs of one model. They share one pool of device memory, so only one may run at a time."""

    def __init__(self, stream: Any) -> None:
        """Graphs are captured on `stream`, a torch.cuda.Stream, and have its priority; None: the lowest."""
        self._stream = stream
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool: _POOL_HANDLE | None = None
        self._left: deque[int] = deque()
        """Batch sizes that remain to be captured, descending."""

    @property
    def count(self) -> int:
        """Number of captured batch sizes."""
        return len(self._graphs)

    def holds(self, batch_size: int) -> bool:
        """Whether steps with this number of requests are captured."""
        return batch_size in self._graphs

    def capture(
        self,
        max_batch_size: int,
        run: Callable[[int], None],
        queue: Callable[[int], None],
        report: Callable[[float], None],
        *,
        finishes_later: bool = False,
    ) -> None:
        """Capture every batch size up to `max_batch_size`, at most MAX_CAPTURED. The largest is captured first, so
        that the others fit in its memory. `finishes_later`: leave rare sizes to `capture_next`.

        `run(size)` runs a step of padding before the capture, so that no first use happens inside it; `queue(size)`
        queues the work to capture; `report` gets the fraction done, 0…1. Raises the errors of a step, and
        EngineDeadError if a step cannot be captured."""
        begin = time.monotonic()
        free, _ = torch.cuda.mem_get_info()
        self._pool = torch.cuda.graph_pool_handle()
        most = min(max_batch_size, MAX_CAPTURED)
        sizes = range(most, 0, -1)
        now = [size for size in sizes if not finishes_later or size == most or _is_common(size)]
        self._left = deque(size for size in sizes if size not in now)
        for done, size in enumerate(now, 1):
            self._capture(size, run, queue)
            report(done / len(now))
        taken = free - torch.cuda.mem_get_info()[0]
        seconds = round(time.monotonic() - begin, 2)
        extra = {"graphs": len(now), "left": len(self._left), "seconds": seconds, "gpu_bytes": taken}
        log.info("decode graphs captured", extra=extra)

    def capture_next(self, run: Callable[[int], None], queue: Callable[[int], None]) -> bool:
        """Capture the next batch size that `capture` left; returns whether any remains. If device memory is full, the
        remaining sizes are dropped. No step may be in flight. Otherwise as `capture`."""
        if not self._left:
            return False
        try:
            self._capture(self._left[0], run, queue)
        except DEVICE_ERRORS as error:
            if not is_full(error):
                raise
            log.warning("no more decode graphs are captured", extra={"left": len(self._left), "why": first_line(error)})
            self._left.clear()
            return False
        self._left.popleft()
        if not self._left:
            log.info("all decode graphs captured", extra={"graphs": self.count})
        return bool(self._left)

    def _capture(self, size: int, run: Callable[[int], None], queue: Callable[[int], None]) -> None:
        run(size)
        try:
            with captured(self._pool, self._stream) as graph:
                queue(size)
        except RuntimeError as error:
            # An error inside a capture may also make the end of the capture fail: the first error is the cause.
            first = error.__context__ or error
            if is_full(first):
                raise torch.OutOfMemoryError(str(first)) from first
            if isinstance(first, DEVICE_ERRORS):
                raise first from None
            raise EngineDeadError(f"a decode step of {size} requests cannot be captured: {first}") from error
        self._graphs[size] = graph

    def replay(self, batch_size: int) -> None:
        """Queue a captured step on the current stream."""
        self._graphs[batch_size].replay()


def _is_common(size: int) -> bool:
    return size <= _COMMON or size % _COMMON_MULTIPLE == 0

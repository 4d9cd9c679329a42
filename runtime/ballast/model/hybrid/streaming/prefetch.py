"""Prefetch of pieces of memory into a few buffers on a device, in a known order: while one piece is computed with, the
next ones are copied.

The streams of copies and of computation are synchronised by events; the calling thread never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Stream(Protocol):
    """The part of torch.cuda.Stream that is needed here: a queue whose work is done in order."""

    def record_event(self) -> Any:
        """An event that happens when all work queued so far is done."""

    def wait_event(self, event: Any) -> None:
        """Let work that is queued from now on wait for the event."""


class HostStream:
    """The stream of a device without a queue: work is done when it is asked for."""

    def record_event(self) -> None:
        return None

    def wait_event(self, event: None) -> None:
        pass


class Prefetch:
    """Pieces 0…num_pieces - 1 in turn, as often as `begin` is called; piece i goes to buffer i % num_buffers."""

    def __init__(
        self,
        num_pieces: int,
        num_buffers: int,
        load: Callable[[int, int], None],
        copies: Stream,
        compute: Callable[[], Stream],
    ) -> None:
        """`load(piece, buffer)` queues a copy on the stream `copies`; `compute` returns the stream on which the caller
        computes."""
        self._num_pieces = num_pieces
        self._num_buffers = num_buffers
        self._load = load
        self._copies = copies
        self._compute = compute
        self._full: list[Any] = [None] * num_buffers
        self._free: list[Any] = [None] * num_buffers
        self._next_load = self._next_use = 0

    def begin(self) -> None:
        """Fill the buffers from piece 0 on; pieces that were prefetched and not used are dropped."""
        # The last pass, or one that was given up, may still compute with a buffer.
        self._free = [self._compute().record_event()] * self._num_buffers
        self._next_load = self._next_use = 0
        for _ in range(min(self._num_buffers, self._num_pieces)):
            self._load_next()

    def take(self, piece: int) -> int:
        """The buffer that holds `piece`, for work queued on the compute stream from now on. Pieces are taken in order,
        and each is given back by `done` before the next is taken."""
        assert piece == self._next_use, f"piece {piece} is asked for; the next one is {self._next_use}"
        buffer = piece % self._num_buffers
        self._compute().wait_event(self._full[buffer])
        return buffer

    def done(self) -> Any:
        """Give back the piece that was taken last: its buffer is filled again once the work queued so far is done. That
        is the event returned."""
        computed = self._compute().record_event()
        self._free[self._next_use % self._num_buffers] = computed
        self._next_use += 1
        if self._next_load < self._num_pieces:
            self._load_next()
        return computed

    def _load_next(self) -> None:
        piece = self._next_load
        buffer = piece % self._num_buffers
        self._copies.wait_event(self._free[buffer])
        self._load(piece, buffer)
        self._full[buffer] = self._copies.record_event()
        self._next_load += 1

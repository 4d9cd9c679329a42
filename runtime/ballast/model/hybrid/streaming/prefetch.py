"""Pieces of memory that pass through a few buffers on their way to a device, in a known order: while one is computed
with, those after it are copied.

Two streams work at their own pace and know of each other by events alone; the calling thread waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Stream(Protocol):
    """What is asked of it happens in order: of torch.cuda.Stream, as much as is needed here."""

    def record_event(self) -> Any:
        """An event that everything asked of the stream so far has happened."""

    def wait_event(self, event: Any) -> None:
        """What is asked of the stream from now on happens after the event."""


class HostStream:
    """Of a device that has no queue: what is asked has happened."""

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
        """`load(piece, buffer)` asks the stream `copies` for a copy. `compute` gives the stream that the caller asks
        for what is computed."""
        self._num_pieces = num_pieces
        self._num_buffers = num_buffers
        self._load = load
        self._copies = copies
        self._compute = compute
        self._full: list[Any] = [None] * num_buffers
        self._free: list[Any] = [None] * num_buffers
        self._next_load = self._next_use = 0

    def begin(self) -> None:
        """Fill the buffers from piece 0 on. What was prefetched and not used is dropped."""
        # A buffer may still be computed with: by the last pass, or by one that was given up.
        self._free = [self._compute().record_event()] * self._num_buffers
        self._next_load = self._next_use = 0
        for _ in range(min(self._num_buffers, self._num_pieces)):
            self._load_next()

    def take(self, piece: int) -> int:
        """The buffer that holds `piece` for what is asked of the compute stream from now on. Pieces are taken in order,
        each given back by `done` before the next."""
        assert piece == self._next_use, f"piece {piece} is asked for; the next one is {self._next_use}"
        buffer = piece % self._num_buffers
        self._compute().wait_event(self._full[buffer])
        return buffer

    def done(self) -> None:
        """The piece that was taken last is not needed after what was asked so far; its buffer is filled anew."""
        self._free[self._next_use % self._num_buffers] = self._compute().record_event()
        self._next_use += 1
        if self._next_load < self._num_pieces:
            self._load_next()

    def _load_next(self) -> None:
        piece = self._next_load
        buffer = piece % self._num_buffers
        self._copies.wait_event(self._free[buffer])
        self._load(piece, buffer)
        self._full[buffer] = self._copies.record_event()
        self._next_load += 1

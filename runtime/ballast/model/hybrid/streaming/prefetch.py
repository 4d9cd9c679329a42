"""Prefetches pieces of memory into a few buffers on a device, in a known order: while one piece is in use, the next
ones are copied.

Events synchronise the copy stream and the compute stream; the calling thread never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ballast.model.hybrid.platforms.interface import Stream


class Prefetch:
    """Copies the pieces of each pass, in the order given to `begin`; the n-th piece goes to buffer n % num_buffers.
    Passes may compute on different streams."""

    def __init__(
        self,
        num_buffers: int,
        load: Callable[[int, int], None],
        copies: Stream,
        compute: Callable[[], Stream],
    ) -> None:
        """`load(piece, buffer)` queues a copy on the stream `copies`; `compute` returns the stream on which the caller
        computes."""
        self._num_buffers = num_buffers
        self._load = load
        self._copies = copies
        self._compute = compute
        self._pieces: Sequence[int] = ()
        self._full: list[Any] = [None] * num_buffers
        # Recorded after the last use of each buffer, on the stream that used it. Initially: the stream that allocated
        # the buffers may still use their memory.
        self._free: list[Any] = [compute().record_event()] * num_buffers
        self._next_load = self._next_use = 0

    def begin(self, pieces: Sequence[int]) -> None:
        """Start a pass over `pieces` and fill the buffers; drops pieces that were prefetched and not used."""
        # Buffers keep the events of their last use: the previous pass may still compute with them, on another stream.
        self._pieces = pieces
        self._next_load = self._next_use = 0
        for _ in range(min(self._num_buffers, len(pieces))):
            self._load_next()

    def take(self, piece: int) -> int:
        """The buffer that holds `piece`, for work queued on the compute stream from now on. Pieces are taken in order,
        and `done` must release each before the next is taken."""
        following = self._pieces[self._next_use]
        assert piece == following, f"piece {piece} was requested; the next one is {following}"
        buffer = self._next_use % self._num_buffers
        self._compute().wait_event(self._full[buffer])
        return buffer

    def done(self) -> Any:
        """Release the piece that was taken last. Its buffer is refilled once the work queued so far is done; the
        returned event marks that point."""
        computed = self._compute().record_event()
        self._free[self._next_use % self._num_buffers] = computed
        self._next_use += 1
        if self._next_load < len(self._pieces):
            self._load_next()
        return computed

    def _load_next(self) -> None:
        buffer = self._next_load % self._num_buffers
        self._copies.wait_event(self._free[buffer])
        self._load(self._pieces[self._next_load], buffer)
        self._full[buffer] = self._copies.record_event()
        self._next_load += 1

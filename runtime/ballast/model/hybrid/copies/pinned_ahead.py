"""Pinned host memory, taken while a model is loaded.

The system clears such memory at some 3 GB/s, by one thread: 24 GiB beside a GPU's cache took 9 seconds of a start in
which nothing else was left to do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import torch

from ballast.errors import first_line

log = logging.getLogger(__name__)

Take = Callable[[int], object]
"""Takes so many bytes, which are given back when nothing refers to the result. Raises RuntimeError."""


def take_pinned(num_bytes: int) -> torch.Tensor:
    """From the system, or torch's cache of what it had from there."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def free_pinned() -> None:
    """Gives the system back what torch keeps of such memory for whoever asks next."""
    torch._C._host_emptyCache()  # torch 2.11 has no other name for it


class PinnedAhead:
    """A context in which a thread takes memory in pieces. Leaving it waits for all of them. With `take_pinned`, they
    are then in torch's cache of such memory, from which whoever asks for a piece next has it at once; where the context
    is left by an error, they are given back. What the system refuses is left to whoever needs it."""

    def __init__(
        self,
        num_bytes: int,
        piece_bytes: int,
        take: Take = take_pinned,
        free: Callable[[], None] = free_pinned,
        use_device: Callable[[], None] = lambda: None,
    ) -> None:
        """`use_device` binds the thread to the device: else it might take memory through another one."""
        self._num_pieces = num_bytes // piece_bytes
        self._piece_bytes = piece_bytes
        self._take, self._free, self._use_device = take, free, use_device
        self._pieces: list[object] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="ballast-pin-ahead", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error_type is not None:
            with suppress(RuntimeError):  # of a device that is lost: the error itself is told
                self.give_back()
            return
        self.wait()
        self._pieces.clear()

    def wait(self) -> None:
        """Until the thread has ended: it would slow down what is timed meanwhile."""
        self._thread.join()

    def give_back(self) -> None:
        """Take no more, and give the system back what there is: somebody needs it more. From any thread."""
        self._is_over.set()
        self.wait()
        if self._pieces:
            self._pieces.clear()
            self._free()

    def _fill(self) -> None:
        try:
            if self._num_pieces:
                self._use_device()
            while len(self._pieces) < self._num_pieces and not self._is_over.is_set():
                self._pieces.append(self._take(self._piece_bytes))
        except RuntimeError as error:
            log.info("less memory is pinned ahead", extra={"why": first_line(error)})

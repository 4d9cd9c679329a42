"""Pinned host memory, taken while a model is loaded.

The system clears such memory at some 3 GB/s, by one thread: 24 GiB beside a GPU's cache took 9 seconds of a start in
which nothing else was left to do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ballast.errors import first_line

log = logging.getLogger(__name__)

Take = Callable[[int], object]
"""Takes so many bytes, which are given back when nothing refers to the result. Raises RuntimeError."""


@contextmanager
def pinned_ahead(
    num_bytes: int, piece_bytes: int, take: Take, use_device: Callable[[], None] = lambda: None
) -> Iterator[Callable[[], None]]:
    """A context in which a thread, which `use_device` binds to the device, takes `num_bytes` in pieces. Leaving it
    waits for the thread; so does a call of what it gives, for those who time something that this would slow down.

    With `take_pinned`, the pieces are then in torch's cache of such memory, from which whoever asks for a piece next
    has it at once. What the system refuses is left to whoever needs it."""
    pieces: list[object] = []
    is_over = threading.Event()

    def fill() -> None:
        try:
            use_device()
            while (len(pieces) + 1) * piece_bytes <= num_bytes and not is_over.is_set():
                pieces.append(take(piece_bytes))
        except RuntimeError as error:
            log.info("less memory is pinned ahead", extra={"why": first_line(error)})

    thread = threading.Thread(target=fill, name="ballast-pin-ahead", daemon=True)
    thread.start()
    try:
        yield thread.join
    except BaseException:
        is_over.set()
        raise
    finally:
        thread.join()
        pieces.clear()


def take_pinned(num_bytes: int) -> torch.Tensor:
    """From the system, or torch's cache of what it had from there."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

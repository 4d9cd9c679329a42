"""Pins host memory while a model is loaded, because pinning tens of gigabytes takes seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from ballast.model.hybrid.platforms.interface import Bytes, Take

log = logging.getLogger(__name__)


class PinnedAhead:
    """A context in which a thread allocates memory in pieces, which `take` returns to callers. Leaving it waits for the
    thread and releases unused pieces. If the system refuses memory, the thread stops without an error."""

    def __init__(self, sizes: Sequence[int], new: Take, use_device: Callable[[], None] = lambda: None):
        """`sizes`: bytes of each piece, in the order of allocation. `new` allocates memory. `use_device` binds the
        thread to the device; otherwise it might allocate memory through another device."""
        self._sizes = sizes
        self._new, self._use_device = new, use_device
        self._pieces: list[Bytes] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="ballast-pin-ahead", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()

    def take(self, num_bytes: int) -> Bytes:
        """The smallest pre-pinned buffer that holds `num_bytes`, cut to them, if at least half of it is used; otherwise
        new memory. Waits for the thread. Raises MemoryError."""
        self.wait()
        fitting = [index for index, piece in enumerate(self._pieces) if num_bytes <= piece.nbytes <= 2 * num_bytes]
        if not fitting:
            return self._new(num_bytes)
        return self._pieces.pop(min(fitting, key=lambda index: self._pieces[index].nbytes))[:num_bytes]

    def wait(self) -> None:
        """Wait until the thread has ended, because pinning would disturb measurements."""
        self._thread.join()

    def give_back(self) -> None:
        """Stop pinning, and release the unused buffers because memory is short. May be called from any thread."""
        self._is_over.set()
        self.wait()
        self._pieces.clear()

    def _fill(self) -> None:
        try:
            if self._sizes:
                self._use_device()
            for num_bytes in self._sizes:
                if self._is_over.is_set():
                    return
                self._pieces.append(self._new(num_bytes))
        except (MemoryError, RuntimeError) as error:
            log.info("less memory was pinned in advance", extra={"why": str(error).partition("\n")[0]})

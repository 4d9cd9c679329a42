"""The seconds of a start by phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

Phase = Literal["weights", "pinned", "kernels", "measured", "graphs"]
"""Reading and packing weights; pinning host memory; compiling, loading and checking kernels; measuring speeds;
capturing decode steps as graphs."""
OTHER = "other"


class StartTimes:
    """Seconds by phase, on the loading thread. A phase within another one interrupts it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._changed = clock()
        self._current: str = OTHER
        self._seconds = dict.fromkeys((*get_args(Phase), OTHER), 0.0)

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """A context whose time is added to a phase."""
        outer = self._change(name)
        try:
            yield
        finally:
            self._change(outer)

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase and of everything else so far. Their sum is the time since this object was made."""
        self._change(self._current)
        return dict(self._seconds)

    def _change(self, name: str) -> str:
        now, before = self._clock(), self._current
        self._seconds[before] += now - self._changed
        self._changed, self._current = now, name
        return before

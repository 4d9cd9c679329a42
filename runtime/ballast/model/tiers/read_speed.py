"""How long a place takes to bring a block back, as of what it has brought lately. Pure."""

from __future__ import annotations

from dataclasses import dataclass

KNOWN_FROM_S = 0.5
"""Less reading says little: a thread may have waited for a processor, or a disk for its first block."""
WINDOW_S = 4.0
"""Half-life of measurements, in seconds of reading."""
FORGOTTEN_AFTER_S = 60.0
"""A place that nothing was read from for so long is tried again, since who was slow may be fast by now."""


@dataclass(slots=True)
class ReadSpeed:
    """Not thread-safe."""

    _blocks: float = 0.0
    _seconds: float = 0.0
    _last: float = 0.0

    def note(self, num_blocks: int, seconds: float, now: float) -> None:
        """Record that `num_blocks` blocks were read in `seconds`, ending at `now`."""
        if now - self._last > FORGOTTEN_AFTER_S:
            self._blocks = self._seconds = 0.0
        self._blocks += num_blocks
        self._seconds += seconds
        self._last = now
        while self._seconds > WINDOW_S:
            self._blocks /= 2
            self._seconds /= 2

    def block_seconds(self, now: float) -> float:
        """Seconds per block; 0 if unknown."""
        if self._blocks == 0 or self._seconds < KNOWN_FROM_S or now - self._last > FORGOTTEN_AFTER_S:
            return 0.0
        return self._seconds / self._blocks

"""Reports a download's progress, speed and remaining time: one changing line on a terminal, or log lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from ballast.host.sizes import human

_TERMINAL_S, _LOG_S = 0.5, 10.0
"""Time between two reports."""


class Progress:
    """`total`: number of bytes. `told`: is called with the bytes so far and the total, after each chunk."""

    def __init__(
        self,
        total: int,
        out: TextIO,
        clock: Callable[[], float] = time.monotonic,
        told: Callable[[int, int], None] = lambda there, total: None,
    ) -> None:
        self._total, self._out, self._clock, self._tell = total, out, clock, told
        self._there, self._came = 0, 0
        self._began = self._said = clock()

    def found(self, num_bytes: int) -> None:
        """Count bytes of an earlier pull. Negative if they cannot be used."""
        self._there += num_bytes
        self._say_now_and_then()

    def came(self, num_bytes: int) -> None:
        """Count received bytes."""
        self._there += num_bytes
        self._came += num_bytes
        self._say_now_and_then()

    def note(self, line: str) -> None:
        """Write a separate line."""
        self._out.write(f"\r\x1b[K{line}\n" if self._out.isatty() else f"{line}\n")

    def end(self) -> None:
        """The last word."""
        self._say(self._clock())
        if self._out.isatty():
            self._out.write("\n")

    def _say_now_and_then(self) -> None:
        self._tell(self._there, self._total)
        now = self._clock()
        if now - self._said >= (_TERMINAL_S if self._out.isatty() else _LOG_S):
            self._said = now
            self._say(now)

    def _say(self, now: float) -> None:
        speed = self._came / max(now - self._began, 1e-3)
        left = f", {(self._total - self._there) / speed:.0f} s left" if speed and self._there < self._total else ""
        line = f"{human(self._there)} of {human(self._total)}, {human(int(speed))}/s{left}"
        self._out.write(f"\r\x1b[K{line}" if self._out.isatty() else f"{line}\n")
        self._out.flush()

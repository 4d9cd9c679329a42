"""Reports a download's progress, speed and remaining time: one changing line on a terminal, or log lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from ballast.host.sizes import human

_TERMINAL_S, _LOG_S = 0.5, 10.0
"""Time between two reports."""


class Progress:
    """`total`: number of bytes. `on_progress`: is called with the bytes so far and the total, after each chunk."""

    def __init__(
        self,
        total: int,
        out: TextIO,
        clock: Callable[[], float] = time.monotonic,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._total, self._out, self._clock, self._on_progress = total, out, clock, on_progress
        self._done, self._received = 0, 0
        self._began = self._shown_s = clock()

    def found(self, num_bytes: int) -> None:
        """Count bytes of an earlier pull. Negative if they cannot be used."""
        self._done += num_bytes
        self._show_at_intervals()

    def received(self, num_bytes: int) -> None:
        """Count received bytes."""
        self._done += num_bytes
        self._received += num_bytes
        self._show_at_intervals()

    def note(self, line: str) -> None:
        """Write a separate line."""
        self._out.write(f"\r\x1b[K{line}\n" if self._out.isatty() else f"{line}\n")

    def end(self) -> None:
        """The last word."""
        self._show(self._clock())
        if self._out.isatty():
            self._out.write("\n")

    def _show_at_intervals(self) -> None:
        self._on_progress(self._done, self._total)
        now = self._clock()
        if now - self._shown_s >= (_TERMINAL_S if self._out.isatty() else _LOG_S):
            self._shown_s = now
            self._show(now)

    def _show(self, now: float) -> None:
        speed = self._received / max(now - self._began, 1e-3)
        left = f", {(self._total - self._done) / speed:.0f} s left" if speed and self._done < self._total else ""
        line = f"{human(self._done)} of {human(self._total)}, {human(int(speed))}/s{left}"
        self._out.write(f"\r\x1b[K{line}" if self._out.isatty() else f"{line}\n")
        self._out.flush()

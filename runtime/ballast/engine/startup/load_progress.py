"""Shows the progress, speed and remaining time of loading: a bar on a terminal, otherwise about twenty log lines."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ballast.engine.engine import Loader
from ballast.model.runner import Runner

log = logging.getLogger(__name__)

LOGGED_EVERY_S, LOGGED_SHARE = 10.0, 0.05
"""Least time and least progress, as a fraction of the whole, between two lines."""

_GB = 1e9

Report = Callable[[float], None]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of loading `num_bytes` after `seconds`; `share` is the loaded fraction, 0…1."""

    num_bytes: int
    share: float
    seconds: float

    @property
    def gb(self) -> float:
        """Loaded bytes in GB (10⁹)."""
        return self.share * self.num_bytes / _GB

    @property
    def gb_per_s(self) -> float:
        """The mean speed since the begin; 0 before any time has passed."""
        return self.gb / self.seconds if self.seconds > 0 else 0.0

    @property
    def left_s(self) -> float:
        """Remaining seconds at this speed; 0 if no speed is known yet."""
        return self.seconds * (1 - self.share) / self.share if self.share > 0 else 0.0

    def __str__(self) -> str:
        return f"{self.gb:.1f}/{self.num_bytes / _GB:.1f} GB, {self.gb_per_s:.2f} GB/s, {self.left_s:.0f} s left"


class Pace:
    """Selects the progress reports that get a log line."""

    def __init__(self) -> None:
        self._next_s, self._next_share = LOGGED_EVERY_S, 0.0

    def is_due(self, share: float, seconds: float) -> bool:
        """Whether to write a line now, `seconds` after the begin. The end gets exactly one line."""
        is_over = share >= 1
        if share < self._next_share or (seconds < self._next_s and not is_over):
            return False
        self._next_s = seconds + LOGGED_EVERY_S
        self._next_share = math.inf if is_over else min(share + LOGGED_SHARE, 1.0)
        return True


def with_progress(load: Loader, num_bytes: int, stream: TextIO | None = None, clock: Clock = time.monotonic) -> Loader:
    """A loader that also shows the progress of `load`, for a model of `num_bytes`, on `stream` (default: standard
    error)."""
    to = sys.stderr if stream is None else stream

    def shown(report: Report) -> Runner:
        begin = clock()
        with _bar(to) if to.isatty() else _lines() as show:

            def both(share: float) -> None:
                report(share)
                show(Progress(num_bytes, share, clock() - begin))

            runner = load(both)
            show(Progress(num_bytes, 1.0, clock() - begin))
            return runner

    return shown


@contextmanager
def _bar(stream: TextIO) -> Iterator[Callable[[Progress], None]]:
    bar_format = "{desc} {percentage:3.0f}%|{bar}| {elapsed}{postfix}"
    # Log lines appear above the bar, not in it.
    with logging_redirect_tqdm(), tqdm(total=100, desc="loading", file=stream, bar_format=bar_format) as bar:

        def show(progress: Progress) -> None:
            bar.set_postfix_str(str(progress), refresh=False)
            bar.update(progress.share * 100 - bar.n)

        yield show


@contextmanager
def _lines() -> Iterator[Callable[[Progress], None]]:
    pace = Pace()

    def show(progress: Progress) -> None:
        if not pace.is_due(progress.share, progress.seconds):
            return
        fields = {"percent": int(progress.share * 100), "gb": round(progress.gb, 1)}
        if progress.share < 1:
            fields |= {"left_s": round(progress.left_s)}
        log.info("loading", extra={**fields, "gb_per_s": round(progress.gb_per_s, 2)})

    yield show

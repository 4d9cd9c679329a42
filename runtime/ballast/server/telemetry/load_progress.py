"""Shows the progress of loading: a bar on a terminal, else a few lines in the log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ballast.engine.engine import Loader
from ballast.engine.runner import Runner

log = logging.getLogger(__name__)

LOGGED_PERCENT = (25, 50, 75, 100)

Report = Callable[[float], None]


def with_progress(load: Loader, stream: TextIO | None = None) -> Loader:
    """A loader that also shows the progress of `load` on `stream`, by default standard error."""
    to = sys.stderr if stream is None else stream

    def shown(report: Report) -> Runner:
        with _bar(to) if to.isatty() else _lines() as show:

            def both(share: float) -> None:
                report(share)
                show(share)

            runner = load(both)
            show(1.0)
            return runner

    return shown


@contextmanager
def _bar(stream: TextIO) -> Iterator[Report]:
    # The redirection writes log lines above the bar instead of into it.
    with (
        logging_redirect_tqdm(),
        tqdm(total=100, desc="loading", file=stream, bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}") as bar,
    ):

        def show(share: float) -> None:
            bar.update(share * 100 - bar.n)

        yield show


@contextmanager
def _lines() -> Iterator[Report]:
    left = list(LOGGED_PERCENT)

    def show(share: float) -> None:
        passed = [percent for percent in left if share * 100 >= percent]
        if passed:
            log.info("loading", extra={"percent": passed[-1]})
            del left[: len(passed)]

    yield show

"""One stage of loading: its name, its part of the progress, and how it is run and logged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ballast.model.hybrid.load_stages.state import LoadState

log = logging.getLogger(__name__)

Report = Callable[[float], None]
"""Receives the fraction done, 0…1."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of loading."""

    name: str
    run: Callable[[LoadState, Report], None]
    end: float
    """The progress of the whole load at the end of the stage, 0…1."""


def run_stages(stages: Sequence[Stage], state: LoadState, report: Report) -> None:
    """Run the stages in order. Logs the seconds of each at debug level; if one fails, logs its name."""
    begin = 0.0
    for stage in stages:
        began_s = time.monotonic()
        try:
            stage.run(state, _within(report, begin, stage.end))
        except Exception:
            log.error("loading failed", extra={"stage": stage.name})  # noqa: TRY400  the caller reports the error itself
            raise
        log.debug("stage loaded", extra={"stage": stage.name, "seconds": round(time.monotonic() - began_s, 3)})
        begin = stage.end


def _within(report: Report, begin: float, end: float) -> Report:
    return lambda done: report(begin + (end - begin) * done)

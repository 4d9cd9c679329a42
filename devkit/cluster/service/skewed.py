"""`python -m devkit.cluster.service.skewed`: the operator with a wall clock that is wrong by CLOCK_SKEW_S seconds, or
by the number in the file CLOCK_SKEW_FILE, which is read again on each call."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ballast_operator import cli
from ballast_operator.process import run


def main() -> int:
    skew_s = _skew()
    run._now = lambda: datetime.now(UTC) + timedelta(seconds=skew_s())
    return cli.main()


def _skew() -> Callable[[], float]:
    file = os.environ.get("CLOCK_SKEW_FILE")
    if file is not None:
        return lambda: float(Path(file).read_text())
    always = float(os.environ["CLOCK_SKEW_S"])
    return lambda: always


if __name__ == "__main__":
    sys.exit(main())

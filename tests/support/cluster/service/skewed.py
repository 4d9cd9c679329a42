"""`python -m support.cluster.service.skewed`: the operator with a wall clock that is wrong by CLOCK_SKEW_S seconds."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta

from ballast_operator import cli
from ballast_operator.process import run


def main() -> int:
    skew = timedelta(seconds=float(os.environ["CLOCK_SKEW_S"]))
    run._now = lambda: datetime.now(UTC) + skew
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())

"""A pytest plugin: appends each failure to the file TEST_FAILURES as soon as it happens, for runs that are
interrupted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FILE = "TEST_FAILURES"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append the case and its error. With pytest-xdist, only the controller process writes."""
    file = os.environ.get(FILE)
    if file is not None and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(file).open("a") as opened:
            opened.write(f"{report.nodeid} ({report.when})\n{report.longreprtext}\n\n")

from collections import Counter

import pytest

from ballast.testing.isas import NOT_USABLE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many cases were not run for want of an instruction set."""
    reasons = Counter(
        reason.split(NOT_USABLE)[1]
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple) and NOT_USABLE in (reason := str(report.longrepr[2]))
    )
    for isa, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} cases for {isa} not run: {NOT_USABLE}{isa}")

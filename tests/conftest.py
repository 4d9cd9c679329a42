from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from ballast.gpu import why_unusable
from ballast.testing.isas import NOT_USABLE

NO_GPU = "no GPU: "

# A property is tried on the same examples every time, and a pause of the machine is nobody's fault.
settings.register_profile(
    "ballast", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ballast")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are not run where there is no CUDA device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = why_unusable("cuda:0") if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=NO_GPU + reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many cases were not run for want of an instruction set or a GPU."""
    reasons = Counter(
        reason.split(NOT_USABLE)[1]
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple) and NOT_USABLE in (reason := str(report.longrepr[2]))
    )
    for isa, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} cases for {isa} not run: {NOT_USABLE}{isa}")
    without_gpu = Counter(
        reason.split(NO_GPU)[1]
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple) and NO_GPU in (reason := str(report.longrepr[2]))
    )
    for reason, count in without_gpu.items():
        terminalreporter.write_line(f"{count} cases for a GPU not run: {reason}")

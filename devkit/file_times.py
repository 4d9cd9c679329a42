"""A pytest plugin: the time of each test file, one line per file at the end of a run, slowest first."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from dataclasses import dataclass

import pytest

from devkit.servers import prefork

_KEY = "file_times"


@dataclass(slots=True)
class FileTime:
    """Sums over the cases of a file."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    num_cases: int = 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Record when a case begins, including its fixtures."""
    item.stash[_BEGAN] = (time.perf_counter(), _cpu_s())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the case's times to its last report, which workers send to the controller."""
    if call.when == "teardown":
        wall_s, cpu_s = item.stash[_BEGAN]
        item.user_properties.append((_KEY, [time.perf_counter() - wall_s, _cpu_s() - cpu_s]))
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print wall time, CPU time including child processes, number of cases and file name."""
    files: dict[str, FileTime] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                wall_s, cpu_s = dict(report.user_properties)[_KEY]
                of_file = files.setdefault(report.location[0], FileTime())
                of_file.wall_s += wall_s
                of_file.cpu_s += cpu_s
                of_file.num_cases += 1
    terminalreporter.section("time by file: wall s, CPU s, cases")
    for name, took in sorted(files.items(), key=lambda entry: -entry[1].cpu_s):
        terminalreporter.write_line(f"{took.wall_s:8.1f} {took.cpu_s:8.1f} {took.num_cases:6} {name}")
    total = sum(took.cpu_s for took in files.values())
    terminalreporter.write_line(f"{sum(took.wall_s for took in files.values()):8.1f} {total:8.1f}")


_BEGAN = pytest.StashKey[tuple[float, float]]()


def _cpu_s() -> float:
    return sum(os.times()[:4]) + prefork.cpu_s

"""`make test` runs a selection of repeated cases; the summary says how many are left out."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.long import pairwise, spread

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest
from devkit.long import if_long, spread, times

@pytest.mark.parametrize(("a", "b"), spread([1, 2, 3], "xy"))
def test_some(a, b):
    pass

@pytest.mark.parametrize("a", [1, *if_long(2, 3)])
def test_more(a):
    fewer = times(1, 5)
    assert fewer < times(2, 6)
"""


def test_a_spread_has_every_value_and_few_cases() -> None:
    axes = ("abcdefgh", (1, 2, 3), (True, False))
    cases = [case.values for case in spread(*axes)]
    assert [len({case[axis] for case in cases}) for axis in range(3)] == [8, 3, 2]
    assert len(cases) == 8
    assert len({case[1:] for case in cases}) == 6, "pairs differ where they may"


def test_pairs_are_all_there() -> None:
    axes = ("abcd", (1, 2, 3), (True, False))
    cases = [case.values for case in pairwise(*axes)]
    for one, other in itertools.combinations(range(3), 2):
        assert len({(case[one], case[other]) for case in cases}) == len(axes[one]) * len(axes[other])
    assert len(cases) < 24


def test_a_skipped_case_stands_for_no_other_value() -> None:
    skipped = pytest.param("amx", marks=pytest.mark.skip(reason="this CPU lacks it"))
    cases = spread("ab", [skipped, "avx2"])
    assert {case.values for case in cases if not case.marks} == {("a", "avx2"), ("b", "avx2")}
    assert sum(bool(case.marks) for case in cases) == 1


@pytest.mark.parametrize(
    ("options", "passed", "summary"),
    [
        ([], 4, "at least 5 cases left out and 2 properties tried less often"),
        (["--numprocesses", "2"], 4, "at least 5 cases left out and 2 properties tried less often"),
        (["--long"], 9, None),
    ],
    ids=["one process", "workers", "long"],
)
def test_the_summary_counts_what_is_left_out(
    tmp_path: Path, options: list[str], passed: int, summary: str | None
) -> None:
    (tmp_path / "test_cases.py").write_text(TESTS)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "devkit.long", "test_cases.py"]
    done = subprocess.run(
        [*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert f"{passed} passed" in done.stdout
    assert ("left out" in done.stdout) == (summary is not None)
    assert summary is None or summary in done.stdout

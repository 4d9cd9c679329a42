"""Failures are written to a file as soon as they occur."""

import os
import subprocess
import sys
from pathlib import Path

from devkit.failures import FILE

ROOT = Path(__file__).parents[2]
TESTS = """
import os, pathlib

def test_a_case_that_fails():
    assert 1 + 1 == 3

def test_the_file_has_it():
    assert "test_cases.py::test_a_case_that_fails (call)" in pathlib.Path(os.environ["TEST_FAILURES"]).read_text()
"""


def test_a_failure_is_written_before_the_next_case_begins(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(TESTS)
    failures = tmp_path / "failures.txt"
    environment = os.environ | {"PYTHONPATH": str(ROOT), FILE: str(failures)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "devkit.failures", "test_cases.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert "1 failed, 1 passed" in done.stdout
    assert "assert (1 + 1) == 3" in failures.read_text()

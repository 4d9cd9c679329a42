"""Benchmark records."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from devkit.bench_record import bench_record


def test_a_thread_that_is_bound_to_a_cpu_does_not_hide_the_others() -> None:
    all_cpus = os.sched_getaffinity(0)

    def bound() -> str:
        os.sched_setaffinity(0, {min(all_cpus)})  # of this thread alone
        return bench_record("tests", "a case")

    with ThreadPoolExecutor(1) as executor:
        assert json.loads(executor.submit(bound).result())["cores"] == len(all_cpus)


def test_a_copy_without_git_keeps_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert json.loads(bench_record("tests", "a case", seconds=1.0))["commit"] == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))  # no program git
    assert json.loads(bench_record("tests", "a case", seconds=1.0))["commit"] == "unknown"

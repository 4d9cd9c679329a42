"""The fuzzer: cases are reproducible, and every abnormal end is detected."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.fuzz import targets, workers
from tools.fuzz.targets import TARGETS, Target
from tools.fuzz.workers import Outcome, make_case, run_all

ROOT = Path(__file__).parents[2]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("kind", TARGETS)
def test_a_case_depends_only_on_seed_kind_and_number(tmp_path: Path, kind: str) -> None:
    made = []
    for name, seed, number in (("a", 20, 7), ("b", 20, 7), ("c", 20, 8), ("d", 21, 7)):
        (tmp_path / name).mkdir()
        make_case(kind, seed, number, tmp_path / name)
        made.append(contents(tmp_path / name))
    assert made[0] == made[1]
    assert made[2] != made[0] != made[3]


def test_a_short_run_of_every_fuzzer_finds_no_error_and_leaves_no_files(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tools.fuzz", "--count", "8", "--workers", "1"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": 8 cases in ") == len(TARGETS)
    assert "\n0 findings\n" in done.stdout
    assert list(tmp_path.iterdir()) == []


def outcomes(monkeypatch: pytest.MonkeyPatch, read: Callable[[Target, Path], dict[str, int]]) -> list[Outcome]:
    """Outcomes of three cases; `read` handles the second one."""

    def run(target: Target, folder: Path) -> dict[str, int]:
        return read(target, folder) if folder.name == "1" else {"plan": 0, "serve": 0}

    monkeypatch.setattr(workers, "run", run)
    found = sorted(run_all("options", 20, range(3), 1), key=lambda outcome: outcome.number)
    assert [outcome.number for outcome in found] == [0, 1, 2]
    assert found[0].problem is found[2].problem is None
    return found


def test_a_case_that_kills_its_process_is_found_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def abort(*_: object) -> dict[str, int]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("the signal ends the process")

    assert outcomes(monkeypatch, abort)[1].problem == "ended with SIGKILL"


def test_a_case_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(*_: object) -> dict[str, int]:
        time.sleep(60)
        raise AssertionError("the worker is killed before")

    monkeypatch.setattr(workers, "HANG_S", 2.0)
    assert outcomes(monkeypatch, wait)[1].problem == "gave no answer in 2 s"


def test_a_case_that_takes_too_much_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(*_: object) -> dict[str, int]:
        return {"plan": targets._exit_code(lambda: len(bytearray(2 << 30))), "serve": 0}

    assert outcomes(monkeypatch, take)[1].problem == "exit codes {'plan': 70, 'serve': 0}"


@pytest.mark.parametrize(
    ("codes", "problem"),
    [
        ({"plan": 70, "serve": 70}, "exit codes {'plan': 70, 'serve': 70}"),
        ({"plan": 0, "serve": 3}, "plan and serve do not agree: {'plan': 0, 'serve': 3}"),
        ({"plan": 0, "serve": 0, "listen": 2}, None),
        ({"plan": 4, "serve": 4}, None),
    ],
)
def test_error_codes_must_be_known_and_equal(
    monkeypatch: pytest.MonkeyPatch, codes: dict[str, int], problem: str | None
) -> None:
    assert outcomes(monkeypatch, lambda *_: codes)[1].problem == problem


def test_most_cases_of_a_kind_differ() -> None:
    made = {targets.gguf_cases.make_case(random.Random(number)) for number in range(50)}
    assert len(made) > 40

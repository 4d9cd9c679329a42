"""`make test` runs its parts in order, some alongside others, and reports the time of each. The parts are stand-ins."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from devkit.workers import STARTS_FIRST

ROOT = Path(__file__).parents[2]
PARTS = [
    *("setup", "browser", "prometheus", "cluster-binaries", "test-clusters"),
    *("test-cpp", "test-older-cpus", "test-python"),
]
STARTED = "@echo {part} >> started; echo output of {part}"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the script and a Makefile whose parts do nothing and succeed."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/test.sh", tmp_path / "tools")
    write(tmp_path)
    return tmp_path


def write(clone: Path, **commands: str) -> None:
    """Write a Makefile; `commands`: by part with underscores, its command after it has recorded its start."""
    rules = [
        f"{part}:\n\t{STARTED.format(part=part)}; {commands.get(part.replace('-', '_'), 'true')}\n" for part in PARTS
    ]
    (clone / "Makefile").write_text(f".PHONY: {' '.join(PARTS)}\n{''.join(rules)}")


def run(clone: Path) -> tuple[int, str]:
    """The exit status and all output."""
    ended = subprocess.run(
        [clone / "tools/test.sh"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False
    )
    return ended.returncode, ended.stdout


def started(clone: Path) -> list[str]:
    return (clone / "started").read_text().split()


def is_running(pid: str) -> bool:
    try:
        stat = Path("/proc", pid, "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def summary(output: str) -> dict[str, str]:
    """The summary of each part: its time, and how it ended unless it succeeded."""
    lines = output.partition("time of each part, min:s\n")[2].splitlines()
    found = [re.fullmatch(r" *(\d+:\d\d|-)  (\S+)( +\S.*)?", line) for line in lines]
    return {match[2]: " ".join([re.sub(r"\d", "0", match[1]), *(match[3] or "").split()]) for match in found if match}


def test_every_part_runs_and_its_time_is_shown(clone: Path) -> None:
    status, output = run(clone)
    assert status == 0, output
    assert sorted(started(clone)) == sorted(PARTS)
    assert summary(output) == dict.fromkeys([*PARTS, "total"], "0:00")
    assert "output of test-python" in output
    assert "output of cluster-binaries" not in output, "a part that runs alongside shows its output only if it fails"


def test_builds_for_clusters_run_alongside_the_cpp_tests_and_end_before_the_python_tests(clone: Path) -> None:
    until = "until [ -e {file} ]; do sleep 0.05; done"
    write(
        clone,
        cluster_binaries=f"{until.format(file='cpp')}; touch binaries",
        test_cpp=f"touch cpp; {until.format(file='downloaded')}",
        prometheus="touch downloaded",
        test_python="test -e binaries",
    )
    status, output = run(clone)
    assert status == 0, output


def test_cluster_tests_run_alongside_the_others_once_their_requirements_are_met(clone: Path) -> None:
    until = "until [ -e {file} ]; do sleep 0.05; done"
    write(
        clone,
        prometheus="sleep 0.3; touch downloaded",
        cluster_binaries="sleep 0.3; touch binaries",
        test_clusters="test -e downloaded && test -e binaries && touch clusters",
        test_cpp=until.format(file="clusters"),
    )
    status, output = run(clone)
    assert status == 0, output
    assert output.count("output of test-clusters") == 1


def test_a_failure_of_tests_on_clusters_fails_the_run_after_all_others(clone: Path) -> None:
    write(clone, test_clusters="exit 3")
    status, output = run(clone)
    assert status == 1
    assert "make test: output of test-clusters:\noutput of test-clusters\n" in output
    assert summary(output)["test-clusters"] == "0:00 failed"
    assert summary(output)["test-python"] == "0:00"


@pytest.mark.parametrize("part", ["browser", "cluster-binaries"])
def test_a_failure_of_a_concurrent_part_is_shown_and_ends_the_run(clone: Path, part: str) -> None:
    write(clone, **{part.replace("-", "_"): "echo no network; exit 3"})
    status, output = run(clone)
    assert status == 1
    assert f"make test: output of {part}:\noutput of {part}\nno network\n" in output
    assert summary(output)[part] == "0:00 failed"
    assert summary(output)["test-python"] == "- did not finish"
    assert "test-python" not in started(clone)


def test_a_failure_of_the_cpp_tests_ends_the_concurrent_parts(clone: Path) -> None:
    until = "until [ -s pid ]; do sleep 0.05; done"
    write(clone, cluster_binaries="echo $$$$ > pid; sleep 600", test_cpp=f"{until}; exit 1")
    status, output = run(clone)
    assert status == 2, "of make"
    assert not is_running((clone / "pid").read_text().strip())
    assert summary(output)["test-cpp"] == "0:00 failed"
    assert summary(output)["cluster-binaries"] == "- did not finish"


def test_a_signal_to_the_script_also_ends_the_running_part(clone: Path) -> None:
    write(clone, test_python="echo $$$$ > pid; sleep 600")
    with subprocess.Popen([clone / "tools/test.sh"], stdout=subprocess.PIPE, text=True) as script:
        while not ((clone / "pid").exists() and (clone / "pid").read_text().strip()):
            assert script.poll() is None
            time.sleep(0.05)
        script.terminate()
        output, _ = script.communicate(timeout=30)
    assert not is_running((clone / "pid").read_text().strip())
    assert summary(output)["test-python"] == "- did not finish"


@pytest.mark.parametrize("script", ["browser.sh", "prometheus.sh", "older-cpus.sh", "cluster-binaries.sh"])
def test_time_limited_commands_stay_in_the_parts_process_group(script: str) -> None:
    """Outside of it, the command would outlive the run."""
    assert not re.search(r"\btimeout +\d", (ROOT / "tools" / script).read_text())


def test_the_makefile_has_all_parts() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{part}:", makefile, re.MULTILINE) for part in PARTS)


def test_the_file_that_starts_first_exists() -> None:
    assert (ROOT / STARTS_FIRST).is_file()

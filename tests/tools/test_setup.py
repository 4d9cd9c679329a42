"""What `make setup` installs, and when it repeats that. Python and uv are replaced by programs that record calls."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDER = """#!/bin/sh
case "$*" in *purelib*) echo "$PWD/.venv" ;; esac
echo "$(basename "$0") $*" >> "$PWD/calls"
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the files that the script reads, and an existing environment."""
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/setup.sh", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in ("csrc", "runtime", "operator"):
        (tmp_path / folder).mkdir()
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    for name in ("python", "uv"):
        (programs / name).write_text(RECORDER)
        (programs / name).chmod(0o755)
    return tmp_path


def calls(clone: Path, gpus: Path) -> str:
    """The calls of Python and uv that a run of the script makes, one per line."""
    (clone / "calls").write_text("")
    environment = {**os.environ, "NVIDIA_GPUS": str(gpus)}
    subprocess.run([clone / "tools/setup.sh"], env=environment, check=True, capture_output=True, timeout=60)
    return (clone / "calls").read_text()


def synced(clone: Path, gpus: Path) -> list[str]:
    """The files of requirements that a run of the script installs; none if they are installed already."""
    return re.findall(r"requirements/(dev\S*)", calls(clone, gpus))


def is_package_installed(clone: Path) -> bool:
    """Whether a run of the script installs Ballast itself."""
    return " -e ." in calls(clone, clone / "no-gpus")


def test_flashinfer_is_installed_with_a_gpu_only(clone: Path) -> None:
    gpus = clone / "gpus"
    assert synced(clone, gpus) == ["dev.txt"]
    assert synced(clone, gpus) == [], "nothing changed"
    (gpus / "0000:41:00.0").mkdir(parents=True)
    assert synced(clone, gpus) == ["dev-cuda.txt"], "a GPU was added"
    assert synced(clone, gpus) == []


def test_the_package_is_installed_again_after_a_python_file_has_moved(clone: Path) -> None:
    module = clone / "runtime/module.py"
    module.touch()
    assert is_package_installed(clone)
    module.write_text("# The environment links to this file, so that a change needs no installation.\n")
    assert not is_package_installed(clone)
    module.rename(clone / "operator/module.py")
    assert is_package_installed(clone)


def test_the_gpu_packages_are_the_cpu_packages_and_flashinfer() -> None:
    pins = re.compile(r"^([\w.-]+==\S+)", re.MULTILINE)
    plain, cuda = (set(pins.findall((ROOT / f"requirements/dev{name}.txt").read_text())) for name in ("", "-cuda"))
    assert plain < cuda
    assert any(pin.startswith("flashinfer-python==") for pin in cuda - plain)


def test_the_package_is_built_again_with_other_options(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_package_installed(clone)
    assert not is_package_installed(clone)
    monkeypatch.setenv("SKBUILD_CMAKE_DEFINE", "CMAKE_CXX_FLAGS=-g")  # CI has another value
    assert is_package_installed(clone)
    assert not is_package_installed(clone)

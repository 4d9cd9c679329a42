"""`make setup` installs flashinfer if the machine has an NVIDIA GPU. Python and uv of the environment are recorders."""

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
    """A folder with what the script reads, and an environment that exists already."""
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/setup.sh", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "csrc").mkdir()
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    for name in ("python", "uv"):
        (programs / name).write_text(RECORDER)
        (programs / name).chmod(0o755)
    return tmp_path


def synced(clone: Path, gpus: Path) -> list[str]:
    """The files of requirements that a run of the script installs; none if they are installed already."""
    (clone / "calls").write_text("")
    environment = {**os.environ, "NVIDIA_GPUS": str(gpus)}
    subprocess.run([clone / "tools/setup.sh"], env=environment, check=True, capture_output=True, timeout=60)
    return re.findall(r"requirements/(dev\S*)", (clone / "calls").read_text())


def test_flashinfer_is_installed_with_a_gpu_only(clone: Path) -> None:
    gpus = clone / "gpus"
    assert synced(clone, gpus) == ["dev.txt"]
    assert synced(clone, gpus) == [], "nothing changed"
    (gpus / "0000:41:00.0").mkdir(parents=True)
    assert synced(clone, gpus) == ["dev-cuda.txt"], "a GPU was added"
    assert synced(clone, gpus) == []


def test_the_packages_for_a_gpu_are_the_others_and_flashinfer() -> None:
    pins = re.compile(r"^([\w.-]+==\S+)", re.MULTILINE)
    plain, cuda = (set(pins.findall((ROOT / f"requirements/dev{name}.txt").read_text())) for name in ("", "-cuda"))
    assert plain < cuda
    assert any(pin.startswith("flashinfer-python==") for pin in cuda - plain)

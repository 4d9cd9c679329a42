"""The folder of compiled kernels: kept between starts, and private to its user."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from ballast.host.startup.kernel_cache import (
    keep_compiled_kernels_in,
    keep_machine_code_only,
    measurements_folder,
)

VARIABLE = "BALLAST_TEST_KERNELS"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    return tmp_path


def test_the_next_start_finds_the_same_folder() -> None:
    keep_compiled_kernels_in(VARIABLE)
    first = Path(os.environ.pop(VARIABLE))
    assert first.stat().st_mode & 0o777 == 0o700
    keep_compiled_kernels_in(VARIABLE)
    assert os.environ[VARIABLE] == str(first)


def test_a_folder_that_others_can_write_to_is_not_used(temporary: Path) -> None:
    theirs = temporary / f"ballast-kernels-{os.getuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)
    keep_compiled_kernels_in(VARIABLE)
    assert os.environ[VARIABLE] != str(theirs)


def test_a_link_is_not_followed(temporary: Path) -> None:
    (temporary / "elsewhere").mkdir(mode=0o700)
    (temporary / f"ballast-kernels-{os.getuid()}").symlink_to("elsewhere")
    keep_compiled_kernels_in(VARIABLE)
    assert Path(os.environ[VARIABLE]).resolve() != temporary / "elsewhere"


def test_the_environment_overrides_the_folder(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(temporary / "volume/triton"))
    keep_compiled_kernels_in(VARIABLE)
    assert os.environ[VARIABLE] == str(temporary / "volume/triton")


def test_a_read_only_volume_does_not_prevent_the_start(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (temporary / "volume").touch()
    monkeypatch.setenv(VARIABLE, str(temporary / "volume/triton"))
    keep_compiled_kernels_in(VARIABLE)
    assert Path(os.environ[VARIABLE]).is_dir()
    (record,) = caplog.records
    assert vars(record)["requested"] == str(temporary / "volume/triton")
    assert vars(record)["reason"] == "Not a directory"


def test_one_volume_keeps_compiled_kernels_and_measurements(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(temporary / "volume"))
    assert measurements_folder() == temporary / "volume/measurements"


def test_triton_keeps_machine_code_only_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_STORE_BINARY_ONLY", "0")
    keep_machine_code_only()
    assert os.environ["TRITON_STORE_BINARY_ONLY"] == "0"
    monkeypatch.delenv("TRITON_STORE_BINARY_ONLY")
    keep_machine_code_only()
    assert os.environ["TRITON_STORE_BINARY_ONLY"] == "1"

"""The CUDA compiler that flashinfer uses: the machine's, or the one among the Python packages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ballast.host import nvcc

HOME = "nvidia/cu13"


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without CUDA and ninja."""
    for name in ("CUDA_HOME", "CUDA_PATH", "FLASHINFER_EXTRA_LDFLAGS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nvcc, "USUAL_HOME", tmp_path / "cuda")
    monkeypatch.setattr(nvcc, "_DISTRIBUTION", "made-up-nvcc")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packages that the extra `cuda` installs."""
    site = tmp_path / "site"
    files = (f"{HOME}/bin/nvcc", f"{HOME}/lib/libcudart.so.13", "made_up_nvcc-13.dist-info/METADATA")
    for name in files:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("Metadata-Version: 2.4\nName: made-up-nvcc\nVersion: 13\n")
    (site / "made_up_nvcc-13.dist-info/RECORD").write_text("".join(f"{name},,\n" for name in (files[0], files[2])))
    monkeypatch.syspath_prepend(site)
    return site


def with_nvcc(home: Path) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin/nvcc").touch(mode=0o755)
    return home


def test_the_packages_compiler_is_found_and_can_link(packages: Path, tmp_path: Path) -> None:
    assert nvcc.has_nvcc()
    for driver in ("libcuda.so.580", "libcuda.so.590"):
        nvcc.use_packaged_tools(tmp_path / "kept/link", tmp_path / driver)
        assert os.environ.pop("CUDA_HOME") == str(packages / HOME)
        assert os.environ.pop("FLASHINFER_EXTRA_LDFLAGS") == f"-L{tmp_path}/kept/link"
        targets = {path.name: path.readlink() for path in (tmp_path / "kept/link").iterdir()}
        assert targets == {"libcudart.so": packages / HOME / "lib/libcudart.so.13", "libcuda.so": tmp_path / driver}


def test_the_machines_toolkit_takes_precedence(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_nvcc(tmp_path / "cuda")
    nvcc.use_packaged_tools(tmp_path / "link", tmp_path / "libcuda.so.1")
    assert "CUDA_HOME" not in os.environ
    monkeypatch.setenv("PATH", str(with_nvcc(tmp_path / "other") / "bin"))
    nvcc.use_packaged_tools(tmp_path / "link", tmp_path / "libcuda.so.1")
    assert "CUDA_HOME" not in os.environ
    assert not (tmp_path / "link").exists()


def test_only_the_given_toolkit_is_used(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flashinfer uses the name unchanged, so it would not use another compiler."""
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "named"))
    assert not nvcc.has_nvcc()
    nvcc.use_packaged_tools(tmp_path / "link", tmp_path / "libcuda.so.1")
    assert os.environ["CUDA_HOME"] == str(tmp_path / "named")
    with_nvcc(tmp_path / "named")
    assert nvcc.has_nvcc()


def test_without_the_extra_there_is_no_toolkit(tmp_path: Path) -> None:
    assert nvcc.packaged_home() is None
    assert not nvcc.has_nvcc()
    nvcc.use_packaged_tools(tmp_path / "link", tmp_path / "libcuda.so.1")
    assert "CUDA_HOME" not in os.environ


def test_ninja_is_found_next_to_this_python() -> None:
    """flashinfer requires it, and an environment's programs may not be in PATH."""
    assert nvcc.has_ninja()
    nvcc.use_packaged_tools(Path("unused"), Path("unused"))
    assert os.environ["PATH"].split(os.pathsep)[1:] == [str(Path(sys.executable).parent)]

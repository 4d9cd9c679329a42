"""Every file states the version of runtime/ballast/version.py."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import ballast
import ballast_operator.version
from tools.release.version import SOURCE, VersionError, bump, statements, version_of

ROOT = Path(__file__).resolve().parents[3]
VERSION = version_of(ROOT)


def test_runtime_and_operator_have_the_version() -> None:
    assert {ballast.__version__, ballast_operator.version.__version__} == {VERSION}


def test_every_file_that_states_a_version_states_this_one() -> None:
    found = list(statements(ROOT))
    assert [each for each in found if not each.agrees_with(VERSION)] == []
    stated_in = {each.path for each in found}
    assert stated_in >= {
        *(SOURCE, "operator/ballast_operator/version.py", "charts/ballast/Chart.yaml", "charts/ballast/README.md"),
        *("README.md", "SECURITY.md", "docs/install.md", "docs/reference/chart.md", "docs/reference/operator.md"),
        *("manifests/operator/operator.yaml", "tests/operator/golden/tiny-cpu.yaml"),
    }


def test_no_other_file_names_an_image_with_a_version() -> None:
    stated_in = {ROOT / each.path for each in statements(ROOT)}
    folders = ("runtime", "operator", "tools", "tests/chart", "tests/cluster", "tests/e2e", ".github")
    others = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".sh", ".yml")
    ]
    image = re.compile(r"ballast-(?:runtime|operator):\d+\.\d+\.\d+")
    assert [path for path in others if path not in stated_in and image.search(path.read_text())] == []


def test_a_bump_changes_every_version_statement_and_nothing_else(tmp_path: Path) -> None:
    copied = sorted({each.path for each in statements(ROOT)})
    for name in copied:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    assert bump(tmp_path, "7.8.9") == copied
    assert version_of(tmp_path) == "7.8.9"
    assert {each.version for each in statements(tmp_path)} == {"7.8.9", "7.8"}
    assert bump(tmp_path, VERSION) == copied
    assert all((tmp_path / name).read_bytes() == (ROOT / name).read_bytes() for name in copied)


@pytest.mark.parametrize("version", ["1.2", "v1.2.3", "1.2.3rc1"])
def test_a_version_of_another_form_is_rejected(tmp_path: Path, version: str) -> None:
    with pytest.raises(VersionError, match=f"version {re.escape(version)}: not of the form"):
        bump(tmp_path, version)


def test_no_text_suggests_the_package_index_before_the_package_is_published() -> None:
    folders = ("runtime", "operator", "docs", "charts", "manifests", "examples", "csrc")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".yaml")
    ]
    suggested = re.compile(r"pip install[^\n]*['\" ]ballast-serve")
    found = [path for path in [*files, ROOT / "README.md"] if suggested.search(path.read_text())]
    assert found == []

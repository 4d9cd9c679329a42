"""The documented layout matches the actual layout, and paths in pages for developers exist."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from devkit.layers import drawn_layers

ROOT = Path(__file__).parents[2]
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")

DRAWN = {"runtime/ballast": 2, "operator/ballast_operator": 2, "csrc": 2, "tests": 1}
"""Folders that the map shows with their content, and the depth."""

PACKAGES = ("", "runtime/ballast/", "operator/ballast_operator/", "csrc/")
"""Folders that paths may be relative to."""
MADE = (".venv/", "build/")
"""Folders that commands create, not part of the repository."""
SUFFIXES = {".py", ".pyi", ".cpp", ".h", ".sh", ".md", ".yaml", ".yml", ".toml", ".txt", ".json", ".jsonl", ".jinja"}

CODE = re.compile(r"^ *```\n(.*?)^ *```|`([^`]+)`", re.DOTALL | re.MULTILINE)
PATH = re.compile(r"[\w.*][\w.*/-]*(?:::\w+)?")
DRAWING_LINE = re.compile(r"^( *)(\S+)/  ")


@pytest.fixture(scope="module")
def tracked() -> frozenset[str]:
    """Files of the repository, and all folders above them with a trailing slash."""
    listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    files = {name for name in names if (ROOT / name).exists()}
    return frozenset(files | {f"{folder}/" for name in files for folder in PurePosixPath(name).parents} - {"./"})


def drawn_folders() -> list[str]:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    drawing = re.search(r"^## Layout\n\n```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert drawing is not None
    above: dict[int, str] = {}
    folders = []
    for line in drawing[1].splitlines():
        found = DRAWING_LINE.match(line)
        assert found is not None, line
        indent = len(found[1])
        above[indent] = above[indent - 2] + found[2] + "/" if indent else found[2] + "/"
        folders.append(above[indent])
    return folders


def test_the_documented_layout_lists_every_folder(tracked: frozenset[str]) -> None:
    drawn = drawn_folders()
    assert len(drawn) == len(set(drawn))
    assert set(drawn) <= tracked
    for top, depth in DRAWN.items():
        below = {name for name in tracked if name.startswith(f"{top}/") and name.endswith("/")}
        assert {name for name in below if name.count("/") <= f"{top}/".count("/") + depth} <= set(drawn)
    shown = {name.split("/")[0] for name in drawn}
    assert {name for name in tracked if name.count("/") == 1 and name.endswith("/") and name[0] != "."} == {
        f"{name}/" for name in shown
    }


def test_the_documented_layers_match_import_linters() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    checked = {
        container: [[layer.split(" | ") for layer in contract["layers"]]]
        for contract in settings["contracts"]
        if contract["type"] == "layers"
        for container in contract["containers"]
        if contract["exhaustive"]
    }
    drawn = drawn_layers()
    del drawn["csrc"]  # test_include_layers.py
    assert drawn == checked


def named_paths(page: str) -> Iterator[str]:
    """Every path in code on the page: a word with an inner slash or a file name suffix."""
    for match in CODE.finditer((ROOT / page).read_text(encoding="utf-8")):
        for word in re.split(r"[\s,;()=]+", match[1] or match[2]):
            path = word.rstrip(":.")
            is_path = "/" in path.rstrip("/") or PurePosixPath(path.partition("::")[0]).suffix in SUFFIXES
            if is_path and PATH.fullmatch(path) and not path.startswith(MADE):
                yield path


def is_there(path: str, tracked: frozenset[str]) -> bool:
    if "/" not in path:
        return any(name == path or name.endswith(f"/{path}") for name in tracked)
    if "*" in path:
        return any(any(ROOT.glob(package + path)) for package in PACKAGES)
    return any(package + path in tracked or f"{package}{path}/" in tracked for package in PACKAGES)


@pytest.mark.parametrize("page", PAGES)
def test_paths_lead_somewhere(page: str, tracked: frozenset[str]) -> None:
    paths = list(named_paths(page))
    assert len(paths) > 50
    for path in paths:
        file, _, function = path.partition("::")
        assert is_there(file, tracked), f"{page}: {path}"
        if function:
            assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), path

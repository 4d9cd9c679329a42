"""Folders of csrc include each other only in the direction that docs/architecture.md shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from devkit.layers import drawn_layers

CSRC = Path(__file__).parents[2] / "csrc"
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

Chains = list[list[list[str]]]


def below(chains: Chains) -> dict[str, set[str]]:
    """For each folder, the folders that it may include: those to its right, also in other chains."""
    direct: dict[str, set[str]] = {}
    for chain in chains:
        for at, layer in enumerate(chain):
            for folder in layer:
                direct.setdefault(folder, set()).update(right for lower in chain[at + 1 :] for right in lower)
    for _ in direct:
        for folder, lower in direct.items():
            direct[folder] = lower.union(*(direct[right] for right in lower))
    return direct


def upward_includes(sources: Path, chains: Chains) -> Iterator[str]:
    """Every include from a folder that is not below, as "file includes file"."""
    allowed = below(chains)
    for path in sorted(sources.rglob("*")):
        if path.suffix in (".h", ".cpp"):
            name = path.relative_to(sources)
            for included in INCLUDE.findall(path.read_text(encoding="utf-8")):
                folder = str(PurePosixPath(included).parent)
                if folder != str(name.parent) and folder not in allowed[str(name.parent)]:
                    yield f"{name} includes {included}"


def test_folders_include_only_lower_layers() -> None:
    chains = drawn_layers()["csrc"]
    folders = {str(path.parent.relative_to(CSRC)) for path in CSRC.rglob("*.h")}
    assert set(below(chains)) == folders, "docs/architecture.md must show every folder"
    assert not [folder for folder, lower in below(chains).items() if folder in lower]
    assert list(upward_includes(CSRC, chains)) == []


@pytest.mark.parametrize(
    ("included", "found"),
    [("a/a.h", []), ("c/c.h", []), ("b/other.h", []), ("x/x.h", ["b/b.cpp includes x/x.h"]), ("top/t.h", [])],
)
def test_an_include_of_a_higher_layer_is_found(tmp_path: Path, included: str, found: list[str]) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/b.cpp").write_text(f'#include <vector>\n#include "{included}"\n')
    chains = [[["b"], ["a"], ["c"]], [["x"], ["a"]], [["a"], ["top"]]]
    assert list(upward_includes(tmp_path, chains)) == found

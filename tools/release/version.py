"""The version of the project, and every file that states it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = "runtime/ballast/version.py"
"""The one place where the version is changed; `python -m tools.release bump VERSION` changes it and what follows."""
_FULL = r"(\d+\.\d+\.\d+)"
_ASSIGNED = rf'^__version__ = "{_FULL}"$'
_CHART_PAGE = rf"Version {_FULL}, for Kubernetes"
_STATED_IN = (
    (_ASSIGNED, (SOURCE, "operator/ballast_operator/version.py")),
    (rf"^(?:appV|v)ersion: {_FULL}$", ("charts/ballast/Chart.yaml",)),
    (_CHART_PAGE, ("charts/ballast/README.md", "docs/reference/chart.md")),
    (rf"\*\*Status:\*\* version {_FULL}", ("README.md",)),
    (r"The newest version, (\d+\.\d+) today", ("SECURITY.md",)),
    (
        rf"\bballast-(?:runtime|operator):{_FULL}",
        ("README.md", "charts", "docs", "examples", "manifests", "tests/operator/golden"),
    ),
)
"""Pattern of a statement, and the files and folders that have it."""
_SUFFIXES = {".md", ".py", ".yaml", ".yml"}


class VersionError(ValueError):
    """A version is missing or not of the form MAJOR.MINOR.PATCH."""


@dataclass(frozen=True)
class Statement:
    """One place in a file that states a version."""

    path: str
    line: int
    version: str
    """As written: with or without the patch number."""

    def agrees_with(self, version: str) -> bool:
        return self.version == _as_long_as(self.version, version)


def version_of(root: Path) -> str:
    """The version that the project's source states."""
    found = re.search(_ASSIGNED, (root / SOURCE).read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise VersionError(f'{SOURCE}: no line `__version__ = "MAJOR.MINOR.PATCH"`')
    return found[1]


def statements(root: Path) -> Iterator[Statement]:
    """Every statement of a version in the project's files."""
    for pattern, places in _STATED_IN:
        for path in _files(root, places):
            text = path.read_text(encoding="utf-8")
            for found in re.finditer(pattern, text, re.MULTILINE):
                line = text.count("\n", 0, found.start()) + 1
                yield Statement(path.relative_to(root).as_posix(), line, found[1])


def bump(root: Path, version: str) -> list[str]:
    """Write `version` wherever a version is stated. Returns the names of the changed files."""
    if not re.fullmatch(_FULL, version):
        raise VersionError(f"version {version}: not of the form MAJOR.MINOR.PATCH, such as 0.3.0")
    changed = set()
    for pattern, places in _STATED_IN:
        for path in _files(root, places):
            old = path.read_text(encoding="utf-8")
            new = re.sub(pattern, lambda found: _replaced(found, version), old, flags=re.MULTILINE)
            if new != old:
                path.write_text(new, encoding="utf-8")
                changed.add(path.relative_to(root).as_posix())
    return sorted(changed)


def _replaced(found: re.Match[str], version: str) -> str:
    start, end = found.start(1) - found.start(), found.end(1) - found.start()
    return found[0][:start] + _as_long_as(found[1], version) + found[0][end:]


def _as_long_as(stated: str, version: str) -> str:
    return ".".join(version.split(".")[: stated.count(".") + 1])


def _files(root: Path, places: tuple[str, ...]) -> Iterator[Path]:
    for place in places:
        path = root / place
        if path.is_file():
            yield path
        for each in sorted(path.rglob("*")):
            is_link = each.is_symlink()
            if each.suffix in _SUFFIXES and not is_link and "decisions" not in each.parts:
                yield each

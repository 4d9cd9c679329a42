"""The commit that is released, and what must hold for it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.release import notes
from tools.release.version import statements, version_of

_SHOWN = 5
"""Changed files that a message lists."""


@dataclass(frozen=True)
class Source:
    """The commit of a release."""

    root: Path
    version: str
    commit: str
    epoch: int
    """Seconds since 1970 of the commit: the time that artifacts have."""

    @property
    def folder(self) -> Path:
        return self.root / "build" / "release" / self.version


def source_of(root: Path) -> Source:
    """The commit that is checked out in `root`."""
    commit, epoch = _git(root, "log", "-1", "--format=%H %ct").split()
    return Source(root, version_of(root), commit, int(epoch))


def problems(source: Source) -> list[str]:
    """Reasons why this commit cannot be released, as sentences; empty if there are none."""
    changelog = (source.root / "CHANGELOG.md").read_text(encoding="utf-8")
    return [
        *_uncommitted(source.root),
        *_disagreements(source),
        *notes.problems(changelog, source.version),
        *_wrong_tags(source),
    ]


def _uncommitted(root: Path) -> list[str]:
    changed = [line[3:] for line in _git(root, "status", "--porcelain").splitlines()]
    if not changed:
        return []
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return [f"the working tree has uncommitted changes: {', '.join(changed[:_SHOWN])}{more}; commit or remove them"]


def _disagreements(source: Source) -> list[str]:
    return [
        f"{each.path}, line {each.line}: states version {each.version}, but the version is {source.version}; "
        f"run: python -m tools.release bump {source.version}"
        for each in statements(source.root)
        if not each.agrees_with(source.version)
    ]


def _wrong_tags(source: Source) -> list[str]:
    own = f"v{source.version}"
    here = _git(source.root, "tag", "--points-at", "HEAD", "--list", "v*").split()
    if own in here:
        return []
    if here:
        return [f"the commit has the tag {here[0]}, but its version is {source.version}; remove the tag or bump"]
    if _git(source.root, "tag", "--list", own).strip():
        return [f"version {source.version} is released: tag {own} is on another commit; raise the version"]
    return []


def _git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

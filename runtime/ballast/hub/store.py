"""The folder of downloaded models, in the layout of huggingface_hub's cache, which Hugging Face's tools can read.

`models--org--repo` contains `blobs` named by checksum, `snapshots/COMMIT` with links to them, and `refs` from a
revision to its commit. A blob gets its name once its checksum is verified; until then, its name ends in `.incomplete`.

On a file system without symbolic links, a snapshot contains the files themselves, as with huggingface_hub.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ballast.errors import ModelError, shown
from ballast.hub.naming import HUGGING_FACE, HubFile, repo_folder

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""A git commit, or the digest of an artifact."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems without symbolic links, such as exFAT, SMB and Azure Files."""


@dataclass(frozen=True, slots=True)
class Store:
    """The part of the cache `folder` for one repository."""

    folder: Path
    repo: str
    site: str = HUGGING_FACE

    @property
    def path(self) -> Path:
        """The repository's folder."""
        return self.folder / repo_folder(self.site, self.repo)

    @property
    def lock(self) -> Path:
        """The lock that is held during a download."""
        return self.folder / ".locks" / self.path.name / "ballast.lock"

    def blob(self, file: HubFile) -> Path:
        """The path of a file's bytes."""
        return self.path / "blobs" / file.content

    def snapshot(self, commit: str) -> Path:
        """The folder of one commit. Raises ModelError for an invalid commit."""
        if not _COMMIT.fullmatch(commit):
            raise ModelError(
                self.repo, f"the hub reports the commit {shown(commit)}; expected 40 or 64 hexadecimal digits"
            )
        return self.path / "snapshots" / commit

    def has(self, commit: str, file: HubFile) -> bool:
        """Whether a file of the commit is complete."""
        return self._has_itself(commit, file) or self.blob(file).exists()

    def _has_itself(self, commit: str, file: HubFile) -> bool:
        """Whether the commit's snapshot has the file itself, not a link."""
        path = self.snapshot(commit) / file.path
        return not path.is_symlink() and path.is_file() and path.stat().st_size == file.num_bytes

    def add(self, commit: str, files: Sequence[HubFile]) -> None:
        """Add downloaded files to the commit's snapshot, under their names. Files that it already contains are not
        written, because the store may be read-only."""
        for index, file in enumerate(files):
            link = self.snapshot(commit) / file.path
            target = os.path.relpath(self.blob(file), link.parent)
            if self._has_itself(commit, file) or (link.is_symlink() and os.readlink(link) == target):  # noqa: PTH115  as it was written
                continue
            link.parent.mkdir(parents=True, exist_ok=True)
            fresh = link.with_name(f".{file.content[:16]}.{os.getpid()}")
            try:
                fresh.symlink_to(target)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if any(other.content == file.content for other in files[index + 1 :]):
                    shutil.copyfile(self.blob(file), fresh)
                else:
                    self.blob(file).replace(fresh)
            fresh.replace(link)

    def remember(self, revision: str, commit: str) -> None:
        """Record the commit of a revision. Nothing is written if it is unchanged, because the store may be
        read-only."""
        if revision != commit and self.remembered(revision) != commit:
            ref = self.path / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            fresh = ref.with_name(f".{ref.name}.{os.getpid()}")
            fresh.write_text(commit, encoding="ascii")
            fresh.replace(ref)

    def remembered(self, revision: str) -> str | None:
        """The commit of a revision when it was last resolved."""
        if _COMMIT.fullmatch(revision):
            return revision
        try:
            commit = (self.path / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return commit if _COMMIT.fullmatch(commit) else None

    def older_than(self, commit: str) -> tuple[str, ...]:
        """The other commits with downloaded files, the most recently written first."""
        try:
            folders = [each for each in self.snapshot(commit).parent.iterdir() if _COMMIT.fullmatch(each.name)]
        except OSError:
            return ()
        others = (each for each in folders if each.name != commit and each.is_dir())
        return tuple(each.name for each in sorted(others, key=lambda each: each.stat().st_mtime, reverse=True))

    def files(self, commit: str) -> tuple[HubFile, ...]:
        """The complete files of a commit. The checksum of a file that is not a link is unknown."""
        folder = self.snapshot(commit)
        return tuple(
            HubFile(
                str(path.relative_to(folder)), path.stat().st_size, path.resolve().name if path.is_symlink() else ""
            )
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        )

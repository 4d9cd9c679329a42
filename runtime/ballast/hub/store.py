"""The folder of fetched models, in the layout of huggingface_hub's cache, so that its tools know them as well.

`models--org--repo` holds `blobs` by their checksums, `snapshots/COMMIT` of links to them, and `refs` from a revision to
its commit. A blob has its name only once its checksum was right; before, its name ends in `.incomplete`.

On a file system without symbolic links a snapshot holds the files themselves, as those of huggingface_hub do there.
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
"""Of git, or the digest of an artifact."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""How file systems without symbolic links refuse to make one: exFAT, SMB and Azure Files among them."""


@dataclass(frozen=True, slots=True)
class Store:
    """The part of the cache `folder` that holds one repository."""

    folder: Path
    repo: str
    site: str = HUGGING_FACE

    @property
    def path(self) -> Path:
        """Where the repository lies."""
        return self.folder / repo_folder(self.site, self.repo)

    @property
    def lock(self) -> Path:
        """Held while files are fetched."""
        return self.folder / ".locks" / self.path.name / "ballast.lock"

    def blob(self, file: HubFile) -> Path:
        """Where the bytes of a file lie."""
        return self.path / "blobs" / file.content

    def snapshot(self, commit: str) -> Path:
        """The folder of one commit. Raises ModelError where it is none."""
        if not _COMMIT.fullmatch(commit):
            raise ModelError(
                self.repo, f"the hub names the commit {shown(commit)}; expected 40 or 64 hexadecimal digits"
            )
        return self.path / "snapshots" / commit

    def has(self, commit: str, file: HubFile) -> bool:
        """Whether all of a file of the commit is here."""
        return self._has_itself(commit, file) or self.blob(file).exists()

    def _has_itself(self, commit: str, file: HubFile) -> bool:
        """Whether the commit's snapshot holds the file and not a link to it."""
        path = self.snapshot(commit) / file.path
        return not path.is_symlink() and path.is_file() and path.stat().st_size == file.num_bytes

    def add(self, commit: str, files: Sequence[HubFile]) -> None:
        """Add files that are here to the commit's snapshot, under their names. Nothing is written for those that are
        in it: the store may be read-only."""
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
        """Write down which commit a revision is. Nothing is written where that is known: the store may be read-only."""
        if revision != commit and self.remembered(revision) != commit:
            ref = self.path / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            fresh = ref.with_name(f".{ref.name}.{os.getpid()}")
            fresh.write_text(commit, encoding="ascii")
            fresh.replace(ref)

    def remembered(self, revision: str) -> str | None:
        """The commit that a revision was when it was last asked for."""
        if _COMMIT.fullmatch(revision):
            return revision
        try:
            commit = (self.path / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return commit if _COMMIT.fullmatch(commit) else None

    def older_than(self, commit: str) -> tuple[str, ...]:
        """The other commits of which something is here, those first that were written to last."""
        try:
            folders = [each for each in self.snapshot(commit).parent.iterdir() if _COMMIT.fullmatch(each.name)]
        except OSError:
            return ()
        others = (each for each in folders if each.name != commit and each.is_dir())
        return tuple(each.name for each in sorted(others, key=lambda each: each.stat().st_mtime, reverse=True))

    def files(self, commit: str) -> tuple[HubFile, ...]:
        """The complete files of a commit. The checksum of a file that is no link is not known."""
        folder = self.snapshot(commit)
        return tuple(
            HubFile(
                str(path.relative_to(folder)), path.stat().st_size, path.resolve().name if path.is_symlink() else ""
            )
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        )

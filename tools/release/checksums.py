"""Checksums of a release, in the format of sha256sum."""

from __future__ import annotations

import hashlib
from pathlib import Path

NAME = "SHA256SUMS"


def write_checksums(folder: Path) -> None:
    """Write the checksum of each file in `folder`; `sha256sum -c SHA256SUMS` verifies them."""
    lines = [f"{_sha256(path)}  {path.name}\n" for path in artifacts(folder)]
    (folder / NAME).write_text("".join(lines), encoding="utf-8")


def artifacts(folder: Path) -> list[Path]:
    """The files of a release, without the checksums."""
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name != NAME)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

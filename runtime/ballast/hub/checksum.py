"""Verifies a file's bytes: the hub's checksum, and the digest of the received bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Checksum:
    """A checksum of a whole file, in lower-case hexadecimal digits."""

    kind: Literal["sha256", "git", "md5"]
    hexdigest: str


_KINDS: dict[int, Literal["sha256", "git", "md5"]] = {64: "sha256", 40: "git", 32: "md5"}


def checksum_of(content: str) -> Checksum | None:
    """The checksum in a file's `content`; None if `content` identifies the bytes but is not a checksum of them."""
    kind = _KINDS.get(len(content))
    return None if kind is None else Checksum(kind, content)


class Digest:
    """Compares a file's bytes with its checksum, if there is one."""

    def __init__(self, checksum: Checksum | None, num_bytes: int) -> None:
        self._checksum = checksum
        if checksum is None or checksum.kind == "sha256":
            self._hash = hashlib.sha256()
        elif checksum.kind == "md5":
            self._hash = hashlib.md5(usedforsecurity=False)
        else:  # of a git blob
            self._hash = hashlib.sha1(b"blob %d\0" % num_bytes, usedforsecurity=False)

    def update(self, chunk: bytes) -> None:
        """Add the next bytes."""
        if self._checksum is not None:
            self._hash.update(chunk)

    def matches(self) -> bool:
        """Whether the bytes match the checksum; always true without a checksum."""
        return self._checksum is None or self._hash.hexdigest() == self._checksum.hexdigest

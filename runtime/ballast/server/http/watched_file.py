"""A small file that may be replaced while the server runs, as Kubernetes does with a mounted Secret."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

Value = TypeVar("Value")
Fingerprint = tuple[int, int, int]

READ_TIMEOUT_S = 5.0
"""Longest wait for a hanging file system."""


class WatchedFile(Generic[Value]):
    """The content of a file, which is read again when the file changes.

    If the file vanishes or cannot be read, the last value stays valid, and the problem is logged once.
    `read` raises OSError or ValueError; so does the constructor, which reads the file for the first time.
    """

    def __init__(self, path: Path, read: Callable[[Path], Value], *, max_age_s: float) -> None:
        self._path = path
        self._read = read
        self._max_age_s = max_age_s
        self._fingerprint: Fingerprint | None = _fingerprint(path)
        self._value = read(path)
        self._problem = ""
        self._checked_at = time.monotonic()
        self._checking: asyncio.Task[None] | None = None

    async def value(self) -> Value:
        """The value. The file was checked at most `max_age_s` ago, unless the file system hangs."""
        if time.monotonic() - self._checked_at >= self._max_age_s:
            if self._checking is None or self._checking.done():
                self._checking = asyncio.create_task(asyncio.to_thread(self.refresh))
            await asyncio.wait({self._checking}, timeout=READ_TIMEOUT_S)
        return self._value

    def refresh(self) -> None:
        """Read the file if it has changed. Blocks."""
        extra = {"path": str(self._path)}
        try:
            fingerprint = _fingerprint(self._path)
            if fingerprint != self._fingerprint:
                self._value = self._read(self._path)
                self._fingerprint, self._problem = fingerprint, ""
                log.info("file read again", extra=extra)
        except (OSError, ValueError) as error:
            self._fingerprint = None  # try again: a related file may not be written yet
            if self._problem != str(error):
                self._problem = str(error)
                log.warning("file cannot be used; its last content stays valid", extra=extra | {"error": str(error)})
        finally:
            self._checked_at = time.monotonic()


def _fingerprint(path: Path) -> Fingerprint:
    # Follows links: a mounted Secret is replaced by changing a symbolic link.
    found = path.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size

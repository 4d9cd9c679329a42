"""Has the system read a model's tensors shortly before they are packed, while others are packed.

Threads that pack wait at the first byte that is not there yet, a few at a time: no disk is busy by that. The system
reads into its page cache, from which tensors are packed in place, so nothing is copied twice.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from ballast.weights.gguf import GgufModel

LEAD_BYTES = 512 << 20
"""How much beyond the tensor that is packed may be read: it takes page cache, and fast disks fill it in a moment."""
_PIECE_BYTES = 8 << 20
_LEAVE_S = 10.0
"""Longest wait at the end for a disk that does not answer."""


class ReadAhead(AbstractContextManager["ReadAhead"]):
    """Reads while it is entered, on a thread of its own. A hint: what it cannot read is read as it is packed."""

    def __init__(self, gguf: GgufModel, names: Iterable[str], lead_bytes: int = LEAD_BYTES) -> None:
        """`names`: the tensors that will be packed, in about this order."""
        self._pieces: list[tuple[Path, int, int, int]] = []
        """File, offset, bytes, and how many bytes come before in all."""
        self._ends: dict[str, int] = {}
        end = 0
        for name in names:
            info = gguf.tensors[name]
            for begin in range(0, info.num_bytes, _PIECE_BYTES):
                count = min(_PIECE_BYTES, info.num_bytes - begin)
                self._pieces.append((info.file, info.offset + begin, count, end + begin))
            end += info.num_bytes
            self._ends[name] = end
        self._lead_bytes = lead_bytes
        self._packed_to = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="ballast-read", daemon=True)

    def __enter__(self) -> ReadAhead:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join(_LEAVE_S)

    def begin(self, name: str) -> None:
        """Say that a tensor is packed now."""
        with self._changed:
            self._packed_to = max(self._packed_to, self._ends.get(name, 0))
            self._changed.notify()

    def _read(self) -> None:
        with _OpenFiles() as files:
            for file, offset, count, before in self._pieces:
                with self._changed:
                    while not self._is_over and before > self._packed_to + self._lead_bytes:
                        self._changed.wait()
                    if self._is_over:
                        return
                with suppress(OSError):
                    os.posix_fadvise(files[file], offset, count, os.POSIX_FADV_WILLNEED)


class _OpenFiles(dict[Path, int], AbstractContextManager["_OpenFiles"]):
    """Descriptors by file, opened as they are asked for."""

    def __missing__(self, file: Path) -> int:
        self[file] = os.open(file, os.O_RDONLY)
        return self[file]

    def __exit__(self, *error: object) -> None:
        for file in self.values():
            os.close(file)

"""Makes the system read a model's tensors shortly before they are packed, while others are packed.

Packing threads wait for page faults, a few at a time, which does not keep a disk busy. The system reads into its page
cache, from which tensors are packed in place, so nothing is copied twice. If memory has no room for both the file and
the packed weights, packed tensors leave the cache immediately; otherwise the system would run out of free memory and
find no huge pages.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from ballast.weights.gguf import GgufModel, block_of

LEAD_BYTES = 512 << 20
"""Bytes to read beyond the tensor that is being packed: they occupy page cache, and fast disks read them quickly."""
_CHUNK_BYTES = 8 << 20
_DROPS_A_READ = 2
_LEAVE_S = 10.0
"""Longest wait at the end for a hanging disk."""


class ReadAhead(AbstractContextManager["ReadAhead"]):
    """Reads on its own thread while it is entered. A hint: packing reads the rest itself."""

    def __init__(
        self, gguf: GgufModel, names: Iterable[str], lead_bytes: int = LEAD_BYTES, *, drops_packed: bool = False
    ) -> None:
        """`names`: the tensors that will be packed, layer by layer, in about this order. With `drops_packed`, the page
        cache keeps nothing of the layers before the current one."""
        self._chunks: list[tuple[Path, int, int, int]] = []
        """File, offset, bytes, and total bytes before."""
        self._ends: dict[str, int] = {}
        self._layer_begins: dict[str, int] = {}
        self._drops_packed = drops_packed
        end, layer, layer_begin = 0, None, 0
        for name in names:
            info = gguf.tensors[name]
            if block_of(name) != layer:
                layer, layer_begin = block_of(name), end
            self._layer_begins[name] = layer_begin
            for begin in range(0, info.num_bytes, _CHUNK_BYTES):
                count = min(_CHUNK_BYTES, info.num_bytes - begin)
                self._chunks.append((info.file, info.offset + begin, count, end + begin))
            end += info.num_bytes
            self._ends[name] = end
        self._layer_begin = 0
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
        """Report that packing of a tensor begins."""
        with self._changed:
            self._packed_to = max(self._packed_to, self._ends.get(name, 0))
            self._layer_begin = max(self._layer_begin, self._layer_begins.get(name, 0))
            self._changed.notify()

    def _read(self) -> None:
        dropped = 0
        with _OpenFiles() as files:
            for file, offset, count, before in self._chunks:
                with self._changed:
                    while not self._is_over and before > self._packed_to + self._lead_bytes:
                        self._changed.wait()
                    if self._is_over:
                        return
                    is_late = before + count <= self._layer_begin
                    drop_to = self._layer_begin if self._drops_packed else 0
                if not is_late:
                    with suppress(OSError):
                        os.posix_fadvise(files[file], offset, count, os.POSIX_FADV_WILLNEED)
                # Drop a few chunks at a time, so that reading is not delayed by a whole layer.
                for old_file, old_offset, old_count, old_before in self._chunks[dropped : dropped + _DROPS_A_READ]:
                    if old_before + old_count > drop_to:
                        break
                    with suppress(OSError):
                        os.posix_fadvise(files[old_file], old_offset, old_count, os.POSIX_FADV_DONTNEED)
                    dropped += 1


class _OpenFiles(dict[Path, int], AbstractContextManager["_OpenFiles"]):
    """Descriptors by file, opened on first use."""

    def __missing__(self, file: Path) -> int:
        self[file] = os.open(file, os.O_RDONLY)
        return self[file]

    def __exit__(self, *error: object) -> None:
        for file in self.values():
            os.close(file)

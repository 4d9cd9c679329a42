"""The packed weights of one model, kept in a folder: the next start maps or reads them instead of packing again.

In a folder in memory, weights are packed into the files and used there. On a disk, a thread writes them once the model
is loaded, and the next start reads them into memory. If they cannot be used or kept, the model is packed as without a
folder, and one warning gives the reason: a folder never prevents a server from starting.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ballast._core import kernels
from ballast.host.filesystem import FileSystem
from ballast.weights.packed_set import KeptMatrix, Manifest, PackedError, PackedSet, file_name, reason
from ballast.weights.panel_packing import OpenFile

log = logging.getLogger(__name__)

Packed = TypeVar("Packed")


@dataclass(frozen=True, slots=True)
class _Made:
    """Panels to keep."""

    what: str
    num_bytes: int
    panels: kernels.PanelFile


class PackedPanels:
    """Provides a file for each matrix while one thread loads a model; then call `finish`. Call `close` when the model
    is no longer used."""

    def __init__(self, kept: PackedSet, files: FileSystem, manifest: Manifest | None) -> None:
        """`kept`: locked for reading if it has a manifest, otherwise for writing."""
        self._set = kept
        self._is_mapped = files.is_in_memory
        self._unit_bytes = files.unit_bytes
        self._found: Mapping[str, tuple[int, KeptMatrix]] | None = None
        if manifest is not None:
            self._found = {matrix.what: (index, matrix) for index, matrix in enumerate(manifest.files)}
        self._made: list[_Made] = []
        self._open: list[int] = []
        self._requested = ""
        self._problem: str | None = None
        self._num_bytes = 0
        self._seconds = 0.0
        self._ending = threading.RLock()  # reentrant: freeing the model may call `close`
        self._is_writing = False
        self._is_closed = False

    @property
    def is_filled(self) -> bool:
        """Whether the packed weights come from the folder, so that the model's tensors are not read."""
        return self._found is not None

    def pack(self, pack: Callable[[OpenFile | None], Packed]) -> Packed:
        """Calls `pack` with `open_file`. If a file is damaged or has no room, calls it again without."""
        begin, bytes_before = time.perf_counter(), self._num_bytes
        try:
            return pack(self.open_file)
        except RuntimeError as error:
            if not self._open:
                raise
            self._num_bytes = bytes_before
            self._give_up(f"{self._set.path / self._requested}: {error}")
            self._set.discard(self._requested)
            return pack(None)
        finally:
            self._seconds += time.perf_counter() - begin
            for file in self._open:
                os.close(file)
            self._open.clear()

    def open_file(self, what: str, num_bytes: int) -> kernels.PanelFile | None:
        """The file for the panels that `what` describes, of `num_bytes`; None: they are not kept."""
        try:
            return self._from_file(what, num_bytes) if self._found is not None else self._to_file(what, num_bytes)
        except (OSError, PackedError) as error:
            self._give_up(reason(error, self._set.path))
            return None

    def finish(self) -> threading.Thread | None:
        """Call after the last matrix. On a disk, returns the thread that writes the packed weights."""
        details = {"folder": str(self._set.path), "bytes": self._num_bytes, "seconds": round(self._seconds, 3)}
        if self._found is not None:
            log.info("packed weights mapped" if self._is_mapped else "packed weights read", extra=details)
        elif self._problem is None and self._is_mapped:
            self._finish_set()
            log.info("packed weights kept", extra=details)
        elif self._problem is None:
            self._is_writing = True
            thread = threading.Thread(target=self._write_on_thread, name="ballast-keep", daemon=True)
            thread.start()
            return thread
        return None

    def close(self) -> None:
        """Allow removal of the set. Pending writes are dropped, and the writing thread ends soon."""
        with self._ending:
            self._is_closed = True
            if self._is_writing:
                return
        self._set.close()

    def _from_file(self, what: str, num_bytes: int) -> kernels.PanelFile | None:
        assert self._found is not None
        index, matrix = self._found.get(what, (-1, None))
        if matrix is None:
            raise PackedError(f"{self._set.path}: contains no {what}")
        name = file_name(index)
        if matrix.num_bytes != num_bytes:
            raise PackedError(f"{self._set.path / name}: {matrix.num_bytes} bytes of panels; expected {num_bytes}")
        length = kernels.panel_file_nbytes(num_bytes, self._unit_bytes)
        file = self._set.open_file(name, length, mapped=self._is_mapped)
        self._note(name, file, num_bytes)
        return kernels.PanelFile(file, mapped=self._is_mapped, checksum=matrix.checksum)

    def _to_file(self, what: str, num_bytes: int) -> kernels.PanelFile | None:
        if self._problem is not None:
            return None
        if not self._is_mapped:
            panels = kernels.PanelFile(-1, mapped=False, checksum=None)
        else:
            name = file_name(len(self._made))
            file = self._set.new_file(name, kernels.panel_file_nbytes(num_bytes, self._unit_bytes))
            self._note(name, file, num_bytes)
            panels = kernels.PanelFile(file, mapped=True, checksum=None)
        self._made.append(_Made(what, num_bytes, panels))
        return panels

    def _note(self, name: str, file: int, num_bytes: int) -> None:
        self._requested = name
        self._open.append(file)
        self._num_bytes += num_bytes

    def _give_up(self, problem: str) -> None:
        if self._problem is None and self._found is None:
            log.warning("packed weights are not kept", extra={"why": problem})
        elif self._problem is None:
            details = {"why": problem, "instead": "packed from the model"}
            log.warning("packed weights cannot be used", extra=details)
        self._problem = problem
        self._made.clear()
        self._set.forget()
        if self._found is None:
            try:
                self._set.clear()
            except OSError:
                log.debug("packed weights cannot be removed", exc_info=True)

    def _finish_set(self) -> None:
        files = [
            KeptMatrix(what=made.what, num_bytes=made.num_bytes, checksum=made.panels.checksum) for made in self._made
        ]
        self._made.clear()
        try:
            self._set.write_manifest(Manifest(files=files))
            self._set.lock(shared=True)
        except OSError as error:
            self._give_up(reason(error, self._set.path))

    def _write_on_thread(self) -> None:
        try:
            self._write_all()
        finally:
            with self._ending:
                self._is_writing = False
                is_closed = self._is_closed
            if is_closed:
                self._set.close()

    def _write_all(self) -> None:
        begin = time.perf_counter()
        num_bytes = 0
        try:
            for index, made in enumerate(self._made):
                if self._is_closed:
                    self._made.clear()
                    self._set.clear()
                    why = "the model was closed before all of them were written"
                    log.info("packed weights are not kept", extra={"folder": str(self._set.path), "why": why})
                    return
                memory = made.panels.memory
                assert memory is not None
                self._set.write_file(file_name(index), memory)
                num_bytes += memory.nbytes
        except OSError as error:
            self._give_up(reason(error, self._set.path))
            return
        self._finish_set()
        seconds = round(time.perf_counter() - begin, 3)
        log.info("packed weights kept", extra={"folder": str(self._set.path), "bytes": num_bytes, "seconds": seconds})

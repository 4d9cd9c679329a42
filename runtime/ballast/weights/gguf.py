"""Opens GGUF models: metadata as plain values, tensors as read-only views of the mapped files.

All headers are checked on opening, so every offset in a `GgufModel` is valid, even for a damaged or malicious file.
Opening reads only headers; weights stay on disk until they are accessed.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballast.errors import ModelError, shown
from ballast.weights.gguf_file import GgufFile, TensorInfo, read_file
from ballast.weights.model_files import model_files

_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\..+")


@dataclass(frozen=True, slots=True)
class GgufModel:
    """All shards of one model: the first shard's `metadata`, and the `tensors` of all shards by name."""

    files: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    _maps: Mapping[Path, NDArray[np.uint8]]

    @property
    def path(self) -> Path:
        """The first file, which identifies the model in messages."""
        return self.files[0]

    def data(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes as in the file: a read-only uint8 [num_bytes] view, no copy. Raises ModelError if it is
        missing."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(self.path, "is not in this model", tensor=name)
        return self._maps[info.file][info.offset : info.offset + info.num_bytes]

    def header(self, file: Path) -> NDArray[np.uint8]:
        """The bytes of a file before its first tensor: a read-only view, no copy."""
        mapped = self._maps[file]
        return mapped[: min((info.offset for info in self.tensors.values() if info.file == file), default=mapped.size)]

    def release(self, name: str) -> None:
        """Drop a tensor's whole pages from this process's memory, because they will not be read again soon. A later
        read loads them from the file."""
        self._advise(name, mmap.MADV_DONTNEED)

    def expect_single_rows(self, name: str) -> None:
        """Tell the system that a tensor's rows are read in no order, so that it does not load their neighbours too."""
        self._advise(name, mmap.MADV_RANDOM)

    def _advise(self, name: str, advice: int) -> None:
        """Of a tensor's whole pages."""
        info = self.tensors[name]
        begin = -(-info.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (info.offset + info.num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        mapped: Any = self._maps[info.file]
        while not isinstance(mapped, mmap.mmap):
            mapped = mapped.base
        if end > begin:
            mapped.madvise(advice, begin, end - begin)


def open_gguf(path: Path) -> GgufModel:
    """Open the model at `path`: a file, any one of its shards, or a folder that holds one model.

    Raises ConfigError if the path does not specify exactly one model, ModelError if a file is missing, damaged, or not
    a supported GGUF file, OutOfMemoryError if the system refuses to map one.
    """
    files = model_files(path)
    shards = [read_file(file) for file in files]
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for info in shard.tensors.values():
            if info.name in tensors:
                raise ModelError(info.file, f"also in {tensors[info.name].file.name}", tensor=info.name)
            tensors[info.name] = info
    _check_shards(shards, len(tensors))
    return GgufModel(
        files=tuple(files),
        metadata=shards[0].metadata,
        tensors=tensors,
        _maps={shard.file: shard.map for shard in shards},
    )


def block_of(tensor: str) -> int | None:
    """The block that a tensor belongs to by its name, `blk.N.…`; None if it belongs to none."""
    found = _BLOCK.fullmatch(tensor)
    return None if found is None else int(found[1])


def _check_shards(shards: Sequence[GgufFile], num_tensors: int) -> None:
    """Check that the `split.*` keys match the shards that were found.

    A single file may lack them. If its `split.count` is 0 or 1 (0: its shards were merged), its other `split.*` keys
    have no meaning, as in llama.cpp.
    """
    if len(shards) == 1:
        [shard] = shards
        count = shard.metadata.get("split.count", 0)
        if count not in (0, 1):
            raise ModelError(
                shard.file,
                f"split.count={shown(count)}, so this is one of several shards, and its name does not say which; "
                f"name the shards as NAME-00001-of-{count:05d}.gguf"
                if isinstance(count, int)
                else f"split.count={shown(count)}; expected a whole number",
            )
        return
    for index, shard in enumerate(shards):
        expected = {"split.no": index, "split.count": len(shards), "split.tensors.count": num_tensors}
        for key, value in expected.items():
            found = shard.metadata.get(key, value)
            if found != value:
                raise ModelError(shard.file, f"{key}={shown(found)}; expected {value} for {len(shards)} shards")

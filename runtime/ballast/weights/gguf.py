"""Opens GGUF models: metadata as plain values, tensors as read-only views of the mapped files.

All headers are checked on opening, so every offset in a `GgufModel` can be trusted, also that of a damaged or foreign
file. Opening reads headers only; weights stay on disk until they are touched.
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

from ballast.errors import ConfigError, ModelError, shown
from ballast.weights.gguf_file import GgufFile, TensorInfo, read_file

_SHARD = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf")
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
        """The first file, which stands for the model in messages."""
        return self.files[0]

    def data(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes as in the file: a read-only uint8 [num_bytes] view, no copy. Raises ModelError if it is
        missing."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(self.path, "is not in this model", tensor=name)
        return self._maps[info.file][info.offset : info.offset + info.num_bytes]

    def header(self, file: Path) -> NDArray[np.uint8]:
        """The bytes of one of its files that come before the first tensor's: a read-only view, no copy."""
        mapped = self._maps[file]
        return mapped[: min((info.offset for info in self.tensors.values() if info.file == file), default=mapped.size)]

    def release(self, name: str) -> None:
        """Drop a tensor's whole pages from this process's memory, since they will not be read again soon. A later read
        brings them back from the file."""
        info = self.tensors[name]
        begin = -(-info.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (info.offset + info.num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        mapped: Any = self._maps[info.file]
        while not isinstance(mapped, mmap.mmap):
            mapped = mapped.base
        if end > begin:
            mapped.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def open_gguf(path: Path) -> GgufModel:
    """Open the model at `path`: a file, any one of its shards, or a folder that holds one model.

    Raises ConfigError when the path does not name exactly one model, ModelError when a file is missing, damaged, or
    not a GGUF that can be read here, OutOfMemoryError when the system refuses to map one.
    """
    files = _model_files(path)
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
    """The block that a tensor belongs to by its name, `blk.N.…`; None for one that belongs to none."""
    found = _BLOCK.fullmatch(tensor)
    return None if found is None else int(found[1])


# --- which files ------------------------------------------------------------------------------------------------


def _model_files(path: Path) -> list[Path]:
    """The files of the one model that `path` names, in shard order."""
    if path.is_dir():
        return _files_in(path)
    if not path.exists():
        raise ConfigError("gguf_path", path, "no such file or folder")
    shard = _SHARD.fullmatch(path.name)
    return [path] if shard is None else _siblings(path.parent, shard["stem"], int(shard["count"]))


def _files_in(folder: Path) -> list[Path]:
    models: dict[str, list[Path]] = {}
    try:
        files = sorted(found for found in folder.glob("*.gguf") if not found.is_dir())
        # Repositories have the part that sees pictures beside the text's.
        for file in [file for file in files if not file.name.startswith("mmproj")] or files:
            shard = _SHARD.fullmatch(file.name)
            key = file.name if shard is None else f"{shard['stem']}-*-of-{shard['count']}.gguf"
            models.setdefault(key, []).append(file)
        below = sorted({str(file.parent.relative_to(folder)) for file in folder.glob("*/*.gguf")})
    except OSError as error:
        raise ConfigError("gguf_path", folder, f"the folder cannot be read ({error.strerror})") from error
    if len(models) > 1:
        raise ConfigError("gguf_path", folder, f"holds {len(models)} models, name one: {', '.join(models)}")
    if not models:
        hint = f"; there are some in its folders {', '.join(below)}: name one of these" if below else ""
        raise ConfigError("gguf_path", folder, f"no *.gguf file in this folder{hint}")
    [files] = models.values()
    return _model_files(files[0])


def _siblings(folder: Path, stem: str, count: int) -> list[Path]:
    files = [folder / f"{stem}-{index:05d}-of-{count:05d}.gguf" for index in range(1, count + 1)]
    for file in files:
        if not file.exists():
            raise ModelError(file, f"this shard is missing; the model has {count}, all in the same folder")
    if not files:
        raise ModelError(folder / f"{stem}-*-of-{count:05d}.gguf", "a model of 0 shards; rename the file")
    return files


def _check_shards(shards: Sequence[GgufFile], num_tensors: int) -> None:
    """Check that the `split.*` keys match the shards that were found. A single file may lack them."""
    for index, shard in enumerate(shards):
        expected = {"split.no": index, "split.count": len(shards), "split.tensors.count": num_tensors}
        for key, value in expected.items():
            found = shard.metadata.get(key, value)
            if found != value:
                raise ModelError(
                    shard.file, f"{key}={shown(found)}, expected {value} from the {len(shards)} file(s) beside it"
                )

"""Opens GGUF models: metadata as plain values, tensors as read-only views of the mapped files.

All headers are checked on opening, so every offset in a `GgufModel` can be trusted, also that of a damaged or foreign
file. Opening reads headers only; weights stay on disk until they are touched.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType
from gguf.gguf_reader import ReaderField
from numpy.typing import NDArray

from ballast.errors import ConfigError, ModelError, OutOfMemoryError

_SHARD = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf")
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_MIN_ALIGNMENT = 8
"""GGUF's own rule. Floats are read in place, so a smaller alignment would misalign them."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The place of one tensor. `shape` is row-major: its last entry is the length of a row."""

    name: str
    ggml_type: GGMLQuantizationType
    shape: tuple[int, ...]
    num_bytes: int
    file: Path
    offset: int


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
    shards = [_read_file(file) for file in files]
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
        for file in sorted(found for found in folder.glob("*.gguf") if not found.is_dir()):
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


# --- one file ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shard:
    file: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    map: NDArray[np.uint8]


def _read_file(file: Path) -> _Shard:
    try:
        if not file.is_file():
            raise ModelError(file, "is not a regular file")
        with file.open("rb") as stream:
            _check_magic(file, stream.read(8))
        reader = _Reader(file)
        return _Shard(
            file=file,
            metadata={name: _value(field) for name, field in reader.fields.items() if not name.startswith("GGUF.")},
            tensors=reader.infos,
            map=reader.data.view(np.ndarray),
        )
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise OutOfMemoryError(
                f"{file}: the system does not map its {file.stat().st_size} bytes; raise the limit on this process's "
                "address space (`ulimit -v`), which mapped files count against"
            ) from error
        raise ModelError(file, f"cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, RecursionError) as error:
        raise ModelError(file, f"damaged GGUF header: {_sentence(error)}") from error


def _check_magic(file: Path, head: bytes) -> None:
    if len(head) < 8 or head[:4] != b"GGUF":
        raise ModelError(file, f"not a GGUF file: expected it to start with b'GGUF', found {head[:4]!r}")
    (version,) = struct.unpack("<I", head[4:])
    if version & 0xFFFF == 0 and version:
        raise ModelError(file, "a big-endian GGUF file; expected little-endian, convert the model again")
    if version not in _VERSIONS:
        raise ModelError(file, f"GGUF version {version}; expected one of {', '.join(map(str, _VERSIONS))}")


def _check_shards(shards: list[_Shard], num_tensors: int) -> None:
    """Check that the `split.*` keys match the shards that were found. A single file may lack them."""
    for index, shard in enumerate(shards):
        expected = {"split.no": index, "split.count": len(shards), "split.tensors.count": num_tensors}
        for key, value in expected.items():
            found = shard.metadata.get(key, value)
            if found != value:
                raise ModelError(
                    shard.file, f"{key}={found}, expected {value} from the {len(shards)} file(s) beside it"
                )


class _Reader(GGUFReader):
    """A safe and fast `GGUFReader`: reads past the end of the file fail instead of yielding empty data, arrays are read
    at once instead of element by element, and tensors become checked `TensorInfo`s.
    """

    infos: dict[str, TensorInfo]

    def __init__(self, file: Path) -> None:
        self._file = file
        super().__init__(file, "r")

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> NDArray[Any]:
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > len(self.data):
            raise ValueError(f"the file ends at byte {len(self.data)}, inside a field that ends at byte {end}")
        return super()._get(int(offset), dtype, count, override_order)

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[NDArray[Any]], list[int], list[GGUFValueType]]:
        if GGUFValueType(raw_type) != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        item_type = GGUFValueType(self._get(orig_offs, np.uint32)[0])
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        start = orig_offs + 12
        if item_type == GGUFValueType.STRING:
            values, end = self._strings(start, count)
        elif item_type == GGUFValueType.ARRAY:
            raise ValueError("an array of arrays, which no model uses")
        else:
            values = self._get(start, self.gguf_scalar_to_np[item_type], count)
            end = start + values.nbytes
        return end - orig_offs, [values], [0], [GGUFValueType.ARRAY, item_type]

    def _strings(self, start: int, count: int) -> tuple[NDArray[Any], int]:
        buffer = self.data.data
        size = len(buffer)
        strings: list[str] = []
        for _ in range(count):
            begin = start + 8
            if begin > size:
                raise ValueError(f"the file ends at byte {size}, inside an array of {count} strings")
            start = begin + struct.unpack_from("<Q", buffer, start)[0]
            if start > size:
                raise ValueError(f"the file ends at byte {size}, inside an array of {count} strings")
            strings.append(str(buffer[begin:start], "utf-8"))
        values = np.empty(count, dtype=object)
        values[:] = strings
        return values, start

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        self.infos = {}
        for field in fields:
            dims, raw_type, offset = field.parts[3:]
            info = self._info(field.name, dims.tolist(), int(raw_type[0]), int(start_offs) + int(offset[0]))
            if info.name in self.infos:
                raise ModelError(self._file, "twice in this file", tensor=info.name)
            self.infos[info.name] = info
        self._check_overlap()

    def _info(self, name: str, dims: list[int], raw_type: int, offset: int) -> TensorInfo:
        def refuse(problem: str) -> ModelError:
            return ModelError(self._file, problem, tensor=name or "(without a name)")

        try:
            ggml_type = GGMLQuantizationType(raw_type)
        except ValueError as error:
            raise refuse(f"unknown type number {raw_type}") from error
        if not 1 <= len(dims) <= _MAX_DIMS or 0 in dims:
            raise refuse(f"shape {tuple(reversed(dims))}; expected 1 to {_MAX_DIMS} dimensions, none of them 0")
        block, block_bytes = GGML_QUANT_SIZES[ggml_type]
        if dims[0] % block:
            raise refuse(f"rows of {dims[0]} weights; {ggml_type.name} expects a multiple of {block}")
        num_rows = 1
        for dim in dims[1:]:
            num_rows *= dim
        num_bytes = num_rows * (dims[0] // block) * block_bytes
        alignment = max(int(self.alignment), _MIN_ALIGNMENT)
        if offset % alignment:
            raise refuse(f"starts at byte {offset}; expected a multiple of {alignment}")
        if offset + num_bytes > len(self.data):
            raise refuse(
                f"the file is cut short: expected {num_bytes} bytes from byte {offset}, the file has {len(self.data)}"
            )
        return TensorInfo(name, ggml_type, tuple(reversed(dims)), num_bytes, self._file, offset)

    def _check_overlap(self) -> None:
        ordered = sorted(self.infos.values(), key=lambda info: info.offset)
        for left, right in itertools.pairwise(ordered):
            if left.offset + left.num_bytes > right.offset:
                raise ModelError(self._file, f"overlaps tensor {left.name} at byte {right.offset}", tensor=right.name)


def _value(field: ReaderField) -> Any:
    """A field as a plain Python value: int, float, bool, str, or a list of one of these."""
    value = field.parts[field.data[0]]
    if field.types[0] == GGUFValueType.ARRAY:
        return value.tolist()
    if field.types[0] == GGUFValueType.STRING:
        return str(value.tobytes(), "utf-8")
    return value[0].item()


def _sentence(error: Exception) -> str:
    """The error's message; str() would put quotes around that of a KeyError."""
    return str(error.args[0]) if error.args else type(error).__name__

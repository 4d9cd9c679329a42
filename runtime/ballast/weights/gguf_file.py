"""Reads the header of one GGUF file, with limits: any file is read or rejected quickly.

The gguf package parses the format. This module prevents the effects of damaged files: reads past the end, endless
arrays, tensors outside the file.
"""

from __future__ import annotations

import errno
import itertools
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType
from gguf.gguf_reader import ReaderField
from numpy.typing import NDArray

from ballast.errors import ModelError, OutOfMemoryError, shown
from ballast.weights.file_kind import foreign_kind
from ballast.weights.foreign_types import why_unknown

_VERSIONS = (2, 3)
_MAX_DIMS = 4
_MIN_ALIGNMENT = 8
"""GGUF's own rule. Floats are read in place, so a smaller alignment would misalign them."""
_MAX_NAME_BYTES = 63
"""ggml's own limit."""

# Limits far above the largest models, which have 1,100 tensors, 60 keys, 164,000 tokens, 12 MB in total.
_MAX_TENSORS = 20_000
_MAX_KEYS = 2_000
_MAX_ITEMS = 4_000_000
"""Most items of all arrays together. The largest models have 0.7 million: tokens, their types, merges."""
_MAX_HEADER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The location of one tensor. `shape` is row-major: its last entry is the length of a row."""

    name: str
    ggml_type: GGMLQuantizationType
    shape: tuple[int, ...]
    num_bytes: int
    file: Path
    offset: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """One file: its metadata as plain values, its tensors by name, and its bytes."""

    file: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    map: NDArray[np.uint8]


def read_file(file: Path) -> GgufFile:
    """Raises ModelError for a file that is damaged or cannot be read here, OutOfMemoryError if the system refuses to
    map it."""
    try:
        if not file.is_file():
            raise ModelError(file, "is not a regular file")
        with file.open("rb") as stream:
            _check_head(file, stream.read(24))
        reader = _Reader(file)
        return GgufFile(
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
    except (ValueError, KeyError) as error:
        raise ModelError(file, f"damaged GGUF header: {_sentence(error)}") from error


def _check_head(file: Path, head: bytes) -> None:
    """Check the magic number, the version, and the counts of tensors and keys."""
    if len(head) < 8 or head[:4] != b"GGUF":
        kind = foreign_kind(head) or f"it begins with {_printed(head[:4])}" if head else "it is empty"
        raise ModelError(file, f"not a GGUF file: {kind}; name a file that begins with GGUF, or a folder of one")
    (version,) = struct.unpack("<I", head[4:8])
    if version & 0xFFFF == 0 and version:
        raise ModelError(file, "a big-endian GGUF file; expected little-endian, convert the model again")
    if version not in _VERSIONS:
        raise ModelError(file, f"GGUF version {version}; expected one of {', '.join(map(str, _VERSIONS))}")
    if len(head) < 24:
        raise ModelError(file, f"damaged GGUF header: the file ends at byte {len(head)}, inside the header")
    counts = struct.unpack("<QQ", head[8:24])
    for what, count, most in zip(("tensors", "keys"), counts, (_MAX_TENSORS, _MAX_KEYS), strict=True):
        if count > most:
            raise ModelError(file, f"damaged GGUF header: {count} {what}; expected at most {most}")


def _printed(head: bytes) -> str:
    """The first bytes of a file for a message: as text if possible, otherwise as hexadecimal digits."""
    text = head.decode("ascii", errors="replace")
    return f'"{text}"' if text.isprintable() and text.isascii() else f"the bytes {head.hex(' ')}"


class _Reader(GGUFReader):
    """A safe and fast `GGUFReader`: reads past the end of the file fail instead of yielding empty data, arrays are read
    in one operation instead of element by element, and tensors become checked `TensorInfo`s.
    """

    infos: dict[str, TensorInfo]

    def __init__(self, file: Path) -> None:
        self._file = file
        self._num_items = 0
        super().__init__(file, "r")

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> NDArray[Any]:
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        self._check_end(end)
        return super()._get(int(offset), dtype, count, override_order)

    def _check_end(self, end: int) -> None:
        if end > len(self.data):
            raise ValueError(f"the file ends at byte {len(self.data)}, inside a field that ends at byte {end}")
        if end > _MAX_HEADER_BYTES:
            raise ValueError(f"a field ends at byte {end}; expected a header of at most {_MAX_HEADER_BYTES} bytes")

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[NDArray[Any]], list[int], list[GGUFValueType]]:
        if GGUFValueType(raw_type) != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        item_type = GGUFValueType(self._get(orig_offs, np.uint32)[0])
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        start = orig_offs + 12
        self._num_items += count
        if self._num_items > _MAX_ITEMS:
            raise ValueError(f"an array of {count} entries; expected at most {_MAX_ITEMS} in all arrays of a file")
        if item_type == GGUFValueType.STRING:
            values, end = self._strings(start, count)
        elif item_type == GGUFValueType.ARRAY:
            raise ValueError("an array of arrays, which is not supported")
        else:
            values = self._get(start, self.gguf_scalar_to_np[item_type], count)
            end = start + values.nbytes
        return end - orig_offs, [values], [0], [GGUFValueType.ARRAY, item_type]

    def _strings(self, start: int, count: int) -> tuple[NDArray[Any], int]:
        self._check_end(start + 8 * count)  # the least size of `count` strings
        buffer = self.data.data
        size = len(buffer)
        strings: list[str] = []
        for _ in range(count):
            begin = start + 8
            if begin > size:
                raise ValueError(f"the file ends at byte {size}, inside an array of {count} strings")
            start = begin + struct.unpack_from("<Q", buffer, start)[0]
            self._check_end(start)
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
            return ModelError(self._file, problem, tensor=shown(name) or "(without a name)")

        if len(name.encode()) > _MAX_NAME_BYTES:
            raise refuse(f"a name of {len(name.encode())} bytes; expected at most {_MAX_NAME_BYTES}")
        try:
            ggml_type = GGMLQuantizationType(raw_type)
        except ValueError as error:
            raise refuse(why_unknown(raw_type)) from error
        if not 1 <= len(dims) <= _MAX_DIMS or 0 in dims:
            shape = shown(tuple(reversed(dims[:100])))
            raise refuse(f"shape {shape}; expected 1 to {_MAX_DIMS} dimensions, none of them 0")
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
    """The error's message, shortened; str() would quote the message of a KeyError."""
    return shown(str(error.args[0]), 300) if error.args else type(error).__name__

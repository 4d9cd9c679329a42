"""The rows of a memory plan: weights by group, device and type, and uses of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ballast.host.filesystem import FileSystem
from ballast.host.sizes import human
from ballast.model.kept_weights import KeptWeights
from ballast.model.layers.tensor import GROUPS, Group
from ballast.model.spec import ModelSpec
from ballast.model.tensors import expected_tensors, used_tensors
from ballast.weights.gguf import GgufModel
from ballast.weights.packed_key import key_of


@dataclass(frozen=True, slots=True)
class WeightRow:
    """Tensors of one group, device and type."""

    group: Group
    device: str
    ggml_type: str
    num_tensors: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One use of memory. `detail` explains the number."""

    name: str
    num_bytes: int
    detail: str
    option: str | None = None
    """The option, other than cache_lens, whose lower value reduces it."""


@dataclass(frozen=True, slots=True)
class PackedFolder:
    """The folder that keeps packed weights, and its current content."""

    path: Path
    files: FileSystem
    unused_bytes: int
    """Bytes of sets that no process uses; a start uses or removes them."""
    keys_in_use: frozenset[str] = frozenset()
    """Keys of finished sets that processes use; a start that needs one of them shares it."""
    model_digest: bytes = b""
    """`files_digest` of the model, if any keys are in use."""


def host_weight_rows(num_bytes: int, detail: str, kept: KeptWeights, folder: PackedFolder | None) -> list[MemoryRow]:
    """The rows of weights in host memory, some of which a folder may keep. A folder in memory holds the only copy."""
    if folder is None or not kept.sizes:
        return [MemoryRow("weights", num_bytes, detail)]
    in_files = kept.file_bytes(folder.files.unit_bytes)
    key = key_of(folder.model_digest, kept.isa, kept.threads_per_node, kept.tensors)
    if key in folder.keys_in_use and folder.files.is_in_memory:
        return [
            MemoryRow("weights", num_bytes - sum(kept.sizes), "not kept in the folder; embedding in page cache"),
            MemoryRow("packed weights", 0, f"{human(in_files)} in {folder.path} are shared with a running server"),
        ]
    if in_files > folder.files.free_bytes + folder.unused_bytes:
        return [MemoryRow("weights", num_bytes, f"{detail}; {folder.path} has no room for {human(in_files)} of them")]
    if not folder.files.is_in_memory:
        return [MemoryRow("weights", num_bytes, f"{detail}; {folder.path} keeps a copy of {human(in_files)}")]
    return [
        MemoryRow("weights", num_bytes - sum(kept.sizes), "not kept in the folder; embedding in page cache"),
        MemoryRow("packed weights", in_files, f"in {folder.path}, a folder in memory; remain when the server ends"),
    ]


def table_rows(gguf: GgufModel, spec: ModelSpec) -> tuple[MemoryRow, ...]:
    """The n-gram table, which needs no memory; none for a model without."""
    tables = [name for name, each in expected_tensors(spec).items() if each.read_in_place == "few rows"]
    num_bytes = sum(gguf.tensors[name].num_bytes for name in tables)
    if num_bytes == 0:
        return ()
    return (MemoryRow("n-gram table", 0, f"{human(num_bytes)} of the file, read by rows through page cache"),)


def weight_rows(
    gguf: GgufModel, spec: ModelSpec, device_of: Callable[[str], str], weights: Mapping[str, tuple[str, int]]
) -> Iterator[WeightRow]:
    """`device_of`: the device of a module; `weights`: name → (source tensor, bytes)."""
    declared = used_tensors(spec)
    tensors: Counter[tuple[Group, str, str]] = Counter()
    sizes: Counter[tuple[Group, str, str]] = Counter()
    for name, (source, num_bytes) in weights.items():
        key = (declared[name].group, device_of(declared[name].module), gguf.tensors[source].ggml_type.name)
        tensors[key] += 1
        sizes[key] += num_bytes
    for key in sorted(tensors, key=lambda key: (GROUPS.index(key[0]), *key)):
        yield WeightRow(*key, tensors[key], sizes[key])

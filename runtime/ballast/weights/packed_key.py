"""Computes the name of a set of packed weights from everything that determines its content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from ballast._core import kernels
from ballast.weights.gguf import GgufModel

_SAMPLE_BYTES = 64
_READERS = 16


def packed_key(gguf: GgufModel, isa: str, threads_per_node: Sequence[int], tensors: Collection[str]) -> str:
    """32 hexadecimal digits. They depend on the files (size, modification time, header, and a sample of every tensor),
    on the layout and instruction set, on the division of rows among nodes, and on the kept `tensors`. Raises OSError if
    a file has vanished."""
    return key_of(files_digest(gguf), isa, threads_per_node, tensors)


def key_of(digest: bytes, isa: str, threads_per_node: Sequence[int], tensors: Collection[str]) -> str:
    """The same, from the `files_digest` of a model. Pure."""
    facts = {
        "layout": kernels.PANEL_LAYOUT_VERSION,
        "isa": isa,
        "threads_per_node": list(threads_per_node),
        "tensors": sorted(tensors),
    }
    return hashlib.sha256(json.dumps(facts).encode() + digest).hexdigest()[:32]


def files_digest(gguf: GgufModel) -> bytes:
    """A 32-byte digest of a model's files: size, modification time, header, and a sample of every tensor. Raises
    OSError if a file has vanished."""
    digest = hashlib.sha256()
    for file in gguf.files:
        status = file.stat()
        digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
        digest.update(gguf.header(file).tobytes())
    # Two releases of a model may differ only in their weights, and images set the same time for all files.
    for sample in _samples(gguf):
        digest.update(sample)
    return digest.digest()


def _samples(gguf: GgufModel) -> Iterator[bytes]:
    """Samples from the middle of every tensor, by name. They are read concurrently: a thousand sequential reads took
    two seconds of a start, mostly for the readahead of the system."""
    with ExitStack() as opened, ThreadPoolExecutor(_READERS, "ballast-sample") as readers:
        files: dict[Path, int] = {}
        for file in gguf.files:
            files[file] = os.open(file, os.O_RDONLY)
            opened.callback(os.close, files[file])
            os.posix_fadvise(files[file], 0, 0, os.POSIX_FADV_RANDOM)  # no readahead around a sample

        def sample(name: str) -> bytes:
            info = gguf.tensors[name]
            middle = info.num_bytes // 2
            return os.pread(files[info.file], min(_SAMPLE_BYTES, info.num_bytes - middle), info.offset + middle)

        yield from readers.map(sample, sorted(gguf.tensors))

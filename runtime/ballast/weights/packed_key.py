"""Names a set of packed weights by all that its bytes follow from, so that a set of another name is never used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence

from ballast._core import kernels
from ballast.weights.gguf import GgufModel

_SAMPLE_BYTES = 64


def packed_key(gguf: GgufModel, isa: str, threads_per_node: Sequence[int], tensors: Collection[str]) -> str:
    """32 hexadecimal digits. They follow from the files (size, time of change, header, and a sample of every tensor),
    from how panels lie and for which instruction set, from how rows are divided among nodes, and from which `tensors`
    are kept. Raises OSError when a file has gone."""
    facts = {
        "layout": kernels.PANEL_LAYOUT_VERSION,
        "isa": isa,
        "threads_per_node": list(threads_per_node),
        "tensors": sorted(tensors),
    }
    digest = hashlib.sha256(json.dumps(facts).encode())
    digest.update(files_digest(gguf))
    return digest.hexdigest()[:32]


def files_digest(gguf: GgufModel) -> bytes:
    """32 bytes that follow from a model's files: size, time of change, header, and a sample of every tensor. Raises
    OSError when a file has gone."""
    digest = hashlib.sha256()
    for file in gguf.files:
        status = file.stat()
        digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
        digest.update(gguf.header(file).tobytes())
    # Two releases of a model may differ in nothing but their weights, and images give every file the same time.
    for name in sorted(gguf.tensors):
        data = gguf.data(name)
        middle = data.size // 2
        digest.update(data[middle : middle + _SAMPLE_BYTES].tobytes())
    return digest.digest()

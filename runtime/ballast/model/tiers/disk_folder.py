"""Opens the folder that keeps a model's KV blocks, with a bound; says why where it cannot be used."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from ballast import _core
from ballast.host.filesystem import read_file_system
from ballast.host.sizes import human
from ballast.model.tiers.block_file import (
    FORMAT_VERSION,
    BlockFile,
    BlockFileError,
    head_type,
    kept_bytes,
    remove_others,
)
from ballast.model.tiers.cache_blocks import CacheBlocks, CacheStates, num_states_in
from ballast.model.tiers.disk_tier import READ_AT_ONCE, DiskTier
from ballast.model.tiers.file_heads import stride_of
from ballast.model.tiers.state_file import STATE_HEAD_BYTES
from ballast.model.tiers.tier import Notify
from ballast.weights.gguf import GgufModel
from ballast.weights.packed_key import files_digest

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent.parent
"""Sources of the model: the rotation tables, and the whole forward pass on a GPU."""
MAX_BLOCKS = 1 << 18
"""An index of more would take more than 100 MB of memory."""
STAGING_BYTES = 256 << 20
"""Most bytes of blocks that are being written to disk."""
MAX_PENDING_STORES = 64
"""The same in blocks."""
MAX_STATES = 1 << 16
MAX_PENDING_STATES = 4
"""The same of recurrent states."""
_NODE_BYTES = 64
"""Bytes of a block in the scheduler's index, in addition to its tokens."""


def open_disk_tier(
    folder: Path,
    max_bytes: int | None,
    gguf: GgufModel,
    cache: CacheBlocks,
    block_tokens: int,
    machine: Sequence[object],
    notify: Notify,
    states: CacheStates | None = None,
) -> DiskTier | None:
    """The tier in `folder`, of `max_bytes` or half of the free space; None, with a warning that contains the reason, if
    it cannot be used. `machine`: properties, other than the model, that determine the numbers in the cache. Blocks of
    another model, layout or machine are removed if no process uses them."""
    try:
        key = cache_key(gguf, cache, block_tokens, machine, states)
        folder.mkdir(mode=0o700, exist_ok=True)
        remove_others(folder, key)
        num_bytes = _bytes_to_take(folder, key, max_bytes)
        state_bytes = 0 if states is None else states.state_bytes
        place_bytes = 0 if states is None else stride_of(state_bytes) + STATE_HEAD_BYTES
        num_states = min(MAX_STATES, num_states_in(num_bytes, place_bytes))
        num_bytes -= num_states * place_bytes
        if states is not None and num_states == 0:
            raise BlockFileError(
                f"{folder}: a quarter of {human(num_bytes)} is too small for one recurrent state of "
                f"{human(state_bytes)}; raise kv_disk_bytes or free space"
            )
        num_blocks = min(MAX_BLOCKS, num_bytes // (stride_of(cache.block_bytes) + head_type(block_tokens).itemsize))
        if num_blocks == 0:
            raise BlockFileError(
                f"{folder}: {human(num_bytes)} are too small for one block of {human(cache.block_bytes)}"
            )
        file = BlockFile(folder, key, num_blocks, cache.block_bytes, block_tokens, num_states, state_bytes)
    except (OSError, BlockFileError) as error:
        log.warning("kv_disk_dir is not used", extra={"folder": str(folder), "why": str(error)})
        return None
    try:
        most_storing = _max_pending_stores(cache.block_bytes)
        return DiskTier(file, cache, most_storing, notify, states, _max_pending_states(state_bytes))
    except MemoryError:
        file.close()
        log.warning(
            "kv_disk_dir is not used", extra={"folder": str(folder), "why": "no memory for blocks on their way"}
        )
    return None


def disk_memory_bytes(block_bytes: int, block_tokens: int, state_bytes: int = 0) -> int:
    """Most host memory of a tier on disk: blocks and recurrent states in transit, and the index of the stored blocks,
    with their tokens twice."""
    known = 2 * head_type(block_tokens).itemsize + _NODE_BYTES
    states = (_max_pending_states(state_bytes) + 1) * state_bytes
    return (_max_pending_stores(block_bytes) + READ_AT_ONCE) * block_bytes + states + MAX_BLOCKS * known


def _max_pending_stores(block_bytes: int) -> int:
    return max(1, min(MAX_PENDING_STORES, STAGING_BYTES // block_bytes))


def _max_pending_states(state_bytes: int) -> int:
    return max(1, min(MAX_PENDING_STATES, STAGING_BYTES // max(1, state_bytes)))


def cache_key(
    gguf: GgufModel,
    cache: CacheBlocks,
    block_tokens: int,
    machine: Sequence[object],
    states: CacheStates | None = None,
) -> str:
    """32 hexadecimal digits that follow from all that blocks of a cache depend on: the model, the layout, the machine,
    the very kernels and what is computed in Python. Raises OSError when a file of the model has gone."""
    facts = [FORMAT_VERSION, cache.layout, cache.block_bytes, block_tokens, *map(str, machine)]
    facts += [] if states is None else [states.layout, states.state_bytes]
    digest = hashlib.sha256(json.dumps(facts).encode() + files_digest(gguf))
    digest.update(Path(_core.__file__).read_bytes())
    for path in sorted(SOURCES.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _bytes_to_take(folder: Path, key: str, requested: int | None) -> int:
    available = read_file_system(folder).free_bytes + kept_bytes(folder, key)
    if requested is not None and requested > available:
        log.warning(
            "kv_disk_dir has less free space than kv_disk_bytes",
            extra={"folder": str(folder), "requested_bytes": requested, "taken_bytes": available},
        )
    return available // 2 if requested is None else min(requested, available)

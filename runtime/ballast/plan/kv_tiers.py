"""What the places beside the KV cache take: host memory that a GPU's cache overflows to, and the way to disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ballast.config.options import MachineConfig
from ballast.model.tiers.disk_folder import disk_memory_bytes
from ballast.plan.rows import MemoryRow

COPIED_AT_ONCE = 16
"""Blocks: that of model/hybrid/copies/device_blocks.py, which needs torch."""
MOST_AUTO_BYTES = 32 << 30
"""Host memory that is taken unasked."""
LEAST_AUTO_BYTES = 1 << 30
"""Less is not worth the while."""


@dataclass(frozen=True, slots=True)
class KvTierSizes:
    """What is asked for beside the cache."""

    host_bytes: int | None = 0
    """None: what is left, which a plan without it tells."""
    disk_dir: Path | None = None


NO_TIERS = KvTierSizes()


def asked_tiers(machine: MachineConfig) -> KvTierSizes:
    """What is asked for."""
    return KvTierSizes(machine.kv_host_bytes, machine.kv_disk_dir)


def auto_host_bytes(spare_bytes: int) -> int:
    """The host memory to take of what a plan leaves."""
    half = min(spare_bytes // 2, MOST_AUTO_BYTES)
    return half if half >= LEAST_AUTO_BYTES else 0


def host_rows(tiers: KvTierSizes, block_bytes: int, block_tokens: int) -> Iterator[MemoryRow]:
    """Of host memory, for a cache whose blocks take `block_bytes`."""
    if tiers.host_bytes:
        num_tokens = tiers.host_bytes // block_bytes * block_tokens
        yield MemoryRow(
            "KV beside the GPU",
            tiers.host_bytes,
            f"{num_tokens} tokens that the cache has given up, pinned",
            "kv_host_bytes",
        )
    if tiers.disk_dir is not None:
        yield MemoryRow(
            "KV on its way to disk",
            disk_memory_bytes(block_bytes, block_tokens),
            f"and what is known of the blocks in {tiers.disk_dir}, at most",
        )


def device_rows(tiers: KvTierSizes, block_bytes: int) -> Iterator[MemoryRow]:
    """Of a GPU's memory."""
    if tiers != NO_TIERS:
        yield MemoryRow("KV on its way", COPIED_AT_ONCE * block_bytes, f"{COPIED_AT_ONCE} blocks that are copied")

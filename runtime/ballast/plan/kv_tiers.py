"""Memory of the KV cache's tiers: host memory for blocks evicted from a GPU, and buffers for the disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ballast.config.options import MachineConfig
from ballast.model.tiers.cache_blocks import num_states_in
from ballast.model.tiers.disk_folder import disk_memory_bytes
from ballast.plan.rows import MemoryRow

COPIED_AT_ONCE = 16
"""Blocks; the same as in model/hybrid/copies/device_blocks.py, which needs torch."""
MAX_AUTO_BYTES = 32 << 30
"""Most host memory that "auto" uses."""
MIN_AUTO_BYTES = 1 << 30
"""With "auto", a smaller tier is not used."""


@dataclass(frozen=True, slots=True)
class KvTierSizes:
    """The configured sizes of the tiers."""

    host_bytes: int | None = 0
    """None: what a plan without this tier leaves."""
    disk_dir: Path | None = None


NO_TIERS = KvTierSizes()


def requested_tiers(machine: MachineConfig) -> KvTierSizes:
    """The sizes that the options set."""
    return KvTierSizes(machine.kv_host_bytes, machine.kv_disk_dir)


def auto_host_bytes(spare_bytes: int) -> int:
    """The host memory to use of what a plan leaves."""
    half = min(spare_bytes // 2, MAX_AUTO_BYTES)
    return half if half >= MIN_AUTO_BYTES else 0


def host_rows(tiers: KvTierSizes, block_bytes: int, block_tokens: int, state_bytes: int = 0) -> Iterator[MemoryRow]:
    """Rows of host memory, for a cache with blocks of `block_bytes` and recurrent states of `state_bytes`."""
    if tiers.host_bytes:
        num_states = num_states_in(tiers.host_bytes, state_bytes)
        num_tokens = (tiers.host_bytes - num_states * state_bytes) // block_bytes * block_tokens
        states = f" and {num_states} recurrent states" if state_bytes else ""
        yield MemoryRow(
            "KV cache in RAM",
            tiers.host_bytes,
            f"{num_tokens} tokens{states} evicted from the GPU, pinned",
            "kv_host_bytes",
        )
    if tiers.disk_dir is not None:
        yield MemoryRow(
            "KV on its way to disk",
            disk_memory_bytes(block_bytes, block_tokens, state_bytes),
            f"and the index of the blocks in {tiers.disk_dir}, at most",
        )


def device_rows(tiers: KvTierSizes, block_bytes: int) -> Iterator[MemoryRow]:
    """Rows of a GPU's memory."""
    if tiers != NO_TIERS and block_bytes:
        yield MemoryRow("KV on its way", COPIED_AT_ONCE * block_bytes, f"buffer for {COPIED_AT_ONCE} blocks")

"""Divides a model's experts into the chunks that are copied to a device, and sizes the buffers there. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # plans also divide experts, where torch is not installed
    from ballast.model.hybrid.streaming.host_memory import HostExpertPart

MAX_CHUNK_BYTES = 256 << 20
CHUNKS_PER_LAYER = 4
NUM_BUFFERS = 8
"""Maximum number of chunks on the device or in transfer: as many as are copied while a layer's attention runs."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Adjacent experts of one part of a layer, which are copied together."""

    layer: int
    part: HostExpertPart
    first: int
    num_experts: int

    @property
    def num_bytes(self) -> int:
        return self.num_experts * self.part.expert_bytes


def chunk_bytes(layer_bytes: int, expert_bytes: int, num_devices: int = 1) -> int:
    """Bytes of a buffer: a fraction of what each of `num_devices` copies of the largest layer, small enough for several
    buffers and large enough for long copies; at least one expert."""
    return max(expert_bytes, min(MAX_CHUNK_BYTES, layer_bytes // (CHUNKS_PER_LAYER * num_devices)))


def chunks_for(layers: Sequence[Sequence[HostExpertPart]], num_devices: int) -> list[Chunk]:
    """The chunks of each layer's parts, of a size for this number of devices."""
    largest = max(sum(part.expert_bytes * part.gate.num_experts for part in parts) for parts in layers)
    expert_bytes = max(part.expert_bytes for parts in layers for part in parts)
    return list(chunks_of(layers, chunk_bytes(largest, expert_bytes, num_devices)))


def chunks_of(layers: Sequence[Sequence[HostExpertPart]], most_bytes: int) -> Iterator[Chunk]:
    """The chunks of each layer's parts, as even as possible. None exceeds `most_bytes`, unless a single expert does."""
    for layer, parts in enumerate(layers):
        for part in parts:
            num_experts = part.gate.num_experts
            per_chunk = max(1, most_bytes // part.expert_bytes)
            num_chunks = -(-num_experts // per_chunk)
            bounds = [num_experts * index // num_chunks for index in range(num_chunks + 1)]
            for first, end in itertools.pairwise(bounds):
                yield Chunk(layer, part, first, end - first)

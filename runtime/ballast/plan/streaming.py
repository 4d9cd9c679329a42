"""How long a step may be where experts can be streamed through a GPU, and what streaming takes and promises there. Pure
arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ballast.errors import ConfigError
from ballast.model.hybrid.streaming.chunks import NUM_BUFFERS, chunk_bytes
from ballast.model.spec import ModelSpec
from ballast.model.tensors import group_of

LONG_STEPS = (4096, 2048, 1024, 512)
"""Tokens of a step in which nothing decodes, the first that fits: a pass over the experts takes as long for all."""

_PCIE_BYTES_PER_S = 25e9
"""What PCIe 4.0 gives with 16 lanes."""
_THREAD_FLOPS: Mapping[str, float] = {"amx": 110e9, "avx512": 110e9, "avx2": 60e9}
"""Of one thread in some hundred tokens' experts, roughly; after records in benchmarks/results."""


@dataclass(frozen=True, slots=True)
class StreamEstimate:
    """A pass over all routed experts, and what it compares with. Start measures both."""

    pass_bytes: int
    pass_s: float
    from_tokens: int
    """From which the CPU would take longer."""
    assumed: str


def step_choices(
    chunk_size: int, prefill_chunk_size: int | None, stream_from_tokens: int | None
) -> list[tuple[int, bool]]:
    """(tokens of the longest step, whether room is made for streamed experts), the best first. None is "auto": the
    longest steps and no streaming at all are then open. Raises ConfigError where no step is so long that it streams."""
    sizes = [prefill_chunk_size or chunk_size]
    if prefill_chunk_size is None and stream_from_tokens != 0:
        sizes = [*(size for size in LONG_STEPS if size > chunk_size), chunk_size]
    if stream_from_tokens and stream_from_tokens > sizes[0]:
        raise ConfigError(
            "stream_from_tokens",
            stream_from_tokens,
            f"no step is so long: the longest has {sizes[0]} tokens; lower it, raise prefill_chunk_size, or set 0 to "
            "stream never",
        )
    sizes = [size for size in sizes if size >= (stream_from_tokens or 0)]
    streamed = [(size, True) for size in sizes] if stream_from_tokens != 0 else []
    return [*streamed, (sizes[-1], False)] if not stream_from_tokens else streamed


def buffer_bytes(spec: ModelSpec, weights: Mapping[str, int]) -> int:
    """Of a GPU's memory, at most, for experts on their way; `weights` as packed, by name."""
    largest = max(_layers(weights).values(), default=0)
    return NUM_BUFFERS * chunk_bytes(largest, -(-largest // max(1, spec.num_experts)))


def estimate(spec: ModelSpec, weights: Mapping[str, int], isa: str, num_threads: int) -> StreamEstimate | None:
    """By figures that are common, not this machine's; None where `weights` has no experts."""
    layers = _layers(weights)
    if not layers:
        return None
    pass_bytes = sum(layers.values())
    pass_s = pass_bytes / _PCIE_BYTES_PER_S
    token_flops = 6 * spec.hidden * spec.expert_dim * spec.num_experts_used * len(layers)
    thread_flops = _THREAD_FLOPS[isa]
    return StreamEstimate(
        pass_bytes=pass_bytes,
        pass_s=pass_s,
        from_tokens=math.ceil(pass_s * num_threads * thread_flops / token_flops),
        assumed=f"{_PCIE_BYTES_PER_S / 1e9:.0f} GB/s and {num_threads} threads of {thread_flops / 1e9:.0f} GFLOP/s",
    )


def _layers(weights: Mapping[str, int]) -> dict[str, int]:
    """Bytes of routed experts, by layer."""
    layers: dict[str, int] = {}
    for name, num_bytes in weights.items():
        if group_of(name) == "routed experts":
            block = name.split(".")[1]
            layers[block] = layers.get(block, 0) + num_bytes
    return layers

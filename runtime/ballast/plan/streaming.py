"""Chooses the longest step when experts can be streamed through GPUs, and estimates the time of streaming. Pure
arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ballast._core import kernels
from ballast.errors import ConfigError
from ballast.model.hybrid.streaming.chunks import NUM_BUFFERS, chunk_bytes
from ballast.model.spec import ModelSpec
from ballast.model.tensors import routed_bytes

LONG_STEPS = (16384, 8192, 4096, 2048, 1024, 512)
"""Tokens of a step in which no request decodes; the first size that fits is used, because a pass over the experts takes
the same time for each."""
_LONGEST_ON_ONE_GPU = 4096
_LONGEST_ON_SEVERAL_GPUS = 16384
_SHORTEST_FOR_EXPERTS = 1024
"""Steps are not made shorter than this to make room for experts: prompts then take twice as long as with steps of 4,096
tokens."""

_PCIE_BYTES_PER_S = 25e9
"""Rate of copies over PCIe 4.0 with 16 lanes."""


@dataclass(frozen=True, slots=True)
class StreamEstimate:
    """An estimate of a pass over all routed experts, and of when it pays off. The start measures both."""

    pass_bytes: int
    pass_s: float
    from_tokens: int
    """Fewest tokens for which the CPU would take longer."""
    assumed: str


def longest_without_streaming(num_gpus: int) -> int:
    """Most tokens of a step if GPUs hold all experts. Longer steps do not help one GPU, and they delay other requests.
    Several compute different parts of a step at the same time, and wait for each other at its beginning and end."""
    return _LONGEST_ON_ONE_GPU if num_gpus == 1 else _LONGEST_ON_SEVERAL_GPUS


def steps_with_all_experts(prefill_chunk_size: int | None, stream_from_tokens: int | None, num_gpus: int) -> list[int]:
    """Tokens of the longest step, ascending, with which GPUs should hold all experts if they can. None means "auto"."""
    allowed = range(max(_SHORTEST_FOR_EXPERTS, stream_from_tokens or 0), longest_without_streaming(num_gpus) + 1)
    return [prefill_chunk_size] if prefill_chunk_size else sorted(size for size in LONG_STEPS if size in allowed)


def step_choices(
    chunk_size: int, prefill_chunk_size: int | None, stream_from_tokens: int | None, cache_lens: int | None
) -> list[tuple[int, bool]]:
    """(tokens of the longest step, whether buffers for streamed experts are planned), the best choice first. None means
    "auto": the longest steps, and steps without streaming, are then choices too, but none longer than the shortest of
    LONG_STEPS with room for a cache of `cache_lens` and 1,024 tokens. Raises ConfigError if no step is long enough to
    be streamed."""
    sizes = [prefill_chunk_size or chunk_size]
    if prefill_chunk_size is None and stream_from_tokens != 0:
        needed = max(cache_lens or LONG_STEPS[0], stream_from_tokens or 0, _SHORTEST_FOR_EXPERTS)
        most = min((size for size in LONG_STEPS if size >= needed), default=LONG_STEPS[0])
        sizes = [*(size for size in LONG_STEPS if chunk_size < size <= most), chunk_size]
    if stream_from_tokens and stream_from_tokens > sizes[0]:
        raise ConfigError(
            "stream_from_tokens",
            stream_from_tokens,
            f"no step is that long: the longest has {sizes[0]} tokens; lower it, raise prefill_chunk_size, or set 0 to "
            "disable streaming",
        )
    sizes = [size for size in sizes if size >= (stream_from_tokens or 0)]
    streamed = [(size, True) for size in sizes] if stream_from_tokens != 0 else []
    return [*streamed, (sizes[-1], False)] if not stream_from_tokens else streamed


def buffer_bytes(spec: ModelSpec, weights: Mapping[str, int]) -> int:
    """Most bytes of the buffers through which a device streams its share of each layer's experts; `weights`: packed
    bytes by name. Several devices may use smaller buffers."""
    largest = max(routed_bytes(spec, weights).values(), default=0)
    return NUM_BUFFERS * chunk_bytes(largest, -(-largest // spec.routing.num_experts))


def estimate(
    spec: ModelSpec,
    weights: Mapping[str, int],
    isa: str,
    num_threads: int,
    pcie: float | None = None,
    num_gpus: int = 1,
) -> StreamEstimate | None:
    """An estimate by typical rates, not measurements of this machine; None if `weights` has no experts. `pcie`: bytes
    per second of copies across PCIe to each GPU, if described."""
    layers = [size for size in routed_bytes(spec, weights).values() if size]
    if not layers:
        return None
    pass_bytes = sum(layers)
    pcie = pcie or _PCIE_BYTES_PER_S
    pass_s = pass_bytes / (pcie * num_gpus)
    token_flops = 6 * spec.hidden * spec.widest_expert * spec.routing.num_experts_used * len(layers)
    [thread_flops] = [fast.thread_flops for fast in kernels.fast_isas() if fast.name == isa]
    to_each = f" to each of {num_gpus} GPUs" if num_gpus > 1 else ""
    return StreamEstimate(
        pass_bytes=pass_bytes,
        pass_s=pass_s,
        from_tokens=math.ceil(pass_s * num_threads * thread_flops / token_flops),
        assumed=f"{pcie / 1e9:.0f} GB/s{to_each} and {num_threads} threads of {thread_flops / 1e9:.0f} GFLOP/s",
    )

"""Measures which fraction of a decode step's experts the device should read over PCIe: the one with the lowest time for
consecutive routed layers."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ballast.model.hybrid.experts.divided_experts import DividedExperts
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.weights import RoutedWeights

log = logging.getLogger(__name__)

SHARES = (0.125, 0.1875, 0.25, 0.3125, 0.375, 0.4)
"""Candidate fractions. With a larger one, the CPU's idle time exceeds the gain from PCIe."""
MAX_LAYERS = 8
"""Maximum number of measured routed layers, so that a start takes seconds for a model of any depth."""
MAX_TOKENS = 16
_BATCH_SIZES = (1, 4, MAX_TOKENS)
_REPEATS = 3
_MIN_GAIN = 0.02
"""Minimum relative gain over a fraction of 0."""

Step = Callable[[], None]


def layers_to_measure(layers: Sequence[int]) -> list[int]:
    """MAX_LAYERS of `layers`, evenly spaced, including the first: published files use more precise types in some parts
    of a model."""
    count = min(len(layers), MAX_LAYERS)
    return [layers[n * len(layers) // count] for n in range(count)]


def measured_share(
    experts: DividedExperts,
    layers: Sequence[RoutedWeights],
    hidden: int,
    max_batch_size: int,
    device: torch.device,
    replay_of: Callable[[Step], Step],
) -> float:
    """The best fraction for decode steps of random tokens through `layers`, which are all layers of `experts`. Any
    error is raised: it would also occur in a decode step, because the kernels have been warmed up. `replay_of`: see
    `Backend`."""
    batch_sizes = [size for size in _BATCH_SIZES if size <= max_batch_size]
    times = [_times(experts, layers, hidden, size, device, replay_of) for size in batch_sizes]
    relative = {share: statistics.mean(of_size[share] / of_size[0.0] for of_size in times) for share in times[0]}
    share = best_share(relative)
    log.info(
        "PCIe share measured",
        extra={
            "share": share,
            "layers": len(layers),
            "batch_sizes": batch_sizes,
            "ms_without": [round(of_size[0.0] * 1e3, 2) for of_size in times],
            "ms_with": [round(of_size[share] * 1e3, 2) for of_size in times],
        },
    )
    return share


def kept_share(value: Any) -> float:
    """The fraction that an earlier start has stored. Raises ValueError for any other value."""
    if isinstance(value, bool) or value not in (0.0, *SHARES):
        raise ValueError(f"{value!r} is not a candidate fraction")
    return float(value)


def best_share(times: Mapping[float, float]) -> float:
    """The fraction with the lowest time, or 0 if none gains enough over 0. `times`: seconds by fraction, including
    0."""
    best = min(times, key=lambda share: times[share])
    return best if times[best] <= times[0.0] * (1 - _MIN_GAIN) else 0.0


@torch.inference_mode()
def _times(
    experts: DividedExperts,
    layers: Sequence[RoutedWeights],
    hidden: int,
    batch_size: int,
    device: torch.device,
    replay_of: Callable[[Step], Step],
) -> dict[float, float]:
    """Seconds of the layers, by fraction."""
    x = torch.randn(batch_size, hidden, generator=torch.Generator().manual_seed(batch_size)).to(device)
    token_ids = torch.arange(batch_size, dtype=torch.int32, device=device)

    def queue() -> None:
        for index, layer in enumerate(layers):
            experts.submit(index, x, *layer.choose(layer.router(x), token_ids))
            experts.result(index)

    def run(queue: Step) -> None:
        experts.begin(batch_size)
        queue()
        experts.finish(lambda: None)
        platform_of(device).current_stream().synchronize()

    steps: dict[float, Step] = {}
    for shares in ((0.0,), SHARES):
        experts.set_pcie_share(shares[0])
        run(queue)
        steps |= dict.fromkeys(shares, replay_of(queue))
    seconds: dict[float, list[float]] = {share: [] for share in steps}
    for _ in range(_REPEATS):  # interleaved, because the speed of a machine's memory varies over time
        for share, step in steps.items():
            experts.set_pcie_share(share)
            begin = time.perf_counter()
            run(step)
            seconds[share].append(time.perf_counter() - begin)
    return {share: statistics.median(found) for share, found in seconds.items()}

"""Measures which share of a decode step's experts the device should read over PCIe: the one with which routed layers,
one after the other, take the least time."""

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
"""Shares that are tried. With a larger one, more of the CPU's time is idle than PCIe gains."""
MOST_LAYERS = 8
"""Routed layers that are measured, so that a start takes seconds for a model of any depth."""
MOST_TOKENS = 16
_BATCH_SIZES = (1, 4, MOST_TOKENS)
_REPEATS = 3
_LEAST_GAIN = 0.02
"""The least gain over no share for which one is used."""

Step = Callable[[], None]


def layers_to_measure(layers: Sequence[int]) -> list[int]:
    """MOST_LAYERS of `layers`, evenly from the first on: published files have better types in some parts of a model."""
    count = min(len(layers), MOST_LAYERS)
    return [layers[n * len(layers) // count] for n in range(count)]


def measured_share(
    experts: DividedExperts,
    layers: Sequence[RoutedWeights],
    hidden: int,
    max_batch_size: int,
    device: torch.device,
    replay_of: Callable[[Step], Step],
) -> float:
    """The best share for decode steps of random tokens through `layers`, which are all that `experts` has. Raises what
    fails: it would fail in a decode step too, since the kernels have been warmed up. `replay_of`: as of `Backend`."""
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
    """The share that an earlier start has kept. Raises ValueError for any other value."""
    if isinstance(value, bool) or value not in (0.0, *SHARES):
        raise ValueError(f"{value!r} is not a candidate fraction")
    return float(value)


def best_share(times: Mapping[float, float]) -> float:
    """The share of the least time, or 0 where none gains enough over 0. `times`: by share, 0 among them."""
    best = min(times, key=lambda share: times[share])
    return best if times[best] <= times[0.0] * (1 - _LEAST_GAIN) else 0.0


@torch.inference_mode()
def _times(
    experts: DividedExperts,
    layers: Sequence[RoutedWeights],
    hidden: int,
    batch_size: int,
    device: torch.device,
    replay_of: Callable[[Step], Step],
) -> dict[float, float]:
    """Seconds of the layers, by share."""
    x = torch.randn(batch_size, hidden, generator=torch.Generator().manual_seed(batch_size)).to(device)

    def queue() -> None:
        for index, layer in enumerate(layers):
            experts.submit(index, x, *layer.choose(layer.router(x)))
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
    for _ in range(_REPEATS):  # in turns, since a machine's memory is not equally fast all the time
        for share, step in steps.items():
            experts.set_pcie_share(share)
            begin = time.perf_counter()
            run(step)
            seconds[share].append(time.perf_counter() - begin)
    return {share: statistics.median(found) for share, found in seconds.items()}

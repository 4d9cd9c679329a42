"""Streams experts on devices without a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ballast.model.hybrid.copies import small_copy_kernels
from ballast.model.hybrid.copies.small_copies import carried
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.streaming.host_memory import HostExpertPart
from ballast.model.hybrid.streaming.streamed_experts import MakeSums
from ballast.model.hybrid.streaming.streamed_layers import StreamedLayers, StreamingDevice
from devkit.models.cpu_backend import copied

_EXCHANGE_BYTES = 8 << 20
"""Enough for the steps of all tests whose devices do not access each other: 2048 tokens of 512 numbers."""


def streaming_device(device: torch.device, make_sums: MakeSums, num_layers: int) -> StreamingDevice:
    """A device that computes this number of layers."""
    platform = platform_of(device)
    small_copy = carried(small_copy_kernels) if platform.pins else copied
    return StreamingDevice(device, make_sums, small_copy, num_layers, platform.active)


def streamed_on(
    layers: Sequence[Sequence[HostExpertPart]],
    make_sums: MakeSums,
    *devices: torch.device,
    speeds: Sequence[float] | None = None,
) -> StreamedLayers:
    """The layers' experts, streamed by `devices`, which compute the rest of about equally many layers."""
    bounds = [len(layers) * number // len(devices) for number in range(len(devices) + 1)]
    owners = [
        streaming_device(device, make_sums, end - begin)
        for device, begin, end in zip(devices, bounds, bounds[1:], strict=False)
    ]
    return StreamedLayers(layers, owners, speeds, exchange_bytes=_EXCHANGE_BYTES)

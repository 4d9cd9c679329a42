"""Sends activations from one device to another."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ballast.model.hybrid.platforms.interface import Platform


class DeviceSender:
    """Copies tensors of one device to others, on a stream of its own: on the default stream, CUDA would start a copy
    between two devices only after all work of both, including copies of experts that run ahead."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._stream = platform.new_stream()

    def send(self, tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        """The tensors on `device`; the same ones if they are there. Work queued later on the current streams of both
        devices waits for the copies, so that the tensors' memory may be freed at any time."""
        if device == self._platform.device:
            return list(tensors)
        compute = self._platform.current_stream()
        self._stream.wait_event(compute.record_event())
        with self._platform.on(self._stream):
            # torch orders the copies between this stream and the current stream of the other device.
            copies = [tensor.to(device, non_blocking=True) for tensor in tensors]
        compute.wait_event(self._stream.record_event())
        return copies

"""Sends activations from one device to others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from ballast.model.hybrid.copies.exchange_sizes import aligned
from ballast.model.hybrid.copies.small_copies import SmallCopy
from ballast.model.hybrid.platforms.interface import Platform
from ballast.model.hybrid.platforms.platform_of import platform_of


class DeviceSender:
    """Copies tensors of one device to others: directly, or through pinned host memory where the devices cannot access
    each other.

    It has a stream of its own: on the default stream, CUDA would start a copy between two devices only after all work
    of both, including copies of experts that run ahead. From host memory a kernel reads, because the copy engine would
    copy these experts first (`small_copies`)."""

    def __init__(
        self, platform: Platform, small_copy: SmallCopy, devices: Sequence[torch.device], max_bytes: int
    ) -> None:
        """`devices`: all receivers; the own device may be among them. `max_bytes`: the most bytes of one `send`, see
        `exchange_bytes`. Raises MemoryError if host memory is needed and refused."""
        self._platform = platform
        self._small_copy = small_copy
        self._stream = platform.new_stream()
        self._far = [each for each in devices if each != platform.device and not platform.reaches(each)]
        """Receivers that this device cannot access."""
        self._memory = torch.empty(0, dtype=torch.uint8)
        """Pinned host memory. It is allocated here, because an allocation while serving would stop all GPUs, and could
        fail."""
        if self._far:
            with platform.active():
                self._memory = torch.from_numpy(platform.host_memory()(max_bytes))
        self._read: list[Any] = []
        """Events after which `_memory` may be overwritten."""

    def send(self, tensors: Sequence[torch.Tensor], devices: Sequence[torch.device]) -> list[list[torch.Tensor]]:
        """The tensors, which are contiguous, on each of `devices`; the same ones where they are. Work queued later on
        the current streams of all devices waits for the copies, so that the tensors' memory may be freed at any
        time."""
        others = [device for device in devices if device != self._platform.device]
        if not others:
            return [list(tensors) for _ in devices]
        near = [device for device in others if device not in self._far]
        far = [device for device in others if device in self._far]
        compute = self._platform.current_stream()
        self._stream.wait_event(compute.record_event())
        sent = {self._platform.device: list(tensors)}
        with self._platform.on(self._stream):
            # torch orders the copies between this stream and the current streams of the other devices.
            sent |= {device: [tensor.to(device, non_blocking=True) for tensor in tensors] for device in near}
            staged = self._staged(tensors) if far else []
        written = self._stream.record_event()
        compute.wait_event(written)
        sent |= {device: self._fetched(staged, device, written) for device in far}
        return [sent[device] for device in devices]

    def _staged(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors in host memory, once this device's stream has copied them."""
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        *begins, end = itertools.accumulate(map(aligned, sizes), initial=0)
        if end > self._memory.numel():
            raise ValueError(
                f"{end} bytes do not fit into the {self._memory.numel()} that devices exchange in one copy"
            )
        for event in self._read:
            self._stream.wait_event(event)
        self._read = []
        parts = [self._memory[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
        staged = [part.view(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
        for host, tensor in zip(staged, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        return staged

    def _fetched(self, staged: Sequence[torch.Tensor], device: torch.device, written: Any) -> list[torch.Tensor]:
        """The staged tensors on another device, whose current stream reads them after `written`."""
        platform = platform_of(device)
        with platform.active():
            stream = platform.current_stream()
            stream.wait_event(written)
            copies = [torch.empty(host.shape, dtype=host.dtype, device=device) for host in staged]
            for host, copy in zip(staged, copies, strict=True):
                self._small_copy(host, copy)
            self._read.append(stream.record_event())
        return copies

"""Decode steps of a model on one device: they read their input from fixed memory and write logits to host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ballast._core import kernels
from ballast.model.batch import Batch
from ballast.model.hybrid.device import Device
from ballast.model.hybrid.experts.divided_experts import DividedExperts, RoutedLayers
from ballast.model.hybrid.forward_pass import ForwardPass
from ballast.model.hybrid.pieces import drained


class DecodeSteps:
    """Steps in which each token belongs to a different request. They are queued kernel by kernel, or replayed as
    captured graphs."""

    def __init__(self, device: Device, layers: ForwardPass, experts: DividedExperts) -> None:
        self._device = device
        self._layers = layers
        self._experts = experts
        self._warm_up: tuple[RoutedLayers, Sequence[int]] | None = None
        shape = (device.inputs.max_batch_size, layers.weights.num_sampled_ids)
        self._host_logits = torch.empty(shape, pin_memory=device.platform.pins)

    def warm_up(self, batch_sizes: Sequence[int], host: RoutedLayers, layers: Sequence[int]) -> None:
        """Run steps of padding. `host` replaces the CPU experts, and `layers` replaces all layers, also in the steps
        before a capture."""
        self._warm_up = host, layers
        for batch_size in batch_sizes:
            self._run_padding(batch_size, self._experts.over(host), layers)

    def capture(self, report: Callable[[float], None], *, finishes_later: bool) -> None:
        """See `Device.capture`."""
        self._device.capture(self._run_before_capture, self._queue_for_capture, report, finishes_later=finishes_later)

    def capture_next(self) -> bool:
        """See `DecodeGraphs.capture_next`; False if steps are not captured."""
        graphs = self._device.graphs
        return graphs is not None and graphs.capture_next(self._run_before_capture, self._queue_for_capture)

    def stage(self, batch: Batch) -> None:
        """Queue the copies of the step's tables behind the running step, if any."""
        device = self._device
        with device.decoding():
            device.inputs.send_tables(batch)
            device.attention.prepare(device.inputs.of_size(batch.token_ids.size).step)

    def queue(self, batch: Batch) -> torch.Tensor:
        """Queue the staged step; returns its logits in host memory, valid after the step has run."""
        device, size = self._device, batch.token_ids.size
        kernels.embed(self._layers.weights.embedding, batch.token_ids, device.inputs.host_rows(size))
        device.inputs.send_rows(size)
        self._experts.begin(size)
        if device.graphs is not None and device.graphs.holds(size):
            device.graphs.replay(size)
        else:
            self._queue(size, self._experts)
        return self._host_logits[:size]

    def _queue(self, batch_size: int, experts: DividedExperts, layers: Sequence[int] | None = None) -> None:
        """`layers`: see `ForwardPass`."""
        given = self._device.inputs.of_size(batch_size)
        logits = drained(self._layers.pieces(given.embedded, given.step, experts, is_prefill=False, layers=layers))
        self._host_logits[:batch_size].copy_(logits, non_blocking=True)

    def _run_before_capture(self, batch_size: int) -> None:
        experts, layers = self._experts, None
        if self._warm_up is not None:  # one layer of each kind launches all kernels, and no kernel waits for the CPU
            host, layers = self._warm_up
            experts = self._experts.over(host)
        self._run_padding(batch_size, experts, layers)

    def _queue_for_capture(self, batch_size: int) -> None:
        self._queue(batch_size, self._experts)

    def _run_padding(self, batch_size: int, experts: DividedExperts, layers: Sequence[int] | None = None) -> None:
        """Run a step of padding, which reads and writes only the null block. `layers`: see `ForwardPass`."""
        device = self._device
        device.platform.synchronize()
        with device.decoding():
            device.inputs.send_padding(batch_size)
            device.attention.prepare(device.inputs.of_size(batch_size).step)
            experts.begin(batch_size)
            self._queue(batch_size, experts, layers)
            experts.finish(lambda: None)
            device.wait()

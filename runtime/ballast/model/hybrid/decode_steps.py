"""Decode steps of a model: devices read their input from fixed memory, and the last one writes logits to host
memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from ballast._core import kernels
from ballast.model.batch import Batch
from ballast.model.hybrid.devices.all_devices import Devices
from ballast.model.hybrid.devices.step_rows import device_with
from ballast.model.hybrid.experts.divided_experts import DividedExperts, RoutedLayers
from ballast.model.hybrid.forward_pass import ForwardPass
from ballast.model.hybrid.layers.ngram_rows import NgramRows
from ballast.model.hybrid.steps.pieces import drained


class DecodeSteps:
    """Steps in which each token belongs to a different request. Each device's part is queued kernel by kernel, or
    replayed as a captured graph. Between the parts, the stream is copied from one device's fixed memory to the
    next's."""

    def __init__(
        self, devices: Devices, layers: ForwardPass, experts: DividedExperts, ngrams: NgramRows | None
    ) -> None:
        self._devices = devices
        self._ngrams = ngrams
        if ngrams is not None:
            self._ngram_device = devices[device_with(ngrams, devices)]
        self._layers = layers
        self._experts = experts
        self._warm_up: tuple[RoutedLayers, Sequence[int]] | None = None
        shape = (devices.max_batch_size, layers.weights.num_sampled_ids)
        self._host_logits = torch.empty(shape, pin_memory=devices[-1].platform.pins)

    def warm_up(self, batch_sizes: Sequence[int], host: RoutedLayers, layers: Sequence[int]) -> None:
        """Run steps of padding. `host` replaces the CPU experts, and `layers` replaces all layers, also in the steps
        before a capture."""
        self._warm_up = host, layers
        for batch_size in batch_sizes:
            self._run_padding(batch_size, self._experts.over(host), layers)

    def capture(self, report: Callable[[float], None], *, finishes_later: bool) -> None:
        """See `Device.capture`."""
        for number, device in enumerate(self._devices):
            within = partial(_report_within, report, number, len(self._devices))
            queue = partial(self._queue_for_capture, number)
            device.capture(self._run_before_capture, queue, within, finishes_later=finishes_later)

    def capture_next(self) -> bool:
        """Capture a part of a step that is left; returns whether any remains. See `DecodeGraphs.capture_next`."""
        return any(
            device.capture_next(self._run_before_capture, partial(self._queue_for_capture, number))
            for number, device in enumerate(self._devices)
        )

    def stage(self, batch: Batch) -> None:
        """Queue the copies of the step's tables behind the running step, if any."""
        with self._devices.decoding():
            for device in self._devices:
                device.stage(batch)

    def queue(self, batch: Batch) -> torch.Tensor:
        """Queue the staged step; returns its logits in host memory, valid after the step has run."""
        first, size = self._devices[0], batch.token_ids.size
        if self._ngrams is not None:
            own = self._ngram_device
            self._ngrams.read(batch, own.inputs.host_ngrams(size))
            with own.active():
                own.inputs.send_ngrams(size)
        kernels.embed(self._layers.weights.embedding, batch.token_ids, first.inputs.host_rows(size))
        with first.active():
            first.inputs.send_rows(size)
        self._experts.begin(size)
        for number, device in enumerate(self._devices):
            self._receive(number, size)
            with device.active():
                device.inputs.send_ids(batch.token_ids)
            if not device.replay(size):
                with device.active():
                    self._queue_part(number, size, self._experts)
        return self._host_logits[:size]

    def _receive(self, number: int, batch_size: int) -> None:
        """Queue the copy of the stream to the device with this number from the one before it, if there is one."""
        if number > 0:
            before, own = (self._devices[at].inputs.of_size(batch_size).stream for at in (number - 1, number))
            own.copy_(before, non_blocking=True)

    def _queue_part(
        self, number: int, batch_size: int, experts: DividedExperts, layers: Sequence[int] | None = None
    ) -> None:
        """Queue the part of the device with this number, which is active. `layers`: see `ForwardPass`."""
        given = self._devices[number].inputs.of_size(batch_size)
        rows = given.stream if number > 0 else given.embedded
        result = drained(self._layers.part(number, rows, given.step, experts, is_prefill=False, layers=layers))
        if number == len(self._devices) - 1:
            self._host_logits[:batch_size].copy_(result, non_blocking=True)
        elif result.data_ptr() != given.stream.data_ptr():
            given.stream.copy_(result)

    def _run_before_capture(self, batch_size: int) -> None:
        experts, layers = self._experts, None
        if self._warm_up is not None:  # one layer of each kind launches all kernels, and no kernel waits for the CPU
            host, layers = self._warm_up
            experts = self._experts.over(host)
        self._run_padding(batch_size, experts, layers)

    def _queue_for_capture(self, number: int, batch_size: int) -> None:
        self._queue_part(number, batch_size, self._experts)

    def _run_padding(self, batch_size: int, experts: DividedExperts, layers: Sequence[int] | None = None) -> None:
        """Run a step of padding, which reads and writes only the null block. `layers`: see `ForwardPass`. Devices with
        none of them do nothing: what they launch would be compiled for the device that is being warmed up."""
        numbers = [
            number
            for number, device in enumerate(self._devices)
            if layers is None or not set(layers).isdisjoint(device.layers)
        ]
        self._devices.synchronize()
        with self._devices.decoding():
            for number in numbers:
                self._devices[number].stage_padding(batch_size)
            with experts.uncounted():
                experts.begin(batch_size)
                for number in numbers:
                    self._receive(number, batch_size)
                    with self._devices[number].active():
                        self._queue_part(number, batch_size, experts, layers)
                experts.finish(lambda: None)
            self._devices.wait()


def _report_within(report: Callable[[float], None], number: int, count: int, done: float) -> None:
    report((number + done) / count)

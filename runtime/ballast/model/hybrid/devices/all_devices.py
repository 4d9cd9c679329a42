"""The devices of a model as a whole. Each computes a contiguous range of layers, one device after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import overload

from ballast.errors import EngineDeadError, OutOfMemoryError
from ballast.model.batch import Batch
from ballast.model.hybrid.devices.device import Device
from ballast.model.hybrid.faults.device_errors import DeviceFullError
from ballast.model.hybrid.faults.device_wait import Event, Events
from ballast.model.hybrid.steps.step import Step


class Devices(Sequence[Device]):
    """In the order of their layers."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = tuple(devices)

    def __len__(self) -> int:
        return len(self._devices)

    @overload
    def __getitem__(self, index: int) -> Device: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Device]: ...

    def __getitem__(self, index: int | slice) -> Device | Sequence[Device]:
        return self._devices[index]

    @property
    def max_batch_size(self) -> int:
        """Maximum requests of a decode step."""
        return min(device.inputs.max_batch_size for device in self)

    @property
    def num_graphs(self) -> int:
        """Number of batch sizes for which decode steps are captured on all devices."""
        return min(device.num_graphs for device in self)

    @property
    def has_graphs(self) -> bool:
        """Whether decode steps are captured."""
        return any(device.graphs is not None for device in self)

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """A context in which work of each device is queued on its `decode_stream`."""
        with ExitStack() as stack:
            for device in reversed(self):  # the first device is then the current one
                stack.enter_context(device.decoding())
            yield

    @contextmanager
    def explained_when_full(self) -> Iterator[None]:
        """A context that raises EngineDeadError with the limit and the use of device memory when a memory is full."""
        try:
            yield
        except DeviceFullError as error:
            raise EngineDeadError.because_of(OutOfMemoryError(str(error))) from error

    def prepared(self, batch: Batch, *, is_prefill: bool) -> list[Step]:
        """The batch's tables on each device; see `Device.prepared`."""
        return [device.prepared(batch, is_prefill=is_prefill) for device in self]

    def event(self) -> Event:
        """An event that happens after all work queued so far on the current stream of each device."""
        return Events([device.event() for device in self])

    def synchronize(self) -> None:
        """Wait until all work of all streams is done."""
        for device in self:
            device.platform.synchronize()

    def wait(self) -> None:
        """Wait for the current stream of each device."""
        for device in self:
            device.wait()

    def fetch_num_saturated(self) -> None:
        """See `Device.fetch_num_saturated`."""
        for device in self:
            device.fetch_num_saturated()

    def report_saturated(self) -> None:
        """See `Device.report_saturated`."""
        for device in self:
            device.report_saturated()

    def use_compiled(self) -> None:
        """Use the kernels that have been compiled since. No step that they compute may have begun."""
        for device in self:
            with device.active():
                device.late.use_compiled()

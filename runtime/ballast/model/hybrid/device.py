"""One device of a model: its streams and graphs, its memory, and its share of the model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ballast.errors import EngineDeadError, OutOfMemoryError
from ballast.host.vram import VramLimit, why_full
from ballast.model.batch import Batch
from ballast.model.hybrid.attention.device_kv_pool import DeviceKvPool, LayerCache
from ballast.model.hybrid.compiling.late_kernels import LateKernels
from ballast.model.hybrid.device_wait import Event
from ballast.model.hybrid.experts.divided_experts import LayerOnDevice
from ballast.model.hybrid.graphs.decode_graphs import DecodeGraphs
from ballast.model.hybrid.graphs.decode_inputs import DecodeInputs
from ballast.model.hybrid.layers.attention_layer import AttentionLayer
from ballast.model.hybrid.platforms.interface import Platform, Stream
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.step import Step

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True, eq=False)
class Device:
    """Computes a range of a model's layers. Weights of its layers are `HybridWeights`."""

    platform: Platform
    layers: range
    """The layers that this device computes."""
    vram: VramLimit | None
    """The memory limit, for messages; None: no limit."""
    kv: DeviceKvPool
    """The KV cache of its layers."""
    resident: Mapping[int, LayerOnDevice]
    """By index of the routed layer: the experts in device memory, and those that the device reads from host memory."""
    inputs: DecodeInputs
    attention: AttentionLayer[Any]
    """Attention of the model's kind, for the weights of this device's layers."""
    prefill_attention: AttentionLayer[Any]
    """Attention of long prompts, which are computed concurrently with the decode lane's steps."""
    pointwise: Pointwise
    late: LateKernels
    """Kernels for prompts that may still be compiling."""
    graphs: DecodeGraphs | None = field(default=None, init=False)
    """The captured decode steps; None if steps are not captured."""
    decode_stream: Stream = field(init=False)
    """Work on this stream has priority over the prefill lane, which uses the default stream."""
    _num_saturated: torch.Tensor = field(init=False)
    _has_saturated: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.decode_stream = self.platform.new_stream(priority=-1)
        self._num_saturated = torch.zeros((), dtype=torch.int64, pin_memory=self.platform.pins)

    @property
    def torch_device(self) -> torch.device:
        """The torch device."""
        return self.platform.device

    @property
    def num_gpu_experts(self) -> int:
        """Number of experts in device memory, over all layers."""
        return sum(layer.num_gpu_experts for layer in self.resident.values())

    @property
    def num_graphs(self) -> int:
        """Number of batch sizes for which decode steps are captured."""
        return 0 if self.graphs is None else self.graphs.count

    @property
    def num_saturated(self) -> int:
        """Count of numbers that were too large for the cache, as of the last `fetch_num_saturated`."""
        return int(self._num_saturated)

    def cache(self, layer: int) -> LayerCache:
        """The cache of a layer, which must be one of `layers`."""
        return self.kv.layers[self.layers.index(layer)]

    def attention_for(self, *, is_prefill: bool) -> AttentionLayer[Any]:
        """Attention for steps of the prefill lane, or for other steps."""
        return self.prefill_attention if is_prefill else self.attention

    def prepared(self, batch: Batch, *, is_prefill: bool) -> Step:
        """The batch's tables on the device, sliced and planned for `attention_for(is_prefill=is_prefill)`."""
        return self.attention_for(is_prefill=is_prefill).prepared(batch, self.torch_device)

    def decoding(self) -> AbstractContextManager[object]:
        """A context in which work is queued on `decode_stream`."""
        return self.platform.on(self.decode_stream)

    def event(self) -> Event:
        """An event that happens after all work queued so far on the current stream."""
        event: Event = self.platform.current_stream().record_event()
        return event

    def wait(self) -> None:
        """Wait for the current stream."""
        self.platform.current_stream().synchronize()

    def capture(
        self,
        run: Callable[[int], None],
        queue: Callable[[int], None],
        report: Callable[[float], None],
        *,
        finishes_later: bool,
    ) -> None:
        """Capture decode steps as graphs, and use them from now on. For parameters and errors see
        `DecodeGraphs.capture`."""
        self.graphs = None  # frees the memory of graphs captured before
        graphs = DecodeGraphs(self.decode_stream)
        graphs.capture(self.inputs.max_batch_size, run, queue, report, finishes_later=finishes_later)
        self.graphs = graphs

    def fetch_num_saturated(self) -> None:
        """Queue the copy of the count of numbers that were too large for the cache to the host."""
        self._num_saturated.copy_(self.pointwise.num_saturated, non_blocking=True)

    def report_saturated(self) -> None:
        """Log a warning once if numbers were too large for the cache. The copy of the count must be complete."""
        if not self._has_saturated and self._num_saturated:
            self._has_saturated = True
            largest = torch.finfo(self.kv.dtype).max
            log.warning("numbers that are too large for the cache are clamped", extra={"largest": largest})

    @contextmanager
    def explained_when_full(self) -> Iterator[None]:
        """A context that raises EngineDeadError with the limit and the use of device memory when the memory is full."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            full = OutOfMemoryError(why_full(str(self.torch_device), self.vram, error))
            raise EngineDeadError.because_of(full) from error

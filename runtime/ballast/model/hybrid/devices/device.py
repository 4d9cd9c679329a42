"""One device of a model: its streams and graphs, its memory, and its share of the model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch

from ballast.host.vram import VramLimit
from ballast.model.batch import Batch
from ballast.model.hybrid.attention.device_kv_pool import DeviceKvPool, LayerCache
from ballast.model.hybrid.compiling.late_kernels import LateKernels
from ballast.model.hybrid.compressed.compression import CompressedCache
from ballast.model.hybrid.experts.divided_experts import DeviceExperts
from ballast.model.hybrid.faults.device_errors import computing_on
from ballast.model.hybrid.faults.device_wait import Event
from ballast.model.hybrid.graphs.decode_graphs import DecodeGraphs
from ballast.model.hybrid.graphs.decode_inputs import DecodeInputs
from ballast.model.hybrid.layers.attention_layers import AttentionLayers
from ballast.model.hybrid.layers.ngram_embedding import NgramEmbedding
from ballast.model.hybrid.platforms.interface import Platform, Stream
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.recurrent.state_pool import DeviceStatePool, EntryStates, LayerStates, NgramStates
from ballast.model.hybrid.residual.residual import Residual
from ballast.model.hybrid.steps.step import Step

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
    states: DeviceStatePool
    """The states of its recurrent layers."""
    experts: DeviceExperts
    """The experts of its routed layers in device memory, and those that the device reads from host memory."""
    inputs: DecodeInputs
    attention: AttentionLayers
    """Attention of the model's kind, for the weights of this device's layers."""
    prefill_attention: AttentionLayers
    """Attention of long prompts, which are computed concurrently with the decode lane's steps."""
    pointwise: Pointwise
    residual: Residual
    embed_ngrams: NgramEmbedding
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
    def num_graphs(self) -> int:
        """Number of batch sizes for which decode steps are captured."""
        return 0 if self.graphs is None else self.graphs.count

    @property
    def num_saturated(self) -> int:
        """Count of numbers that were too large for the cache, as of the last `fetch_num_saturated`."""
        return int(self._num_saturated)

    def cache(self, layer: int) -> LayerCache | LayerStates | CompressedCache:
        """The cache or the states of a layer, which must be one of `layers`."""
        index = self.layers.index(layer)
        states, kept = self.states.layers[index], self.kv.layers[index]
        if isinstance(states, LayerStates | NgramStates):
            return LayerStates(states.recurrent, states.inputs)
        if isinstance(states, EntryStates):
            return CompressedCache(kept.rows, kept.index_keys, states)
        return kept if states is None else kept._replace(incomplete_pools=states.incomplete)

    def ngram_inputs(self, layer: int) -> torch.Tensor:
        """The states of a layer's n-gram embedding; see `NgramStates`."""
        states = self.states.layers[self.layers.index(layer)]
        assert isinstance(states, NgramStates)
        return states.ngram_inputs

    def attention_for(self, *, is_prefill: bool) -> AttentionLayers:
        """Attention for steps of the prefill lane, or for other steps."""
        return self.prefill_attention if is_prefill else self.attention

    def prepared(self, batch: Batch, *, is_prefill: bool) -> Step:
        """The batch's tables on the device, sliced and planned for `attention_for(is_prefill=is_prefill)`."""
        with self.active():
            return self.attention_for(is_prefill=is_prefill).prepared(batch, self.torch_device)

    def stage(self, batch: Batch) -> None:
        """Queue the copies of a decode step's tables behind the running step, if any."""
        with self.active():
            self.inputs.send_tables(batch)
            self.attention.prepare(self.inputs.of_size(batch.token_ids.size).step)

    def stage_padding(self, batch_size: int) -> None:
        """As `stage`, for a decode step of padding."""
        with self.active():
            self.inputs.send_padding(batch_size)
            self.attention.prepare(self.inputs.of_size(batch_size).step)

    def replay(self, batch_size: int) -> bool:
        """Queue the captured part of a decode step on the current stream; returns whether it is captured."""
        if self.graphs is None or not self.graphs.holds(batch_size):
            return False
        with self.active():
            self.graphs.replay(batch_size)
        return True

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
        """Capture this device's part of decode steps as graphs, and use them from now on. For parameters and errors see
        `DecodeGraphs.capture`."""
        self.graphs = None  # frees the memory of graphs captured before
        graphs = DecodeGraphs(self.decode_stream)
        with self.platform.active():
            graphs.capture(self.inputs.max_batch_size, run, queue, report, finishes_later=finishes_later)
        self.graphs = graphs

    def capture_next(self, run: Callable[[int], None], queue: Callable[[int], None]) -> bool:
        """See `DecodeGraphs.capture_next`; False if steps are not captured."""
        if self.graphs is None:
            return False
        with self.platform.active():
            return self.graphs.capture_next(run, queue)

    def fetch_num_saturated(self) -> None:
        """Queue the copy of the count of numbers that were too large for the cache to the host."""
        self._num_saturated.copy_(self.pointwise.num_saturated, non_blocking=True)

    def report_saturated(self) -> None:
        """Log a warning once if numbers were too large for the cache. The copy of the count must be complete."""
        if not self._has_saturated and self._num_saturated:
            self._has_saturated = True
            log.warning("numbers that are too large for the cache are clamped", extra={"largest": self.kv.largest})

    def active(self) -> AbstractContextManager[None]:
        """A context in which this device computes; see `computing_on`."""
        return computing_on(self.platform, self.vram)

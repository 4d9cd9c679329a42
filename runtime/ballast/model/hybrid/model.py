"""A model with attention and shared weights on one device and routed experts on the CPU.

The same transformer as csrc/model/transformer.cpp, on torch tensors. Shapes: T tokens, D hidden. Activations are
float32 throughout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.errors import EngineDeadError, OutOfMemoryError
from ballast.host.vram import VramLimit, why_full
from ballast.model.batch import Batch, padding
from ballast.model.device_counts import DeviceCounts
from ballast.model.hybrid.attention.device_kv_pool import DeviceKvPool
from ballast.model.hybrid.compiling.late_kernels import LateKernels
from ballast.model.hybrid.device_wait import Event, wait_for
from ballast.model.hybrid.experts.divided_experts import DividedExperts, RoutedLayers
from ballast.model.hybrid.experts.joint_experts import JointExperts
from ballast.model.hybrid.graphs.decode_graphs import DecodeGraphs
from ballast.model.hybrid.graphs.decode_inputs import DecodeInputs
from ballast.model.hybrid.layers.attention_layer import AttentionLayer
from ballast.model.hybrid.layers.embedding import Embedding
from ballast.model.hybrid.pieces import Pieces, drained
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.prefill_pass import PrefillPass
from ballast.model.hybrid.slices import PRODUCT_TOKENS, even_bounds
from ballast.model.hybrid.step import Step
from ballast.model.hybrid.streaming.host_memory import PinnedMemory
from ballast.model.hybrid.streaming.streamed_experts import StreamedExperts
from ballast.model.hybrid.weights import HybridWeights, LayerWeights, MlpWeights
from ballast.model.runner import Runner
from ballast.model.spec import ModelSpec
from ballast.model.switched_off import SwitchedOff
from ballast.model.transformer import ALIVE_EVERY_S

log = logging.getLogger(__name__)

EMBEDDED_AT_ONCE = 2048
"""Tokens of a prompt that are embedded at a time: a few milliseconds of some threads."""


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """The experts in host memory, and the ways in which steps use them."""

    divided: DividedExperts
    """Each layer's experts are divided between the CPU and the device."""
    streamed: StreamedExperts | None
    """In long steps, all experts go through the device; None: they never do."""
    joint: JointExperts | None
    """In steps of medium length, some experts go through the device while the CPU computes the others; None: they never
    do."""
    pinned: PinnedMemory
    """What is page-locked of their memory."""
    pool: kernels.ThreadPool
    """Computes the CPU's part."""


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """What a step uses on the device besides weights and routed experts."""

    device: torch.device
    attention: AttentionLayer[Any]
    """Of the model's kind, for the weights of its layers."""
    prefill_attention: AttentionLayer[Any]
    """Attention of long prompts, which are computed concurrently with the decode lane's steps."""
    pointwise: Pointwise
    kv: DeviceKvPool
    inputs: DecodeInputs
    late: LateKernels
    """Kernels of prompts that may still be compiled."""


class HybridModel(Runner):
    """A loaded model and its KV pool, on a CPU and a GPU."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: HybridWeights,
        experts: RoutedExperts,
        parts: DeviceParts,
        max_step_tokens: int,
        vram: VramLimit | None,
        off: SwitchedOff,
    ) -> None:
        """`max_step_tokens`: most tokens of a step. `vram` and `off` are for messages: the limit of the device's
        memory, and what is switched off."""
        divided, streamed, device, inputs = experts.divided, experts.streamed, parts.device, parts.inputs
        self.vocabulary = spec.vocab_size
        self._spec = spec
        self._vram = vram
        self._off = off
        self._routed_index = {layer: index for index, layer in enumerate(spec.routed_layers)}
        self._weights = weights
        self._embedding = Embedding(weights.embedding)
        self._experts = divided
        self._pinned = experts.pinned
        self.pool: kernels.ThreadPool = experts.pool
        self.streamed = streamed
        self._long_step_experts = divided if streamed is None else divided.over(streamed)
        self._joint = experts.joint
        self._joint_experts = None if experts.joint is None else divided.over(experts.joint)
        self._has_joint_step = False
        """Whether a joint step of the decode lane has begun, whose logits have not been asked for."""
        self._kv = parts.kv
        self._inputs = inputs
        self._device = device
        self._platform = platform_of(device)
        self._attention = parts.attention
        self._prefill_attention = parts.prefill_attention
        self._late = parts.late
        self._pointwise = parts.pointwise
        self._graphs: DecodeGraphs | None = None
        self._warm_up: tuple[RoutedLayers, Sequence[int]] | None = None
        # What is queued on it gets its turn on the device before the prefill lane's work, which is on the default
        # stream.
        self._decode_stream = self._platform.new_stream(priority=-1)
        self._has_prefill_lane = False
        self._prefill_pass: PrefillPass | None = None
        # The decode lane's step that is queued: what computes its experts, where its logits arrive, and which of their
        # rows to return.
        self._at_work = divided
        self._pending = torch.empty(0)
        self._queued = self._event()
        self._wanted_rows: NDArray[np.int64] | slice = slice(None)
        self._num_streamed_steps = 0
        self._num_saturated = torch.zeros((), dtype=torch.int64, pin_memory=self._platform.pins)
        self._has_saturated = False
        shape = (inputs.max_batch_size, weights.num_sampled_ids)
        self._host_logits = torch.empty(shape, pin_memory=self._platform.pins)
        self._host_rows, self._host_prefill_rows = (  # of either lane
            torch.empty((max_step_tokens, spec.hidden), pin_memory=self._platform.pins) for _ in range(2)
        )

    @torch.inference_mode()
    def warm_up(self, warmup_sizes: Sequence[int], host: RoutedLayers, layers: Sequence[int]) -> None:
        """Run steps of padding, so that every kernel has been used once: a first use may take longer than a layer may.

        `warmup_sizes`: tokens of a prompt's step, and requests of a decode step. `host` stands in for the CPU's
        experts. `layers`: the ascending layers that steps go through."""
        idle = self._experts.over(host)
        self._warm_up = host, layers
        longest = max(warmup_sizes)
        for num_tokens in warmup_sizes:
            rows = torch.ones((num_tokens, self._spec.hidden), device=self._device)
            batch = padding(num_tokens, self._kv.block_tokens)
            if num_tokens < longest:  # whose logits may be too many for the memory that is left
                batch = replace(batch, sampled=np.arange(num_tokens))
            step = self._prefill_attention.prepared(batch, self._device)
            idle.begin(num_tokens)
            drained(self._pieces(rows, step, idle, self._prefill_attention, layers))
            self._wait_for_device()
        most = self._inputs.max_batch_size
        for batch_size in sorted({most, *(count for count in warmup_sizes if count < most)}):
            self._run_padding(batch_size, idle, layers)

    @torch.inference_mode()
    def capture_decode(self, report: Callable[[float], None], *, finishes_later: bool = False) -> None:
        """Capture decode steps as graphs, and use them from now on; `report` gets the share captured, 0…1.
        `finishes_later`: leave rare batch sizes to `use_spare_time`. Raises as `DecodeGraphs.capture` does."""
        self._graphs = None  # frees the memory of graphs captured before
        graphs = DecodeGraphs(self._decode_stream)
        graphs.capture(
            self._inputs.max_batch_size,
            self._run_before_capture,
            self._queue_for_capture,
            report,
            finishes_later=finishes_later,
        )
        self._graphs = graphs

    @torch.inference_mode()
    def use_spare_time(self) -> bool:
        """See `Runner`."""
        if self._prefill_pass is not None:
            return False
        self._late.use_compiled()
        if self._graphs is None:
            return False
        return self._graphs.capture_next(self._run_before_capture, self._queue_for_capture)

    def set_prefill_attention(self, attention: AttentionLayer[Any]) -> None:
        """Compute long prompts by `attention` from the next one on. No pass of the prefill lane may be in flight."""
        assert self._prefill_pass is None
        self._prefill_attention = attention

    def set_pcie_share(self, share: float) -> None:
        """Set the share, 0…1, of a decode step's experts in host memory that the device reads. Captured steps are
        captured again, since a share of 0 queues nothing. Raises EngineDeadError."""
        self._experts.set_pcie_share(share)
        if self._graphs is not None:
            self.capture_decode(lambda _: None)

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Write the batch's KV; return logits [sampled, vocabulary], valid until the next step."""
        self.queue(batch, alive, is_staged=False)
        return self.logits(alive)

    @property
    def is_asynchronous(self) -> bool:
        """See `Runner`."""
        return True

    @torch.inference_mode()
    def queue(self, batch: Batch, alive: Callable[[], None], *, is_staged: bool) -> None:
        """See `Runner`. On a GPU, one call queues the whole step. Raises EngineDeadError when its memory is
        full."""
        self._wanted_rows = slice(None)
        with self._explained_when_full(), self._platform.on(self._decode_stream):
            self._experts.leave_bus(self._prefill_pass is not None and self.streamed is not None)
            if batch.is_decode and batch.token_ids.size <= self._inputs.max_batch_size:
                self._pending = self._decode(batch, is_staged=is_staged)
                if batch.sampled.size < batch.token_ids.size:
                    self._wanted_rows = batch.sampled
            else:
                self._pending = self._prefill(batch, alive)
            self._queued = self._event()

    @torch.inference_mode()
    def stage(self, batch: Batch) -> None:
        """See `Runner`. The next step's tables are queued behind the step that runs."""
        with self._platform.on(self._decode_stream):
            self._inputs.send_tables(batch)
            self._attention.prepare(self._inputs.of_size(batch.token_ids.size).step)

    def is_done(self, timeout_s: float) -> bool:
        """See `Runner`."""
        if self._at_work.has_host:
            return self._at_work.is_done(timeout_s)
        if not self._queued.query():
            time.sleep(timeout_s)
        return self._queued.query()

    def logits(self, alive: Callable[[], None]) -> NDArray[np.float32]:
        """See `Runner`."""
        with self._platform.on(self._decode_stream):
            self._num_saturated.copy_(self._pointwise.num_saturated, non_blocking=True)
            self._at_work.finish(alive)
            self._wait()
            if not self._has_saturated and self._num_saturated:
                self._has_saturated = True
                largest = torch.finfo(self._kv.dtype).max
                log.warning("numbers that are too large for the cache are clamped", extra={"largest": largest})
            rows: NDArray[np.float32] = self._pending.cpu().numpy()[self._wanted_rows]
        self._has_joint_step = False
        return rows

    @property
    def can_prefill_beside(self) -> bool:
        """See `Runner`: whether the device computes all experts of a long step."""
        return self.long_steps_pay

    def open_prefill_lane(self) -> None:
        """See `Runner`. Steps are counted from now on."""
        self._has_prefill_lane = True
        self._num_streamed_steps = 0

    @property
    def joint_tokens(self) -> tuple[int, int] | None:
        """See `Runner`."""
        return None if self._joint is None else (self._joint.split.from_tokens, self._joint.split.to_tokens)

    @property
    def can_begin_prefill(self) -> bool:
        """See `Runner`: a joint step uses the buffers and the bus that a pass of the prefill lane needs."""
        return not self._has_joint_step

    @torch.inference_mode()
    def begin_prefill(self, batch: Batch) -> None:
        """See `Runner`. Raises EngineDeadError when the device's memory is full, here and below."""
        assert self.can_begin_prefill, "a joint step is in flight"
        with self._explained_when_full():
            self._late.use_compiled()
            step = self._prefill_attention.prepared(batch, self._device)
            self._num_streamed_steps += self.streamed is not None
            self._prefill_pass = PrefillPass(self._prefill_pieces(batch, step), self._event)

    @torch.inference_mode()
    def advance_prefill(self, alive: Callable[[], None]) -> bool:
        """See `Runner`."""
        assert self._prefill_pass is not None
        with self._explained_when_full():
            is_over = self._prefill_pass.advance(alive)
        if is_over and self._prefill_pass.is_cancelled:
            self._prefill_pass = None
        return is_over

    @property
    def is_prefill_ahead(self) -> bool:
        """See `Runner`."""
        return self._prefill_pass is None or self._prefill_pass.is_ahead

    def cancel_prefill(self) -> None:
        """See `Runner`."""
        assert self._prefill_pass is not None
        self._prefill_pass.is_cancelled = True

    def prefill_logits(self) -> NDArray[np.float32]:
        """See `Runner`."""
        assert self._prefill_pass is not None
        self._long_step_experts.finish(lambda: None)
        rows: NDArray[np.float32] = self._prefill_pass.logits.cpu().numpy()
        self._prefill_pass = None
        return rows

    def abandon_prefill(self) -> None:
        """See `Runner`. Raises as `device_wait.wait_for`."""
        self._prefill_pass = None
        if self.streamed is not None:
            self.streamed.wait()
        wait_for([self._event()], lambda: None)

    def _event(self) -> Event:
        """After what is queued on the current stream so far."""
        event: Event = self._platform.current_stream().record_event()
        return event

    @contextmanager
    def _explained_when_full(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            full = OutOfMemoryError(why_full(str(self._device), self._vram, error))
            raise EngineDeadError.because_of(full) from error

    @property
    def expert_bytes_read(self) -> int:
        """Bytes of routed experts' weights read from host memory so far, by the CPU and over PCIe."""
        return self._experts.host_bytes_read + self.expert_bytes_read_over_pcie

    @property
    def expert_bytes_read_over_pcie(self) -> int:
        """Of `expert_bytes_read`, the bytes that the device has read."""
        return self._experts.pcie_bytes_read + (0 if self.streamed is None else self.streamed.bytes_read)

    @property
    def device_counts(self) -> DeviceCounts:
        """The device's counters and settings."""
        num_graphs = 0 if self._graphs is None else self._graphs.count
        return DeviceCounts(
            self.expert_bytes_read_over_pcie,
            self._num_streamed_steps,
            num_graphs,
            self._experts.num_gpu_experts,
            self._experts.pcie_share,
            int(self._num_saturated),
            self._off.reasons,
        )

    @property
    def expert_uses(self) -> NDArray[np.int64]:
        """[routed layers, E]: for how many tokens the CPU has computed each expert so far."""
        routed = [layer.routed.experts for layer in self._weights.layers if layer.routed is not None]
        none = np.zeros(self._spec.routing.num_experts, np.int64)
        return np.stack([none if experts is None else experts.uses for experts in routed])

    @property
    def kv_tensors(self) -> Sequence[torch.Tensor]:
        """The KV cache, layer by layer: each [slots, its width]."""
        return self._kv.tensors

    @property
    def pinned_bytes(self) -> int:
        """Bytes of the experts' host memory that are page-locked for CUDA."""
        return self._pinned.num_bytes

    @property
    def streams_from_tokens(self) -> int | None:
        """Fewest tokens of a step whose experts are streamed through the device; None: they never are."""
        return None if self.streamed is None else self.streamed.from_tokens

    @property
    def long_steps_pay(self) -> bool:
        """Whether the device computes all experts of a long step."""
        return self.streamed is not None or not self._experts.has_host

    def _experts_for(self, num_tokens: int) -> DividedExperts:
        """The implementation of experts for a decode-lane step in which a request has several tokens."""
        if not self._has_prefill_lane and self.streamed is not None and num_tokens >= self.streamed.from_tokens:
            self._num_streamed_steps += 1
            return self._long_step_experts
        if self._joint_experts is not None and self._prefill_pass is None and self._joint_pays(num_tokens):
            self._has_joint_step = True
            return self._joint_experts
        return self._experts

    def _joint_pays(self, num_tokens: int) -> bool:
        return self._joint is not None and self._joint.split.pays(num_tokens)

    def _prefill(self, batch: Batch, alive: Callable[[], None]) -> torch.Tensor:
        """Queue a step in which a request has several tokens: logits on the device."""
        if self._prefill_pass is None:
            self._late.use_compiled()
        self._at_work = self._experts_for(batch.token_ids.size)
        is_long = self._at_work is self._long_step_experts and not self._has_prefill_lane
        attention = self._prefill_attention if is_long else self._attention
        step = attention.prepared(batch, self._device)
        embedded = self._embedded(batch)
        self._at_work.begin(len(embedded))
        last_report_s = time.monotonic()

        def report() -> None:
            nonlocal last_report_s
            if time.monotonic() - last_report_s >= ALIVE_EVERY_S:
                alive()
                last_report_s = time.monotonic()

        return drained(self._pieces(embedded, step, self._at_work, attention), report)

    def _prefill_pieces(self, batch: Batch, step: Step) -> Pieces[torch.Tensor]:
        """A step of the prefill lane. Its tokens too are embedded in pieces, while the first experts are copied."""
        experts = self._long_step_experts
        num_tokens = batch.token_ids.size
        experts.begin(num_tokens)
        rows = self._host_prefill_rows[:num_tokens]
        embedded = torch.empty_like(rows, device=self._device)
        for begin in range(0, num_tokens, EMBEDDED_AT_ONCE):
            piece = slice(begin, begin + EMBEDDED_AT_ONCE)
            self._embedding.read(batch.token_ids[piece], rows[piece].numpy())
            embedded[piece].copy_(rows[piece], non_blocking=True)
            yield
        return (yield from self._pieces(embedded, step, experts, self._prefill_attention))

    def _embedded(self, batch: Batch) -> torch.Tensor:
        """The batch's embedded tokens on the device, float32 [T, D]; to be queued before gigabytes of streamed experts,
        which share the bus."""
        rows = self._host_rows[: batch.token_ids.size]
        self._embedding.read(batch.token_ids, rows.numpy())
        return rows.to(self._device, non_blocking=True, copy=True)

    def _decode(self, batch: Batch, *, is_staged: bool) -> torch.Tensor:
        """Queue a step whose tokens are requests of their own; the logits in host memory, once the step has run."""
        size = batch.token_ids.size
        if not is_staged:
            self.stage(batch)
        kernels.embed(self._weights.embedding, batch.token_ids, self._inputs.host_rows(size))
        self._inputs.send_rows(size)
        self._at_work = self._experts
        self._experts.begin(size)
        if self._graphs is not None and self._graphs.holds(size):
            self._graphs.replay(size)
        else:
            self._queue_decode(size, self._experts)
        return self._host_logits[:size]

    def _queue_decode(self, batch_size: int, experts: DividedExperts, layers: Sequence[int] | None = None) -> None:
        """Queue a decode step, from its input in fixed memory to logits in host memory. `layers`: as of `_pieces`."""
        given = self._inputs.of_size(batch_size)
        logits = drained(self._pieces(given.embedded, given.step, experts, self._attention, layers))
        self._host_logits[:batch_size].copy_(logits, non_blocking=True)

    def _run_before_capture(self, batch_size: int) -> None:
        experts, layers = self._experts, None
        if self._warm_up is not None:  # one layer of each kind launches all kernels, and nothing waits for the CPU
            host, layers = self._warm_up
            experts = self._experts.over(host)
        self._run_padding(batch_size, experts, layers)

    def _queue_for_capture(self, batch_size: int) -> None:
        self._queue_decode(batch_size, self._experts)

    def _run_padding(self, batch_size: int, experts: DividedExperts, layers: Sequence[int] | None = None) -> None:
        """Run a decode step of padding, which reads and writes the null block only. `layers`: as of `_pieces`."""
        self._wait_for_device()
        with self._platform.on(self._decode_stream):
            self._inputs.send_padding(batch_size)
            self._attention.prepare(self._inputs.of_size(batch_size).step)
            experts.begin(batch_size)
            self._queue_decode(batch_size, experts, layers)
            experts.finish(lambda: None)
            self._wait()

    def _wait(self) -> None:
        """For the current stream."""
        self._platform.current_stream().synchronize()

    def _wait_for_device(self) -> None:
        self._platform.synchronize()

    def _pieces(
        self,
        stream: torch.Tensor,
        step: Step,
        experts: DividedExperts,
        attention: AttentionLayer[Any],
        layers: Sequence[int] | None = None,
    ) -> Pieces[torch.Tensor]:
        """Logits [sampled, vocabulary] of embedded tokens [T, D], which are overwritten. `layers`: those to go through,
        ascending; None: all."""
        weights = self._weights.layers
        norms = [*(layer.attention.norm for layer in weights[1:]), self._weights.output_norm]
        normed = self._pointwise.norm(stream, weights[0].attention.norm)
        for index in range(len(weights)) if layers is None else layers:
            layer, cache, next_norm = weights[index], self._kv.layers[index], norms[index]
            # Without names, terms as long as the stream are given back as soon as they are added.
            normed = self._pointwise.add_and_norm(
                stream, ((yield from attention.pieces(layer.attention, normed, cache, step)),), layer.ffn_norm
            )
            normed = self._pointwise.add_and_norm(
                stream, (yield from self._feed_forward(layer, index, normed, experts)), next_norm
            )
        return self._weights.output(normed[step.sampled])

    def _feed_forward(
        self, layer: LayerWeights, index: int, normed: torch.Tensor, experts: DividedExperts
    ) -> Pieces[tuple[torch.Tensor, ...]]:
        """The terms of the feed-forward's sum, each [T, D]. Experts are started first: the CPU computes them while the
        device computes what every token needs."""
        if layer.routed is None:
            assert layer.mlp is not None
            return (self._mlp(layer.mlp, normed),)
        routed_index = self._routed_index[index]
        yield from experts.pieces(routed_index, normed, *layer.routed.choose(layer.routed.router(normed)))
        every_token = () if layer.mlp is None else (self._mlp(layer.mlp, normed),)
        return (experts.result(routed_index), *every_token)

    def _mlp(self, weights: MlpWeights, x: torch.Tensor) -> torch.Tensor:
        if len(x) <= PRODUCT_TOKENS:
            return weights.down(self._pointwise.gated(*weights.gate_and_up(x)))
        out = torch.empty_like(x)
        for begin, end in even_bounds(0, len(x), PRODUCT_TOKENS):
            out[begin:end] = self._mlp(weights, x[begin:end])
        return out

"""A model with attention and shared weights on devices and routed experts on the CPU.

Shapes: T tokens, D hidden.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.model.batch import Batch, padding
from ballast.model.device_counts import DeviceCounts, DeviceNumbers
from ballast.model.hybrid.decode_steps import DecodeSteps
from ballast.model.hybrid.devices.all_devices import Devices
from ballast.model.hybrid.devices.device import Device
from ballast.model.hybrid.devices.step_rows import StepRows
from ballast.model.hybrid.experts.divided_experts import DividedExperts, RoutedLayers
from ballast.model.hybrid.experts.joint_experts import JointExperts
from ballast.model.hybrid.faults.device_wait import wait_for
from ballast.model.hybrid.forward_pass import ForwardPass
from ballast.model.hybrid.layers.table_reader import TableReader
from ballast.model.hybrid.prefill_pass import PrefillPass
from ballast.model.hybrid.steps.pieces import Pieces, drained
from ballast.model.hybrid.steps.step import Step
from ballast.model.hybrid.streaming.host_memory import PinnedMemory
from ballast.model.hybrid.streaming.streamed_layers import StreamedLayers
from ballast.model.hybrid.weights import HybridWeights
from ballast.model.runner import Runner
from ballast.model.spec import ModelSpec
from ballast.model.switched_off import SwitchedOff
from ballast.model.transformer import ALIVE_EVERY_S


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """The experts in host memory, and the ways in which steps use them."""

    divided: DividedExperts
    """Divides each layer's experts between the CPU and the layer's device."""
    streamed: StreamedLayers | None
    """Long steps stream all experts through the devices; None if they never do."""
    joint: JointExperts | None
    """Steps of medium length stream some experts through the devices while the CPU computes the others; None if they
    never do."""
    pinned: PinnedMemory
    """The page-locked part of their memory."""
    pool: kernels.ThreadPool
    """Computes the CPU's part."""


class HybridModel(Runner):
    """A loaded model and its KV pool, on a CPU and GPUs."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: HybridWeights,
        experts: RoutedExperts,
        devices: Sequence[Device],
        max_step_tokens: int,
        off: SwitchedOff,
    ) -> None:
        """`devices`: in the order of their layers. `max_step_tokens`: maximum tokens of a step. `off`: the features
        that are switched off, for messages."""
        divided, streamed = experts.divided, experts.streamed
        self.vocabulary = spec.vocab_size
        self.expert_heat = divided.heat
        self.on_close: Callable[[], None] = lambda: None
        """Called at the end, when `expert_heat` does not change any more."""
        self._spec = spec
        self._off = off
        self._experts = divided
        self._pinned = experts.pinned
        self.pool: kernels.ThreadPool = experts.pool
        self.streamed = streamed
        self._long_step_experts = divided if streamed is None else divided.over(streamed)
        self._joint = experts.joint
        self._joint_experts = None if experts.joint is None else divided.over(experts.joint)
        self._has_joint_step = False
        """Whether a joint step of the decode lane has begun and its logits have not been requested."""
        self.devices = Devices(devices)
        self.measuring = partial(_uncounted, divided, self.devices)
        self.layers = ForwardPass(spec, weights, self.devices)
        self._has_prefill_lane = False
        self._prefill_pass: PrefillPass | None = None
        # The queued step of the decode lane: its experts, the destination of its logits, and the rows to return.
        self._at_work = divided
        self._pending = torch.empty(0)
        self._queued = self.devices.event()
        self._wanted_rows: NDArray[np.int64] | slice = slice(None)
        self._num_streamed_steps = 0
        ngrams = weights.ngram_rows(spec)
        self._decode_steps = DecodeSteps(self.devices, self.layers, divided, ngrams)
        embedding = TableReader(weights.embedding)
        self._rows, self._prefill_rows = (  # one for each lane
            StepRows(embedding, ngrams, self.devices, max_step_tokens, spec.hidden) for _ in range(2)
        )

    @torch.inference_mode()
    def warm_up(self, warmup_sizes: Sequence[int], host: RoutedLayers, layers: Sequence[int]) -> None:
        """Run steps of padding, so that every kernel has been used once: the first use may exceed a time limit.

        `warmup_sizes`: tokens of a prefill step, and requests of a decode step. `host` replaces the CPU experts.
        `layers`: ascending indices of the layers that steps compute. Devices with none of them compute nothing."""
        idle = self._experts.over(host)
        for number, device in enumerate(self.devices):
            if not set(layers).isdisjoint(device.layers):
                with device.active(), idle.uncounted():
                    self._warm_up_prefill(number, warmup_sizes, idle, layers)
        most = self.devices.max_batch_size
        self._decode_steps.warm_up(sorted({most, *(count for count in warmup_sizes if count < most)}), host, layers)

    def _warm_up_prefill(
        self, number: int, warmup_sizes: Sequence[int], experts: DividedExperts, layers: Sequence[int]
    ) -> None:
        """Compute the part that the device with this number has of prefill steps."""
        device, longest = self.devices[number], max(warmup_sizes)
        for num_tokens in warmup_sizes:
            rows = torch.ones((num_tokens, self._spec.hidden), device=device.torch_device)
            rows = rows if number == 0 else device.residual.begin(rows)
            batch = padding(num_tokens, device.kv.block_tokens)
            if num_tokens < longest:  # logits of all tokens of the longest may not fit in memory
                batch = replace(batch, sampled=np.arange(num_tokens))
            step = self._rows.with_ngrams(device.prepared(batch, is_prefill=True), batch, number)
            experts.begin(num_tokens)
            drained(self.layers.part(number, rows, step, experts, is_prefill=True, layers=layers))
            device.platform.synchronize()

    @torch.inference_mode()
    def capture_decode(self, report: Callable[[float], None], *, finishes_later: bool = False) -> None:
        """Capture decode steps as graphs, and use them from now on; `report` gets the fraction captured, 0…1.
        `finishes_later`: leave rare batch sizes to `use_spare_time`. Raises as `DecodeGraphs.capture` does."""
        self._decode_steps.capture(report, finishes_later=finishes_later)

    @torch.inference_mode()
    def use_spare_time(self) -> bool:
        """See `Runner`."""
        if self._prefill_pass is not None:
            return False
        self.devices.use_compiled()
        return self._decode_steps.capture_next()

    def close(self) -> None:
        """See `Runner`."""
        self._experts.wait_for_moves()
        self.on_close()

    def set_pcie_share(self, share: float) -> None:
        """Set the fraction, 0…1, of a decode step's experts in host memory that devices read. Captured steps are
        captured again, because a fraction of 0 queues no work. Raises EngineDeadError."""
        self._experts.set_pcie_share(share)
        if self.devices.has_graphs:
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
        """See `Runner`. On GPUs, one call queues the whole step. Raises EngineDeadError when device memory is full."""
        self._wanted_rows = slice(None)
        with self.devices.explained_when_full(), self.devices.decoding():
            self._experts.leave_bus(self._prefill_pass is not None and self.streamed is not None)
            if batch.is_decode and batch.token_ids.size <= self.devices.max_batch_size:
                if not is_staged:
                    self.stage(batch)
                self._at_work = self._experts
                self._experts.begin_step(may_take=self._prefill_pass is None)
                self._pending = self._decode_steps.queue(batch)
                self._experts.use_step()
                if batch.sampled.size < batch.token_ids.size:
                    self._wanted_rows = batch.sampled
            else:
                self._pending = self._prefill(batch, alive)
            self._queued = self.devices.event()

    @torch.inference_mode()
    def stage(self, batch: Batch) -> None:
        """See `Runner`. The next step's tables are queued behind the running step."""
        self._decode_steps.stage(batch)

    def is_done(self, timeout_s: float) -> bool:
        """See `Runner`."""
        if self._at_work.has_host:
            return self._at_work.is_done(timeout_s)
        if not self._queued.query():
            time.sleep(timeout_s)
        return self._queued.query()

    def logits(self, alive: Callable[[], None]) -> NDArray[np.float32]:
        """See `Runner`."""
        with self.devices.decoding():
            self.devices.fetch_num_saturated()
            self._at_work.finish(alive)
            self.devices.wait()
            self.devices.report_saturated()
            rows: NDArray[np.float32] = self._pending.cpu().numpy()[self._wanted_rows]
        self._has_joint_step = False
        return rows

    @property
    def can_prefill_beside(self) -> bool:
        """See `Runner`. True if devices compute all experts of a long step."""
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
        """See `Runner`. False during a joint step, which uses the buffers and the bus that a prefill pass needs."""
        return not self._has_joint_step

    @torch.inference_mode()
    def begin_prefill(self, batch: Batch) -> None:
        """See `Runner`. This and the methods below raise EngineDeadError when device memory is full."""
        assert self.can_begin_prefill, "a joint step is in flight"
        with self.devices.explained_when_full():
            self.devices.use_compiled()
            steps = self.devices.prepared(batch, is_prefill=True)
            self._num_streamed_steps += self.streamed is not None
            self._prefill_pass = PrefillPass(self._prefill_pieces(batch, steps), self.devices.event)

    @torch.inference_mode()
    def advance_prefill(self, alive: Callable[[], None]) -> bool:
        """See `Runner`."""
        assert self._prefill_pass is not None
        with self.devices.explained_when_full():
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
        """See `Runner`. Raises as `device_wait.wait_for` does."""
        self._prefill_pass = None
        if self.streamed is not None:
            self.streamed.wait()
        wait_for([self.devices.event()], lambda: None)

    @property
    def expert_bytes_read(self) -> int:
        """Bytes of routed experts' weights read from host memory so far, by the CPU and over PCIe."""
        return self._experts.host_bytes_read + self.expert_bytes_read_over_pcie

    @property
    def expert_bytes_read_over_pcie(self) -> int:
        """The part of `expert_bytes_read` that devices have read."""
        return self._experts.pcie_bytes_read + (0 if self.streamed is None else self.streamed.bytes_read)

    @property
    def device_counts(self) -> DeviceCounts:
        """The devices' counters and settings."""
        return DeviceCounts(
            self._num_streamed_steps,
            self.devices.num_graphs,
            tuple(_numbers_of(device, self.streamed) for device in self.devices),
            sum(device.num_saturated for device in self.devices),
            self._off.reasons,
        )

    @property
    def expert_uses(self) -> NDArray[np.int64]:
        """[routed layers, E]: number of tokens for which the CPU has computed each expert so far."""
        routed = [layer.routed.experts for layer in self.layers.weights.layers if layer.routed is not None]
        none = np.zeros(self._spec.routing.num_experts, np.int64)
        return np.stack([none if experts is None else experts.uses for experts in routed])

    @property
    def kv_tensors(self) -> Sequence[torch.Tensor]:
        """The KV cache by layer, each [slots, row width]."""
        return [tensor for device in self.devices for tensor in device.kv.tensors]

    @property
    def kv_has_windows(self) -> Sequence[bool]:
        """Of each of `kv_tensors`, whether its blocks are those of windows."""
        return [has_window for device in self.devices for has_window in device.kv.has_windows]

    @property
    def pinned_bytes(self) -> int:
        """Bytes of the experts' host memory that are page-locked for CUDA."""
        return self._pinned.num_bytes

    @property
    def long_steps_pay(self) -> bool:
        """Whether devices compute all experts of a long step."""
        return self.streamed is not None or not self._experts.has_host

    def _experts_for(self, num_tokens: int) -> DividedExperts:
        """The implementation of experts for a decode-lane step in which a request has several tokens."""
        if not self._has_prefill_lane and self.streamed is not None and num_tokens >= self.streamed.from_tokens:
            self._num_streamed_steps += 1
            return self._long_step_experts
        is_faster = self._joint is not None and self._joint.split.is_faster(num_tokens)
        if self._joint_experts is not None and self._prefill_pass is None and is_faster:
            self._has_joint_step = True
            return self._joint_experts
        return self._experts

    def _prefill(self, batch: Batch, alive: Callable[[], None]) -> torch.Tensor:
        """Queue a step in which a request has several tokens; returns its logits on the last device."""
        if self._prefill_pass is None:
            self.devices.use_compiled()
        self._at_work = self._experts_for(batch.token_ids.size)
        is_long = self._at_work is self._long_step_experts and not self._has_prefill_lane
        steps = self.devices.prepared(batch, is_prefill=is_long)
        embedded = self._rows.whole(batch, steps)
        self._at_work.begin(len(embedded))
        pieces = self.layers.pieces(embedded, steps, self._at_work, is_prefill=is_long, sampled=batch.sampled)
        return drained(pieces, _rate_limited(alive))

    def _prefill_pieces(self, batch: Batch, steps: list[Step]) -> Pieces[torch.Tensor]:
        """A step of the prefill lane. Its tokens are also embedded in pieces, while the first experts are copied."""
        experts = self._long_step_experts
        experts.follow_changes()  # the pass copies the experts that are not in the tables that it will read
        experts.begin(batch.token_ids.size)
        embedded = yield from self._prefill_rows.pieces(batch, steps)
        return (yield from self.layers.pieces(embedded, steps, experts, is_prefill=True, sampled=batch.sampled))


@contextmanager
def _uncounted(experts: DividedExperts, devices: Devices) -> Iterator[None]:
    """A context whose steps, on any stream, do not count as use of experts."""
    with torch.inference_mode():
        devices.synchronize()
        with experts.uncounted():
            yield
            devices.synchronize()
        devices.synchronize()


def _numbers_of(device: Device, streamed: StreamedLayers | None) -> DeviceNumbers:
    copied = 0 if streamed is None else streamed.bytes_read_by(device.torch_device)
    experts, cache = device.experts, device.experts.cache
    return DeviceNumbers(
        str(device.torch_device),
        (device.layers[0], device.layers[-1]),
        experts.pcie_bytes_read + copied,
        experts.num_gpu_experts,
        pcie_share=experts.pcie_share,
        expert_selections=0 if cache is None else cache.num_selections,
        expert_hits=0 if cache is None else cache.num_hits,
        moved_experts=0 if cache is None else cache.num_moved,
        moved_expert_bytes=0 if cache is None else cache.bytes_moved,
    )


def _rate_limited(alive: Callable[[], None]) -> Callable[[], None]:
    """Returns a function that calls `alive` at most once every ALIVE_EVERY_S seconds."""
    last_s = time.monotonic()

    def report() -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= ALIVE_EVERY_S:
            alive()
            last_s = time.monotonic()

    return report

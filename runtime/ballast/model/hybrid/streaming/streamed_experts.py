"""Routed experts of long steps, computed on the device. Their panels are copied into a few buffers on the device, while
it multiplies the previous experts and computes attention.

A step reads every expert of every layer that is not in the device's memory. Thousands of tokens select nearly every
expert; to omit the others, the host would have to wait for the selection.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.model.hybrid.faults.device_wait import wait_for
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.panels.unit import PLAIN, ExpertUnit
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.streaming import chunks
from ballast.model.hybrid.streaming.host_memory import PIECE_BYTES, HostPanels
from ballast.model.hybrid.streaming.prefetch import Prefetch


class GroupedExperts(Protocol):
    """Some experts on the device: x float32 [T, D], ids int32 [T, k], weights float32 [T, k] → float32 [T, D]. Ids
    outside 0…E-1 add nothing."""

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor: ...


class MakeExperts(Protocol):
    """Makes experts from gate, up and down, and what they compute of gate and up; `ExpertPanels` on a GPU."""

    def __call__(
        self, gate: PanelStack, up: PanelStack, down: PanelStack, *, unit: ExpertUnit = PLAIN
    ) -> GroupedExperts: ...


class LayerSums(Protocol):
    """The sums of one layer's experts for given tokens. Experts are added chunk by chunk."""

    @property
    def total(self) -> torch.Tensor:
        """The sums float32 [T, D], after all experts are added; called once."""

    def add(self, first: int, gate: PanelStack, up: PanelStack, down: PanelStack, *, unit: ExpertUnit = PLAIN) -> None:
        """Add experts from `first` on, as many as each stack has; `unit` is that of these experts."""


Resident = Callable[[], NDArray[np.bool_] | None]
"""Returns bool [E]: the experts of a layer that a step beginning now finds in the device's memory; None: none."""

MakeSums = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], LayerSums]
"""Makes a layer's sums, initially zero: x float32 [T, D], ids int32 [T, k], weights float32 [T, k], number of experts.
Ids outside 0…E-1 add nothing; `ExpertSums` on a GPU."""


class StreamedExperts:
    """The part of a model's experts in host memory that one device streams and computes."""

    def __init__(
        self, own: Sequence[chunks.Chunk], num_experts: Sequence[int], make_sums: MakeSums, device: torch.device
    ) -> None:
        """`own`: the chunks that the device copies, in order of layers; at least one. `num_experts`: of each layer."""
        self._chunks = own
        num_layers = len(num_experts)
        self._of_layer = [[i for i, chunk in enumerate(own) if chunk.layer == at] for at in range(num_layers)]
        self._of_pass: Sequence[Sequence[int]] = self._of_layer
        """The chunks of each layer that the pass copies."""
        self._num_experts = num_experts
        self._make_sums = make_sums
        num_bytes = max(chunk.num_bytes for chunk in self._chunks)
        num_buffers = min(chunks.NUM_BUFFERS, len(self._chunks))
        self._buffers = torch.empty((num_buffers, num_bytes), dtype=torch.uint8, device=device)
        self._scales = [
            [
                host.scales_on(device, slice(chunk.first, chunk.first + chunk.num_experts))
                for host in chunk.part.matrices
            ]
            for chunk in self._chunks
        ]
        """Scales of gate, up and down, by chunk."""
        self._units = [
            chunk.part.unit.on(device, slice(chunk.first, chunk.first + chunk.num_experts)) for chunk in self._chunks
        ]
        self.platform = platform_of(device)
        self._copies = self.platform.new_stream()
        self._prefetch = Prefetch(num_buffers, self._load, self._copies, self.platform.current_stream)
        self._total: torch.Tensor | None = None
        self._events: list[Any] = []  # one per chunk, in the order of the compute stream
        self.bytes_read = 0
        self._resident: Sequence[Resident] = [lambda: None] * num_layers
        self._skipped: list[NDArray[np.bool_] | None] = []
        """By layer, the experts that the pass does not copy; None: it copies all."""

    def skip(self, resident: Sequence[Resident]) -> None:
        """From the next pass on, do not copy experts that are in the device's memory, by layer. Submitted ids must not
        contain them."""
        self._resident = resident

    @property
    def num_bytes(self) -> int:
        """Bytes of the buffers on the device."""
        return self._buffers.numel()

    @property
    def num_chunks(self) -> int:
        return len(self._chunks)

    @property
    def pass_bytes(self) -> int:
        """Bytes that a step copies."""
        return sum(chunk.num_bytes for chunk in self._chunks)

    def computes(self, layer: int) -> bool:
        """Whether this device computes experts of a layer in a pass over all experts."""
        return bool(self._of_layer[layer])

    def has_layer(self, layer: int) -> bool:
        """Whether the pass copies experts of a layer to this device."""
        return bool(self._of_pass[layer])

    def begin(self, num_tokens: int) -> None:
        """Start a step that submits every layer in order; the copies of its first experts start immediately."""
        self._begin(self._of_layer)

    def begin_first(self, counts: Sequence[int]) -> None:
        """As `begin`, for a step that needs only experts 0…n - 1 of each layer, where n is the layer's number in
        `counts`. A chunk is copied if it contains one of them, and adds all of its experts: submitted ids must not
        contain the others."""
        self._begin(
            [
                [index for index in of_layer if self._chunks[index].first < count]
                for of_layer, count in zip(self._of_layer, counts, strict=True)
            ]
        )

    def _begin(self, of_pass: Sequence[Sequence[int]]) -> None:
        self._events = []
        self._of_pass = of_pass
        self._skipped = [resident() for resident in self._resident]
        self._prefetch.begin([index for of_layer in of_pass for index in of_layer])

    def submit(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        """Queue the device's part of the `layer`th routed layer for x float32 [T, D] and the selected experts, ids
        int32 and weights float32 [T, k]."""
        for _ in self.pieces(layer, x, ids, weights):
            pass

    def pieces(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Iterator[None]:
        """As `submit`, one chunk per advance of the iterator."""
        sums = self._make_sums(x, ids, weights, self._num_experts[layer])
        for index in self._of_pass[layer]:
            chunk = self._chunks[index]
            buffer = self._prefetch.take(index)
            sums.add(chunk.first, *self._stacks(index, buffer), unit=self._units[index])
            self._events.append(self._prefetch.done())
            self.bytes_read += chunk.part.expert_bytes * sum(end - first for first, end in self._copied(chunk))
            yield
        self._total = sums.total

    def result(self, layer: int) -> torch.Tensor:
        """The sum over the device's experts of the last submitted layer, float32 [T, D] on the device; it is returned
        once."""
        total, self._total = self._total, None
        assert total is not None, f"routed layer {layer} was not submitted"
        return total

    def finish(self, alive: Callable[[], None]) -> None:
        """Wait until the step is computed, calling `alive` after each chunk. Raises EngineDeadError when a chunk takes
        longer than `device_wait.LIMIT_S`, and the error of a failed device."""
        self._total = None
        events, self._events = self._events, []
        wait_for([*events, self.platform.current_stream().record_event()], alive)

    def is_done(self, timeout_s: float) -> bool:
        """Whether the step is computed now; never waits. A caller that queues a step in pieces waits for the pieces
        (`prefill_pass`)."""
        return all(event.query() for event in self._events)

    def wait(self) -> None:
        """Wait until the step is computed and no copy is running. Raises as `finish`."""
        self.finish(lambda: None)
        wait_for([self._copies.record_event()], lambda: None)

    def _load(self, index: int, buffer: int) -> None:
        chunk = self._chunks[index]
        with self.platform.on(self._copies):
            copied = self._copied(chunk)
            for host, target in self._places(chunk, buffer):
                experts = target.view(chunk.num_experts, host.expert_bytes)
                for first, end in copied:
                    own = experts[first - chunk.first : end - chunk.first].view(-1)
                    copy_pieces(own, host, first * host.expert_bytes)

    def _copied(self, chunk: chunks.Chunk) -> list[tuple[int, int]]:
        """The ranges of a chunk's experts that the pass copies."""
        end = chunk.first + chunk.num_experts
        skipped = self._skipped[chunk.layer]
        if skipped is None:
            return [(chunk.first, end)]
        is_copied = ~skipped[chunk.first : end]
        bounds = np.flatnonzero(np.diff(np.concatenate(([False], is_copied, [False])))) + chunk.first
        return list(zip(bounds[::2].tolist(), bounds[1::2].tolist(), strict=True))

    def _stacks(self, index: int, buffer: int) -> Iterator[PanelStack]:
        chunk = self._chunks[index]
        for (host, packed), scales in zip(self._places(chunk, buffer), self._scales[index], strict=True):
            yield PanelStack(packed, host.ggml_type, chunk.num_experts, host.rows, host.cols, scales)

    def _places(self, chunk: chunks.Chunk, buffer: int) -> Iterator[tuple[HostPanels, torch.Tensor]]:
        """The chunk's gate, up and down in host memory, each with its destination in a buffer."""
        begin = 0
        for host in chunk.part.matrices:
            end = begin + chunk.num_experts * host.expert_bytes
            yield host, self._buffers[buffer, begin:end]
            begin = end


def copy_pieces(target: torch.Tensor, host: HostPanels, begin: int, piece_bytes: int = PIECE_BYTES) -> None:
    """Copy the bytes of a host matrix from `begin` on to `target`, on the current stream. No copy crosses the boundary
    between two registered pieces, which CUDA would reject as an invalid argument."""
    end = begin + target.numel()
    at = begin
    while at < end:
        stop = min(end, (at // piece_bytes + 1) * piece_bytes)
        memory = (ctypes.c_uint8 * (stop - at)).from_address(host.address + at)
        target[at - begin : stop - begin].copy_(torch.frombuffer(memory, dtype=torch.uint8), non_blocking=True)
        at = stop

"""The experts in one device's memory follow use: between steps, experts that are used more replace others.

A replacement takes three turns, and no step waits for it. Before a step is queued, the expert is taken out of the table
from which steps read the slots. Behind all steps that may have read the old table, the other expert is copied to the
slot, on a stream of its own. Before a later step, if the copy is complete, the other expert is put into the table.
Until then, both are computed from host memory. Captured steps read the table when they run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.model.hybrid.copies.small_copies import SmallCopy
from ballast.model.hybrid.experts.layer_on_device import LayerOnDevice
from ballast.model.hybrid.faults.device_wait import wait_for
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.moe.expert_heat import ExpertHeat
from ballast.moe.expert_moves import Move, choose_moves

OBSERVED_STEPS = 8
"""Steps between two decisions."""
MAX_MOVES = 64
"""Maximum moves of a decision."""
BYTES_AT_ONCE = 32 << 20
"""Maximum bytes that are copied during one step, if they are more than one expert: about a millisecond of PCIe."""
_ALIGNED = 4
"""Rows of the table begin at multiples of this: for addresses of lower alignment, Triton compiles another kernel."""


class ExpertCache:
    """Counts the use of the experts of a device's layers, and moves them. Decode steps call `begin_step` before they
    are queued, `end_step` behind their work, and `use_step` while they run."""

    def __init__(
        self, layers: Sequence[LayerOnDevice], heat: ExpertHeat, small_copy: SmallCopy, device: torch.device
    ) -> None:
        """`layers`: the device's routed layers, in order; those that have `resident` can be changed. `heat`: theirs at
        the start, which this object changes."""
        platform = self._platform = platform_of(device)
        num_layers, num_experts = heat.values.shape
        width = -(-num_experts // _ALIGNED) * _ALIGNED
        self.heat = heat
        self._copy = small_copy
        self._host_table = torch.full((num_layers, width), -1, dtype=torch.int32, pin_memory=platform.pins)
        for index, layer in enumerate(layers):
            if layer.slots is not None:
                self._host_table[index, :num_experts] = layer.slots.cpu()
        self._table = self._host_table.to(device, copy=True)
        self.layers = [
            layer if layer.slots is None else replace(layer, slots=self._table[index, :num_experts])
            for index, layer in enumerate(layers)
        ]
        """The layers, whose slots are now rows of the table."""
        self.uses = torch.zeros((num_layers, width), dtype=torch.int32, device=device)
        """Number of tokens that have selected each expert in counted steps, modulo 2**32."""
        self._seen = torch.zeros((num_layers, width), dtype=torch.int32, pin_memory=platform.pins)
        self._before: NDArray[np.int32] = self._seen.numpy().copy()
        self._num_experts = num_experts
        self._is_counting = True
        self._num_steps = 0
        self._seen_at: Any = None
        """The event behind the copy of `uses` to the host; None if its counts have been added."""
        self._stream = platform.new_stream()
        self._changed: Any = platform.current_stream().record_event()
        """The event behind the last change of the table."""
        self._planned = self.slots.copy()
        """The slots after all moves that have begun."""
        self._wanted: deque[Move] = deque()
        self._moving: list[Move] = []
        self._copied: Any = None
        """The event behind the copies of `_moving`; None if they are not queued."""
        self.num_selections = self.num_hits = self.num_moved = self.bytes_moved = 0

    @property
    def slots(self) -> NDArray[np.int32]:
        """[layers, E] the slot of each expert for steps that are queued from now on; -1 without one."""
        slots: NDArray[np.int32] = self._host_table.numpy()[:, : self._num_experts]
        return slots

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """A context whose steps, on the current stream, are not counted."""
        before, self._is_counting = self.uses.clone(), False
        try:
            yield
        finally:
            self.uses.copy_(before)
            self._is_counting = True

    def begin_step(self, *, may_take: bool) -> None:
        """Queue the changes of the table for the steps that follow on the current stream. `may_take`: whether experts
        may be taken out; not while a step runs on another stream."""
        if not self._changed.query():
            return  # the last change still reads the host's table
        is_changed = self._put_in()
        if may_take and not self._moving:
            is_changed |= self._take_out()
        if is_changed:
            with self._platform.active():
                self._copy(self._host_table, self._table)
                self._changed = self._platform.current_stream().record_event()

    def follow(self) -> None:
        """Let steps that are queued on the current stream from now on see all changes of the table."""
        self._platform.current_stream().wait_event(self._changed)

    def wait(self) -> None:
        """Wait until no expert is being copied. Raises as `wait_for` does."""
        wait_for([self._stream.record_event()], lambda: None)

    def use_step(self) -> None:
        """Use the time of a step that has been queued: queue copies, and decide about the next ones."""
        if self._moving and self._copied is None:
            self._queue_copies()
        if self._seen_at is not None and self._seen_at.query():
            self._seen_at = None
            self._count()
            self._wanted = deque(choose_moves(self.heat.values, self._planned, MAX_MOVES))

    def end_step(self) -> None:
        """Behind a step, now and then, queue the copy of the counters to the host."""
        if not self._is_counting or self._seen_at is not None:
            return
        self._num_steps += 1
        if self._num_steps % OBSERVED_STEPS == 0:
            self._seen.copy_(self.uses, non_blocking=True)
            self._seen_at = self._platform.current_stream().record_event()

    def _put_in(self) -> bool:
        if self._copied is None or not self._copied.query():
            return False
        for move in self._moving:
            self.slots[move.layer, move.admitted] = move.slot
            self.num_moved += 1
            self.bytes_moved += self.layers[move.layer].expert_bytes
        self._moving, self._copied = [], None
        return True

    def _take_out(self) -> bool:
        num_bytes = 0
        while self._wanted:
            size = self.layers[self._wanted[0].layer].expert_bytes
            if self._moving and num_bytes + size > BYTES_AT_ONCE:
                break
            num_bytes += size
            move = self._wanted.popleft()
            self._moving.append(move)
            self.slots[move.layer, move.evicted] = self._planned[move.layer, move.evicted] = -1
            self._planned[move.layer, move.admitted] = move.slot
        return bool(self._moving)

    def _queue_copies(self) -> None:
        self._stream.wait_event(self._changed)
        with self._platform.on(self._stream):
            for move in self._moving:
                resident = self.layers[move.layer].resident
                assert resident is not None, "whole layers have no experts outside"
                resident.write(move.slot, move.admitted)
        self._copied = self._stream.record_event()

    def _count(self) -> None:
        now = self._seen.numpy()
        counts = (now - self._before)[:, : self._num_experts]
        self._before = now.copy()
        self.num_selections += int(counts.sum())
        self.num_hits += int(counts[self.slots >= 0].sum())
        self.heat.add(counts)

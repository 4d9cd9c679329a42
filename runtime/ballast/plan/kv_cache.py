"""The size of the KV cache, whose layers with a window may keep fewer blocks than the others. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ballast.host.sizes import human
from ballast.model.kv_pool import kept_type, num_state_slots, num_window_blocks, outstanding_tokens
from ballast.model.layers.plane import KvType, Plane, State, row_bytes
from ballast.plan.memory import Numbers


class Cached(Protocol):
    """Layers whose keys and values a cache keeps: those of a model, or of one device."""

    @property
    def window(self) -> int | None:
        """Tokens that the layers with a window attend to; None: no layer has a window."""

    @property
    def planes(self) -> Sequence[Sequence[Plane]]:
        """What each layer keeps of a token."""

    @property
    def states(self) -> Sequence[Sequence[State]]:
        """What each layer keeps of a sequence."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The cache of some layers under some settings."""

    cached: Cached
    numbers: Numbers
    on_gpu: bool

    @property
    def kv_type(self) -> KvType:
        return kept_type(self.numbers.kv_type, on_gpu=self.on_gpu)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in all layers."""
        return sum(row_bytes(planes, self.kv_type) for planes in self.cached.planes)

    @property
    def window_token_bytes(self) -> int:
        """Of these, the bytes in layers of which only a window is read."""
        windowed = [planes for planes in self.cached.planes if any(plane.window is not None for plane in planes)]
        return sum(row_bytes(planes, self.kv_type) for planes in windowed)

    def window_blocks(self, num_blocks: int) -> int | None:
        """Usable blocks of layers with a window, in a cache of `num_blocks`; None if they keep all blocks."""
        numbers, tiers = self.numbers, self.numbers.tiers
        return num_window_blocks(
            self.cached.window,
            num_blocks,
            numbers.block_tokens,
            numbers.max_batch_size,
            outstanding_tokens(numbers.chunk_size, numbers.prefill_chunk_size, has_lanes=self.on_gpu),
            has_tiers=tiers.disk_dir is not None or (self.on_gpu and tiers.host_bytes != 0),
        )

    def num_bytes(self, num_blocks: int) -> int:
        """Bytes of a cache of `num_blocks` and the null block."""
        window_blocks = self.window_blocks(num_blocks)
        num_windowed = num_blocks if window_blocks is None else window_blocks
        kept = (num_blocks + 1) * (self.token_bytes - self.window_token_bytes)
        kept += (num_windowed + 1) * self.window_token_bytes
        return kept * self.numbers.block_tokens

    def num_state_slots(self, num_blocks: int) -> int:
        """Usable slots of recurrent state for a cache of `num_blocks`; 0 for layers without such state."""
        numbers = self.numbers
        capacity = num_blocks * numbers.block_tokens
        batch, num_snapshots = numbers.max_batch_size, numbers.state_snapshots
        return num_state_slots(self.cached.states, capacity, batch, num_snapshots, on_gpu=self.on_gpu)

    def state_option(self, num_blocks: int) -> str | None:
        """The option whose lower value reduces the slots of recurrent state most: that of snapshots or that of
        requests, by which of them have more slots; None: both options have their least value."""
        batch, num_snapshots = self.numbers.max_batch_size, self.numbers.state_snapshots
        of_requests = num_state_slots(self.cached.states, 0, batch, 0, on_gpu=self.on_gpu)
        more_snapshots = self.num_state_slots(num_blocks) > 2 * of_requests
        if num_snapshots != 1 and (more_snapshots or batch == 1):
            return "state_snapshots"
        return "max_batch_size" if batch > 1 else None

    def state_bytes(self, num_blocks: int) -> int:
        """Bytes of the slots of recurrent state for a cache of `num_blocks`, and the null slot."""
        slot_bytes = sum(state.num_bytes for of_layer in self.cached.states for state in of_layer)
        return (self.num_state_slots(num_blocks) + 1) * slot_bytes

    def most_blocks(self, num_bytes: int, added_bytes: Callable[[int], int] = lambda num_blocks: 0) -> int:
        """Blocks of the largest cache that takes at most `num_bytes`, with its recurrent states and what `added_bytes`
        returns for its blocks; 0 if none does."""
        of_full_layers = max(self.token_bytes - self.window_token_bytes, 1) * self.numbers.block_tokens
        most = max(num_bytes, 0) // of_full_layers

        def all_bytes(num_blocks: int) -> int:
            return self.num_bytes(num_blocks) + self.state_bytes(num_blocks) + added_bytes(num_blocks)

        return max(0, bisect_right(range(most + 1), num_bytes, key=all_bytes) - 1)

    def per_token(self, num_blocks: int) -> str:
        """Bytes per token in a cache of `num_blocks`, for people."""
        window_blocks = self.window_blocks(num_blocks)
        if window_blocks is None:
            return f"{human(self.token_bytes)} per token"
        full = human(self.token_bytes - self.window_token_bytes)
        windows = human(self.window_token_bytes)
        in_windows = window_blocks * self.numbers.block_tokens
        return f"{full} per token; {windows} per token for {in_windows} tokens in windows"

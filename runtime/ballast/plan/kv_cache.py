"""The size of the KV cache, whose layers with a window may keep fewer blocks than the others. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ballast.host.sizes import human
from ballast.model.kv_pool import num_state_slots, num_window_blocks, outstanding_tokens
from ballast.model.layers.plane import State
from ballast.plan.memory import FLOAT_BYTES, Numbers


class Cached(Protocol):
    """Layers whose keys and values a cache keeps: those of a model, or of one device."""

    @property
    def window(self) -> int | None:
        """Tokens that the layers with a window attend to; None: no layer has a window."""

    @property
    def kv_numbers(self) -> int:
        """Numbers that all layers keep of a token."""

    @property
    def window_kv_numbers(self) -> int:
        """Numbers that the layers with a window keep of a token."""

    @property
    def states(self) -> Sequence[Sequence[State]]:
        """What each layer keeps of a sequence."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The cache of some layers under some settings."""

    cached: Cached
    numbers: Numbers
    number_bytes: int
    """Bytes of a number in the cache."""
    on_gpu: bool

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
        cached, window_blocks = self.cached, self.window_blocks(num_blocks)
        num_windowed = num_blocks if window_blocks is None else window_blocks
        kept = (num_blocks + 1) * (cached.kv_numbers - cached.window_kv_numbers)
        kept += (num_windowed + 1) * cached.window_kv_numbers
        return kept * self.numbers.block_tokens * self.number_bytes

    def num_state_slots(self, num_blocks: int) -> int:
        """Usable slots of recurrent state for a cache of `num_blocks`; 0 for layers without such state."""
        capacity = num_blocks * self.numbers.block_tokens
        return num_state_slots(self.cached.states, capacity, self.numbers.max_batch_size)

    def state_bytes(self, num_blocks: int) -> int:
        """Bytes of the slots of recurrent state for a cache of `num_blocks`, and the null slot."""
        num_slots = self.num_state_slots(num_blocks)
        a_slot = sum(state.size for of_layer in self.cached.states for state in of_layer)
        return (num_slots + 1) * a_slot * FLOAT_BYTES

    def most_blocks(self, num_bytes: int) -> int:
        """Blocks of the largest cache that takes at most `num_bytes`, with its recurrent states; 0 if none does."""
        cached = self.cached
        of_full_layers = max(cached.kv_numbers - cached.window_kv_numbers, 1) * self.numbers.block_tokens
        most = max(num_bytes, 0) // (of_full_layers * self.number_bytes)

        def all_bytes(num_blocks: int) -> int:
            return self.num_bytes(num_blocks) + self.state_bytes(num_blocks)

        return max(0, bisect_right(range(most + 1), num_bytes, key=all_bytes) - 1)

    def per_token(self, num_blocks: int) -> str:
        """Bytes per token in a cache of `num_blocks`, for people."""
        cached, window_blocks = self.cached, self.window_blocks(num_blocks)
        if window_blocks is None:
            return f"{human(cached.kv_numbers * self.number_bytes)} per token"
        full = human((cached.kv_numbers - cached.window_kv_numbers) * self.number_bytes)
        windows = human(cached.window_kv_numbers * self.number_bytes)
        in_windows = window_blocks * self.numbers.block_tokens
        return f"{full} per token; {windows} per token for {in_windows} tokens in windows"

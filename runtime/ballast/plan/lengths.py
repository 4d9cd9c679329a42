"""Chooses the longest reply and the size of the KV cache if options leave them open. Pure.

A reasoning model needs thousands of tokens before it answers, and a server that cuts them off is useless. So both
follow from the model's context and the available memory, under the rule that a full batch of full-length replies fits.
A given value is kept, and the other one follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ballast.config.options import MAX_TOKENS, SchedulingConfig

LONGEST_REPLY = 32768
"""The limit of DeepSeek's own evaluations of R1. Longer replies must be configured."""
USEFUL_REPLY = 8192
"""Enough for most problems with R1. This takes precedence over longer steps and experts in GPU memory."""
SHORTEST_REPLY = 1024
"""If memory does not hold a full batch of these, it is too small for the model."""
AMPLE_CACHE = 32768
"""A cache of this many tokens, for one long conversation, takes precedence over holding all experts in GPU memory."""
_SPARE_DIVISOR = 4
"""A cache beyond USEFUL_REPLY takes at most 1/_SPARE_DIVISOR of the free memory. The rest is for experts in a GPU's
memory, and for other programs."""


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """Sizes of the cache in tokens (whole blocks) from which memory selects. All are the same if cache_lens is set."""

    least: int
    useful: int
    most: int
    block_tokens: int

    def fitting(self, largest: int) -> int:
        """The size if `useful` does not fit: at most `largest`, the largest that fits; at least `least`."""
        return max(self.least, min(self.useful, largest // self.block_tokens * self.block_tokens))

    def grown(self, largest: int, divisor: int = _SPARE_DIVISOR) -> int:
        """The size if `useful` fits, and `largest` is the largest that fits."""
        spare = max(0, largest - self.useful) // divisor
        return min(self.most, self.useful + spare // self.block_tokens * self.block_tokens)

    @property
    def ample(self) -> int:
        """The size that takes precedence over holding all experts in GPU memory."""
        return min(self.most, max(self.useful, AMPLE_CACHE))

    def all_grown(self, largest: int) -> list[int]:
        """The sizes beyond `ample` for memory that also holds all experts, if they fit; the best one first."""
        sizes = [self.grown(largest, _SPARE_DIVISOR * factor) for factor in (1, 2, 4, 8, 16)]
        return [size for size in dict.fromkeys(sizes) if size > self.ample]


@dataclass(frozen=True, slots=True)
class Lengths:
    """The values of the two options."""

    max_new_tokens: int
    cache_lens: int
    derived: Mapping[str, str]
    """Options that were not set → the reason for their value, for people."""


def cache_sizes(scheduling: SchedulingConfig, context_length: int) -> CacheSizes:
    """The sizes that suit a resolved configuration and a model with this context length in tokens."""
    block, batch, given = scheduling.block_tokens, scheduling.max_batch_size, scheduling.cache_lens

    def whole_blocks(num_tokens: int) -> int:
        return -(-min(num_tokens, MAX_TOKENS) // block) * block

    def holding(reply: int) -> int:
        return batch * min(reply, context_length) + 1

    if given is not None:
        return CacheSizes(*(whole_blocks(given),) * 3, block)
    requested = scheduling.max_new_tokens
    least = holding(SHORTEST_REPLY) if requested is None else batch * requested + 1
    useful = max(least, holding(USEFUL_REPLY))
    most = max(useful, holding(LONGEST_REPLY), context_length)
    return CacheSizes(whole_blocks(least), whole_blocks(useful), whole_blocks(most), block)


def lengths_of(
    scheduling: SchedulingConfig, context_length: int, cache_lens: int, sizes: CacheSizes, *, leaves_experts: bool
) -> Lengths:
    """Both options, after `cache_lens` was chosen from `sizes`. `leaves_experts`: whether a larger cache would displace
    experts from GPU memory that now holds all."""
    batch, derived = scheduling.max_batch_size, {}
    if scheduling.cache_lens is None:
        derived["cache_lens"] = (
            "it leaves room for all experts in GPU memory, which makes replies faster"
            if leaves_experts
            else _why_cache(scheduling, context_length, cache_lens, sizes)
        )
    max_new_tokens = scheduling.max_new_tokens
    if max_new_tokens is None:
        full_batch = (cache_lens - 1) // batch
        max_new_tokens, derived["max_new_tokens"] = min(
            (full_batch, f"a full batch of {batch} such replies fits in cache_lens = {cache_lens}"),
            (context_length, "the model's context"),
            (LONGEST_REPLY, "the longest reply by default"),
            key=lambda choice: choice[0],
        )
    return Lengths(max_new_tokens, cache_lens, derived)


def _why_cache(scheduling: SchedulingConfig, context_length: int, cache_lens: int, sizes: CacheSizes) -> str:
    batch, requested = scheduling.max_batch_size, scheduling.max_new_tokens
    if cache_lens >= sizes.most:
        longest = max(requested or 0, min(LONGEST_REPLY, context_length))
        return f"the model's context of {context_length} tokens, and a full batch of {batch} replies of {longest}, fit"
    if cache_lens > sizes.useful:
        return f"1/{_SPARE_DIVISOR} of the free memory, in addition to {_useful(scheduling)}"
    if cache_lens == sizes.useful:
        return f"{_useful(scheduling)} fit"
    if cache_lens > sizes.least:
        return f"the largest that fits; {_useful(scheduling)} would need {sizes.useful}"
    reply = requested or min(SHORTEST_REPLY, context_length)
    return f"the smallest that holds a full batch of {batch} replies of {reply}"


def _useful(scheduling: SchedulingConfig) -> str:
    return f"{scheduling.max_batch_size} replies of {max(scheduling.max_new_tokens or 0, USEFUL_REPLY)} tokens"

"""Rejects a plan that does not fit."""

from __future__ import annotations

from collections.abc import Sequence

from ballast.errors import OutOfMemoryError
from ballast.host.sizes import human
from ballast.plan.memory import MemoryPlan
from ballast.plan.rows import MemoryRow


def check_memory(plan: MemoryPlan) -> None:
    """Raises OutOfMemoryError with the numbers if the plan needs more than is available, on the host or on a GPU."""
    if plan.needed_bytes > plan.memory.available_bytes:
        found, more = human(plan.memory.available_bytes), "use a machine with more memory"
        if plan.memory.limited_by is not None:
            found, more = f"{found}, the limit of cgroup {plan.memory.limited_by}", "raise that limit"
        _refuse(plan, "", plan.uses, found, plan.max_cache_lens, more)
    too_small = [device for device in plan.devices if not device.fits]
    if too_small:  # the GPU with the least room limits the cache of all
        device = min(too_small, key=lambda device: device.max_cache_lens)
        memory = device.memory
        found, more = f"{human(memory.available_bytes)}, {memory.limited_by}", f"raise {memory.limit_option}"
        if memory.limit_option is None:
            more = "stop other programs that use it or use a GPU with more memory"
        _refuse(plan, f" on {memory.name}", device.uses, found, device.max_cache_lens, more)


def _refuse(
    plan: MemoryPlan, where: str, uses: Sequence[MemoryRow], available: str, max_cache_lens: int, more: str
) -> None:
    parts = ", ".join(f"{use.name} {human(use.num_bytes)}" for use in uses)
    needed = human(sum(use.num_bytes for use in uses))
    batch, advice = plan.numbers.max_batch_size, f"; the largest cache_lens that fits is {max_cache_lens}"
    if max_cache_lens and plan.lengths is not None and plan.lengths.derived:
        # Automatic reply lengths are already the shortest; shorter replies must be set by option.
        replies, lower = (f"{batch} replies", ", or lower max_batch_size") if batch > 1 else ("one reply", "")
        advice += f", which holds {replies} of {(max_cache_lens - 1) // batch} tokens: set both{lower}"
    if not max_cache_lens:
        advice = f", too little for any cache_lens; {more}, {_lower(uses)}use a model with fewer bits per weight"
    raise OutOfMemoryError(f"{plan.model} needs {needed}{where} ({parts}), {available} available{advice}")


def _lower(uses: Sequence[MemoryRow]) -> str:
    """The options that reduce memory, the one with the largest effect first."""
    largest = sorted(uses, key=lambda use: use.num_bytes, reverse=True)
    options = dict.fromkeys(use.option for use in largest if use.option is not None)
    return f"lower {' or '.join(options)}, or " if options else "or "

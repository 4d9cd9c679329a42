"""The refusal of what does not fit."""

from __future__ import annotations

from ballast.errors import OutOfMemoryError
from ballast.plan.memory import MemoryPlan
from ballast.plan.rows import MemoryRow
from ballast.sizes import human


def check_memory(plan: MemoryPlan) -> None:
    """Raises OutOfMemoryError with the numbers when the plan needs more than there is, in the host or on the GPU."""
    if plan.needed_bytes > plan.memory.available_bytes:
        limit = "" if plan.memory.limited_by is None else f", the limit of cgroup {plan.memory.limited_by}"
        lower = "lower chunk_size, or take a machine with more memory or a model with fewer bytes per weight"
        _refuse(plan.model, "", plan.uses, f"{human(plan.memory.available_bytes)}{limit}", plan.max_cache_lens, lower)
    if plan.device is not None and not plan.device.fits:
        memory = plan.device.memory
        lower = "lower chunk_size, or take a GPU with more memory or a model with fewer bytes per weight"
        found = f"{human(memory.available_bytes)}, {memory.limited_by}"
        _refuse(plan.model, f" on {memory.name}", plan.device.uses, found, plan.device.max_cache_lens, lower)


def _refuse(
    model: str, where: str, uses: tuple[MemoryRow, ...], available: str, max_cache_lens: int, lower: str
) -> None:
    parts = ", ".join(f"{use.name} {human(use.num_bytes)}" for use in uses)
    needed = human(sum(use.num_bytes for use in uses))
    way_out = f"the largest cache_lens that fits is {max_cache_lens}" if max_cache_lens else lower
    raise OutOfMemoryError(f"{model} needs {needed}{where} ({parts}), available are {available}; {way_out}")

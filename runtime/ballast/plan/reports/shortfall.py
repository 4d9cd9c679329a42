"""Explains how much memory is missing for a plan, and which quantisation would fit. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ballast.host.sizes import human
from ballast.model.spec import ModelSpec
from ballast.model.tensors import expected_tensors
from ballast.plan.memory import MemoryPlan
from ballast.weights.gguf import GgufModel

_BITS = dict(
    (
        *(("Q8_0", 8.5), ("Q6_K", 6.6), ("Q5_K_M", 5.7), ("Q4_K_M", 4.85), ("Q4_K_S", 4.6), ("IQ4_XS", 4.3)),
        *(("Q3_K_M", 3.9), ("IQ3_XXS", 3.1), ("Q2_K", 3.0), ("IQ2_XXS", 2.1), ("IQ1_S", 1.6)),
    )
)
"""Approximate bits per weight of files with these quantisations, the most exact first."""


def shortfall_lines(
    gguf: GgufModel, spec: ModelSpec, plan: MemoryPlan, others: Sequence[tuple[str, int]] = ()
) -> list[str]:
    """Sentences about missing memory; none if the plan fits. `others`: the same model in other quantisations, by name
    and bytes; if empty, common quantisations are named."""
    lines = []
    lacking = plan.needed_bytes - plan.memory.available_bytes
    if lacking > 0:
        lines.append(f"{human(lacking)} more host memory is needed.")
        if not plan.max_cache_lens:  # otherwise a smaller cache fits, as the error says
            share = 1 - lacking / max(1, _weights(plan))
            expected = expected_tensors(spec)
            file_bytes = sum(gguf.tensors[name].num_bytes for name in expected)
            num_weights = sum(math.prod(tensor.shape) for tensor in expected.values())
            lines.append(_would_fit(int(share * file_bytes), num_weights, others))
    for device in plan.devices:
        if not device.fits:
            more = human(device.needed_bytes - device.memory.available_bytes)
            lines.append(f"{more} more memory of {device.memory.name} is needed.")
    return lines


def _weights(plan: MemoryPlan) -> int:
    """Bytes of the weights in host memory."""
    return sum(row.num_bytes for row in plan.weights if row.device == "cpu")


def _would_fit(budget: int, num_weights: int, others: Sequence[tuple[str, int]]) -> str:
    if others:
        fitting = [other for other in others if other[1] <= budget]
        if not fitting:
            return "None of the repository's models would fit."
        name, num_bytes = max(fitting, key=lambda other: other[1])
        return f"Of the repository's models, {name} ({human(num_bytes)}) would probably fit."
    bits = 8 * budget / max(1, num_weights)
    common = next((name for name, needed in _BITS.items() if needed <= bits), None)
    if common is None:
        return "No common quantisation of this model would fit."
    return f"A file of about {bits:.1f} bits per weight would fit, such as {common}."

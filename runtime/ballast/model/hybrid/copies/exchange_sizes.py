"""Sizes of the host memory through which devices without access to each other exchange activations. Pure."""

from __future__ import annotations

from ballast.model.spec import ModelSpec

_ALIGNED = 16
"""Tensors in host memory begin at multiples of this many bytes: for others, Triton compiles another kernel."""
_NUMBER_BYTES = 4
"""Bytes of a float32 or int32."""


def aligned(num_bytes: int) -> int:
    """`num_bytes`, rounded up to where the next tensor may begin."""
    return -(-num_bytes // _ALIGNED) * _ALIGNED


def exchange_bytes(spec: ModelSpec, num_tokens: int) -> int:
    """Maximum bytes that one device sends in one copy in steps of `num_tokens` tokens: activations, and the numbers and
    weights of the selected experts."""
    num_used = spec.routing.num_experts_used
    return sum(aligned(num_tokens * width * _NUMBER_BYTES) for width in (spec.hidden, num_used, num_used))

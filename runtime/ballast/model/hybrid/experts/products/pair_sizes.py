"""When thousands of tokens are multiplied with decoded experts, and the memory for these. Pure."""

from __future__ import annotations

MIN_PAIRS = 128
"""Minimum average number of tokens per expert for which decoding it to memory pays."""
DECODED_BYTES = 640 << 20
"""Maximum memory for decoded experts, unless a single one needs more."""
HIDDEN_BYTES = 640 << 20
"""Maximum memory for the hidden values of their pairs, unless one expert with all tokens needs more."""
SUMS = 2
"""Number of experts whose results are added at a time, which is the number of sums per token: a single expert does not
fill a GPU evenly."""


def is_faster(num_tokens: int, num_used: int, num_experts: int) -> bool:
    """Whether there are enough tokens to decode experts to memory. Each token uses `num_used` of `num_experts`."""
    return num_tokens * num_used >= MIN_PAIRS * num_experts

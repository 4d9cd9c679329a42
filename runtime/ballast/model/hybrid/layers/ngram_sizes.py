"""Sizes of the temporary memory of an n-gram embedding. Pure."""

GATED_AT_ONCE = 1024
"""Tokens whose gated values an n-gram embedding has in memory at a time."""

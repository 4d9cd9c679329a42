"""Whether to divide the heads of a long slice among devices. Pure."""

from __future__ import annotations

from ballast.model.hybrid.attention.expanded import ExpandedSizes

OPERATIONS_PER_S = 4e14
"""An estimate of what a fast GPU computes in expanded attention. Slower ones gain more."""
MIN_GAIN = 1.5
"""Minimum ratio of the saved time to the time of the copies, which share links with those of experts."""


def division_pays(sizes: ExpandedSizes, gigabyte_s: float, num_devices: int, num_queries: int, num_before: int) -> bool:
    """Whether `num_devices` devices attend faster than one. `gigabyte_s`: seconds in which one copies a gigabyte to
    another. `num_queries` tokens attend to themselves and to `num_before` earlier ones."""
    width, expanded = sizes.nope_dim + sizes.rope_dim, sizes.nope_dim + sizes.v_dim
    num_keys = num_before + num_queries
    pairs = num_queries * num_before + num_queries * num_queries // 2
    operations = 2 * pairs * (width + sizes.v_dim) + 4 * sizes.rank * expanded * num_keys
    # Queries and matrices in half precision, averages as floats; each device also gets all rows of the cache.
    num_bytes = num_queries * (2 * width + 4 * sizes.v_dim) + 4 * sizes.rank * expanded
    row_bytes = 2 * num_keys * (sizes.rank + sizes.rope_dim)
    elsewhere = sizes.num_heads * (num_devices - 1) / num_devices
    copies_s = (elsewhere * num_bytes + (num_devices - 1) * row_bytes) * gigabyte_s / 1e9
    return elsewhere * operations / OPERATIONS_PER_S > MIN_GAIN * copies_s

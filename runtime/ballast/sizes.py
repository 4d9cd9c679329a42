"""Sizes for people."""

from __future__ import annotations


def human(num_bytes: int) -> str:
    """Binary units, three digits or so."""
    if num_bytes < 1024:
        return f"{num_bytes} B"
    size = float(num_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1023.95 or unit == "TiB":
            break
    return f"{size:.1f} {unit}"

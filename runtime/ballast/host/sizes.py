"""Formats sizes for people."""

from __future__ import annotations


def human(num_bytes: int) -> str:
    """A number of bytes with one decimal and a binary unit, such as "1.5 GiB"."""
    if num_bytes < 1024:
        return f"{num_bytes} B"
    size = float(num_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1023.95 or unit == "TiB":
            break
    return f"{size:.1f} {unit}"

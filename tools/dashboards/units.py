"""Formats numbers in a panel's unit, as Grafana does."""

from __future__ import annotations

_DECIMAL = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"))
_TIMES = ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"))
_AFTER = {"short": "", "reqps": " req/s", "ops": " ops/s"}


def shown(value: float, unit: str) -> str:
    """Raises ValueError for a unit that is not supported."""
    if unit == "percentunit":
        return f"{_short(value * 100)} %"
    if unit == "s":
        return _with_prefix(value, _TIMES, " ", "s")
    if unit == "bytes":
        return _with_prefix(value, _BINARY, " ", "") + "B"
    if unit == "Bps":
        return _with_prefix(value, _DECIMAL, " ", "") + "B/s"
    if unit in _AFTER:
        return _with_prefix(value, _DECIMAL, "", "").strip() + _AFTER[unit]
    raise ValueError(
        f"unit {unit!r} of a panel is not supported; use one of percentunit, s, bytes, Bps, {', '.join(_AFTER)}"
    )


def _with_prefix(value: float, prefixes: tuple[tuple[float, str], ...], between: str, smallest: str) -> str:
    for size, prefix in prefixes:
        if abs(value) >= size:
            return f"{_short(value / size)}{between}{prefix}"
    return f"{_short(value)}{between}{smallest}"


def _short(value: float) -> str:
    """Three digits, without trailing zeros."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"

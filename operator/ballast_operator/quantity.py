"""Quantities of the Kubernetes API."""

from __future__ import annotations

import math
import re
from decimal import Decimal

_SUFFIXES = {
    "": Decimal(1),
    **{name: Decimal(10) ** power for name, power in (("n", -9), ("u", -6), ("m", -3))},
    **{name: Decimal(1000) ** power for power, name in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{name: Decimal(1024) ** power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i|))")
"""A number with a power of ten or a suffix. Powers have at most three digits, which bounds the size of the result."""


def parse_bytes(text: str) -> int:
    """The bytes that a quantity such as "440Gi" stands for, rounded up. Raises ValueError."""
    return math.ceil(_parse(text))


def canonical_bytes(text: str) -> str:
    """The same quantity of bytes under the largest power of 1024 that gives a whole number. Raises ValueError."""
    number, suffixes = parse_bytes(text), ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
    while number and number % 1024 == 0 and len(suffixes) > 1:
        number //= 1024
        del suffixes[0]
    return f"{number}{suffixes[0]}"


def parse_count(text: str) -> Decimal:
    """The number that a quantity such as "1500m" stands for. Raises ValueError."""
    return _parse(text)


def _parse(text: str) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity such as 440Gi")
    number, power, suffix = match.groups()
    return Decimal(f"{number}e{power}") if power else Decimal(number) * _SUFFIXES[suffix]

"""Quantities of the Kubernetes API."""

from __future__ import annotations

import math
import re
from decimal import Decimal

_SUFFIXES = {
    "": 1,
    **{name: 1000**power for power, name in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{name: 1024**power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(m|[kMGTPE]|[KMGTPE]i|)")


def parse_bytes(text: str) -> int:
    """The bytes that a quantity such as "440Gi" stands for, rounded up. Raises ValueError."""
    return math.ceil(_parse(text))


def parse_count(text: str) -> Decimal:
    """The number that a quantity such as "1500m" stands for. Raises ValueError."""
    return _parse(text)


def _parse(text: str) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity such as 440Gi")
    number, suffix = match.groups()
    return Decimal(number) / 1000 if suffix == "m" else Decimal(number) * _SUFFIXES[suffix]

"""A machine, and the use of a model, described by options of `ballast plan`. Missing values are those of this
machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ballast.config.kinds import size
from ballast.errors import ConfigError
from ballast.moe.expert_skew import ExpertSkew, read_skew

T = TypeVar("T")
_LANE_BYTES_PER_S = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Rate of one PCIe lane, by generation."""
_COPIED_SHARE = 0.8
"""Fraction of that rate that copies from pinned memory reach."""


@dataclass(frozen=True, slots=True)
class Described:
    """Rates are in bytes per second; None: this machine's value."""

    host_memory: int | None = None
    """Bytes that may be used."""
    memory_bandwidth: float | None = None
    """Rate at which all threads together read host memory."""
    gpu_bandwidth: float | None = None
    pcie: float | None = None
    hot_experts: ExpertSkew | None = field(default=None, compare=False)
    """How the model is used, which does not make the machine another one."""


THIS_MACHINE = Described()


def read_described(given: Mapping[str, Any]) -> Described:
    """The values of options by name, which are texts or None. Raises ConfigError."""

    def value(name: str, read: Callable[[str, str], T]) -> T | None:
        return None if given[name] is None else read(name, given[name])

    return Described(
        value("host_memory", read_size),
        value("memory_bandwidth", read_rate),
        value("gpu_bandwidth", read_rate),
        value("pcie", read_pcie),
        value("hot_experts", read_skew),
    )


def read_rate(option: str, text: str) -> float:
    """A rate such as 300GB/s. Raises ConfigError."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?([MGT])B/s", text)
    if found is None or float(found[1]) <= 0:
        raise ConfigError(option, text, "expected a rate such as 300GB/s")
    return float(found[1]) * 1000.0 ** ("MGT".index(found[2]) + 2)


def read_size(option: str, text: str) -> int:
    """A number of bytes such as 384GiB. Raises ConfigError."""
    kind = size()
    try:
        found = kind.parse(text)
    except ValueError:
        found = None
    if found is None or not kind.accepts(found):
        raise ConfigError(option, text, "expected a size such as 384GiB")
    return int(found)


def read_pcie(option: str, text: str) -> float:
    """The rate of copies over a bus such as 4x16, or the given rate. Raises ConfigError."""
    found = re.fullmatch(r"([3-6])x(1|2|4|8|16)", text)
    if found is None:
        if text.endswith("B/s"):
            return read_rate(option, text)
        raise ConfigError(option, text, "expected generation and lanes, such as 4x16, or a rate such as 25GB/s")
    return _LANE_BYTES_PER_S[int(found[1])] * int(found[2]) * _COPIED_SHARE

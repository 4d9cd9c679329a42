"""Chooses the instruction set of the CPU kernels."""

from __future__ import annotations

import os

from ballast._core import kernels
from ballast.errors import ConfigError

VARIABLE = "BALLAST_CPU_ISA"


def packing_flags() -> tuple[str, ...]:
    """CPU features that packed weights need, named as in /proc/cpuinfo: those of the smallest fast instruction set.
    Empty on an architecture without fast kernels."""
    fast = kernels.fast_isas()
    return tuple(fast[-1].cpu_flags) if fast else ()


def chosen_isa() -> str:
    """The instruction set in the environment variable BALLAST_CPU_ISA, otherwise the best usable one.

    Raises ConfigError, which lists the usable ones, if the named one is not usable.
    """
    usable, named = kernels.usable_isas(), os.environ.get(VARIABLE)
    if not named:
        return usable[0]
    if named not in usable:
        raise ConfigError(VARIABLE, named, f"usable on this machine are {', '.join(usable)}")
    return named

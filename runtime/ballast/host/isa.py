"""Chooses the instruction set of the CPU kernels."""

from __future__ import annotations

import os

from ballast._core import kernels
from ballast.errors import ConfigError

VARIABLE = "BALLAST_CPU_ISA"


def packing_flags() -> tuple[str, ...]:
    """What a CPU must have so that weights can be packed, as /proc/cpuinfo names it: what the least of the fast
    instruction sets needs. Empty where this build has none, being for another architecture."""
    fast = kernels.fast_isas()
    return tuple(fast[-1].cpu_flags) if fast else ()


def chosen_isa() -> str:
    """The instruction set that the environment variable BALLAST_CPU_ISA names, else the best one that is usable here.

    Raises ConfigError, which lists the usable ones, if the named one is not usable.
    """
    usable, named = kernels.usable_isas(), os.environ.get(VARIABLE)
    if not named:
        return usable[0]
    if named not in usable:
        raise ConfigError(VARIABLE, named, f"usable on this machine are {', '.join(usable)}")
    return named

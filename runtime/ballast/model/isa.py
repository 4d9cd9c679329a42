"""Which CPU kernels multiply the weights."""

from __future__ import annotations

from ballast._core import kernels
from ballast.errors import ConfigError


def chosen_isa() -> str:
    """The instruction set that the environment variable BALLAST_CPU_ISA names, or the best that is usable here.

    Raises ConfigError, listing the usable ones, when the one named is not among them.
    """
    try:
        return kernels.isa()
    except ValueError as error:
        value = str(error).removeprefix("BALLAST_CPU_ISA is ").partition(";")[0]
        raise ConfigError(
            "BALLAST_CPU_ISA", value, f"usable on this machine are {', '.join(kernels.usable_isas())}"
        ) from error

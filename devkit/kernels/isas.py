"""The instruction sets that tests run under. Those that this CPU lacks are reported as skipped."""

from __future__ import annotations

import pytest

from ballast._core import kernels

FAST_ISAS = tuple(fast.name for fast in kernels.fast_isas())
"""All that there are kernels for but the reference, best first."""


def isa_params(*isas: str) -> list[object]:
    """pytest parameters for `isas` (by default all fast ones). Unusable ones are skipped with the reason."""
    usable = kernels.usable_isas()
    return [
        pytest.param(
            isa, marks=() if isa in usable else pytest.mark.skip(reason=f"this CPU or its system cannot run {isa}")
        )
        for isa in isas or FAST_ISAS
    ]

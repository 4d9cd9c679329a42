"""The instruction sets that tests run under, with those that this CPU lacks reported and never left out in silence."""

from __future__ import annotations

import pytest

from ballast._core import kernels

FAST_ISAS = ("amx", "avx512", "avx2")  # best first, as kernels.usable_isas() has them
NOT_USABLE = "this CPU or its system cannot run "


def isa_params(*isas: str) -> list[object]:
    """Parameters for pytest, all of `isas` (every fast one by default); unusable ones are skipped with the reason."""
    usable = kernels.usable_isas()
    return [
        pytest.param(isa, marks=() if isa in usable else pytest.mark.skip(reason=NOT_USABLE + isa))
        for isa in isas or FAST_ISAS
    ]

"""Checks of kernels before they are used: whether they compile, and whether their results are those of plain
arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import torch

from ballast.errors import first_line
from ballast.model.hybrid.agreement import MAX_DIFFERENCE, difference
from ballast.model.hybrid.faults.device_errors import DEVICE_ERRORS

ParallelCompile = Callable[[], AbstractContextManager[None]]
"""A context in which launches only compile: see `startup/parallel_compile.py`."""


def why_unusable(check: Callable[[], str | None]) -> str | None:
    """What a check of kernels finds wrong, or the error with which they cannot be compiled; None: nothing. Raises the
    errors that CUDA itself reports."""
    try:
        return check()
    except DEVICE_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001  compilers raise errors of any type
        return first_line(error)


def require(
    what: str, launch: Callable[[], object], why_wrong: Callable[[], str | None], parallel_compile: ParallelCompile
) -> None:
    """Check kernels for which there is no alternative, first compiling those that `launch` uses. Raises ValueError if
    they cannot be compiled or `why_wrong` returns a reason, and the errors that CUDA itself reports. `what`: the
    operation that they compute, in the singular."""

    def check() -> str | None:
        with parallel_compile():
            launch()
        return why_wrong()

    if (reason := why_unusable(check)) is not None:
        raise ValueError(f"{what} does not work on this GPU: {reason}; use --device cpu")


def why_different(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> str | None:
    """The first results, by their name in the plural, that differ from those of the plain implementation; or None."""
    for name, plain in expected.items():
        if plain.numel() == 0:
            continue
        by = difference(found[name].float().cpu().numpy(), plain.float().cpu().numpy())
        if not by <= MAX_DIFFERENCE:
            return f"{name} differ from the plain implementation's by {by:.2g} of the largest"
    return None

"""Runs the kernels of recurrent layers in Triton's interpreter."""

from __future__ import annotations

import pytest

from ballast.model.hybrid.recurrent import (
    chunk_kernels,
    conv_kernels,
    delta_kernels,
    row_decay_kernels,
    triton_convolution,
    triton_recurrence,
)
from devkit.kernels.interpreted import interpreted


def interpret_recurrence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpret the kernels of `TritonRecurrence` on the CPU."""
    for module in (chunk_kernels, conv_kernels, delta_kernels, row_decay_kernels):
        name = module.__name__.rpartition(".")[2]
        user = triton_convolution if module is conv_kernels else triton_recurrence
        monkeypatch.setattr(user, name, interpreted(module, monkeypatch))

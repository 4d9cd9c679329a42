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

RECURRENT = (
    (triton_convolution, "conv_kernels", conv_kernels),
    (triton_recurrence, "delta_kernels", delta_kernels),
    (triton_recurrence, "chunk_kernels", chunk_kernels),
    (triton_recurrence, "row_decay_kernels", row_decay_kernels),
)
"""The user of each module of kernels, the name by which it uses it, and the module."""


def interpret_recurrence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpret the kernels of `TritonRecurrence` on the CPU."""
    for user, name, module in RECURRENT:
        monkeypatch.setattr(user, name, interpreted(module, monkeypatch))

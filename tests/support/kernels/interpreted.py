"""Runs Triton kernels in Triton's interpreter, on the CPU."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction


def interpreted(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of a module of kernels whose kernels are always interpreted, as are the functions that they use from other
    modules. Triton decides that when a kernel is defined, so the modules are executed again.
    The only PTX instruction that the interpreter supports is the one that `_permuted` implements."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(InterpreterBuilder, "create_inline_asm", _permuted)
    spec = importlib.util.spec_from_file_location(f"interpreted_{kernels.__name__}", kernels.__file__ or "")
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    for name, value in list(vars(copy).items()):
        if isinstance(value, JITFunction):
            monkeypatch.setattr(copy, name, vars(interpreted(sys.modules[value.fn.__module__], monkeypatch))[name])
    return copy


def _permuted(
    builder: object, asm: str, constraints: str, values: Sequence[TensorHandle], types: object, is_pure: bool, pack: int
) -> Any:
    """PTX's prmt.b32, of words of any shape."""
    assert asm == "prmt.b32 $0, $1, $2, $3;", f"the interpreter does not know {asm!r}"
    first, second, places = (np.asarray(value.data).astype(np.int64) & 0xFFFFFFFF for value in values)
    found = second << 32 | first
    word = np.zeros_like(found)
    for byte in range(4):
        place = places >> (4 * byte) & 15
        chosen = found >> (8 * (place & 7)) & 0xFF
        chosen = np.where(place & 8, (chosen >> 7) * 0xFF, chosen)
        word |= chosen << (8 * byte)
    result = TensorHandle(word.astype(np.uint32).view(np.int32), values[0].dtype)
    return SimpleNamespace(get_result=lambda index: result)

"""Triton kernels run by Triton's interpreter, on the CPU."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from triton.runtime.jit import JITFunction


def interpreted(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of a module of kernels, which are interpreted wherever they are launched, as are the functions that they
    take from other modules. Whether they are is decided when a kernel is defined, so the modules are executed anew."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    spec = importlib.util.spec_from_file_location(f"interpreted_{kernels.__name__}", kernels.__file__ or "")
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    for name, value in list(vars(copy).items()):
        if isinstance(value, JITFunction):
            monkeypatch.setattr(copy, name, vars(interpreted(sys.modules[value.fn.__module__], monkeypatch))[name])
    return copy

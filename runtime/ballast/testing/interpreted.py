"""Triton kernels run by Triton's interpreter, on the CPU."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest


def interpreted(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of a module of kernels, which are interpreted wherever they are launched. Whether they are is decided when
    a kernel is defined, so the module is executed anew."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    spec = importlib.util.spec_from_file_location(f"interpreted_{kernels.__name__}", kernels.__file__ or "")
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy

"""Handles forks: the child's copy of a loaded model must neither be used nor freed.

Threads do not survive a fork. A child that uses its copy of a model would wait forever, and freeing the copy would wait
for threads that do not exist."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

_KEPT: weakref.WeakSet[Any] = weakref.WeakSet()


def never_freed_by_a_child(loaded: Any) -> None:
    """Keep `loaded` alive in every process that is forked from this one, until that process ends."""
    _KEPT.add(loaded)


def check_not_forked(loader_pid: int, kind: str) -> None:
    """Raise RuntimeError if this process is not the one that loaded the model."""
    if os.getpid() != loader_pid:
        raise RuntimeError(
            f"this {kind} was loaded by process {loader_pid}, and this process {os.getpid()} was forked from it "
            f"without its threads; load a new {kind} here, or start processes with the method 'spawn'"
        )


def _keep_all() -> None:
    for loaded in _KEPT:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))


os.register_at_fork(after_in_child=_keep_all)

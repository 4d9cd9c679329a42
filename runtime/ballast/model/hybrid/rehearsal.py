"""Triton kernels compiled side by side. Left alone, each is compiled at its first launch, while all else waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from typing import Any

import triton
from triton.runtime.jit import KernelInterface

from ballast.errors import first_line
from ballast.machine import read_machine

log = logging.getLogger(__name__)


@contextmanager
def rehearsal(use_device: Callable[[], None], report: Callable[[float], None]) -> Iterator[None]:
    """Within it no kernel is launched: those that would be are compiled by threads of our own, so that what is computed
    is of no use and its first real launch finds them. At its end it waits for them; `report` gets the share done, 0…1.
    A kernel that cannot be compiled fails at its launch. `use_device` binds a thread to the device."""
    begin = time.monotonic()
    with ThreadPoolExecutor(read_machine().num_busy_cpus, "ballast-compile", use_device) as threads:
        compilers = _Compilers(threads)
        with triton.AsyncCompileMode(compilers, ignore_errors=True):
            launch = KernelInterface.__getitem__
            KernelInterface.__getitem__ = _compiled_only
            try:
                yield
            finally:
                KernelInterface.__getitem__ = launch
            for done, _ in enumerate(as_completed(compilers.futures), 1):
                report(done / len(compilers.futures))
    seconds = round(time.monotonic() - begin, 2)
    log.info("kernels compiled", extra={"kernels": len(compilers.futures), "seconds": seconds})


def _compiled_only(kernel: Any, grid: Any) -> Callable[..., Any]:
    return partial(kernel.warmup, grid=grid)


class _Compilers(Executor):
    """Also loads what it has compiled, for which Triton may have to compile a launcher."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = self._threads.submit(_loaded, fn, *args, **kwargs)
        self.futures.append(future)
        return future


_alone = threading.Lock()


def _loaded(compile_kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A compile that fails beside others gets a second chance, one at a time: its launch would only raise the error."""

    def load() -> Any:
        kernel = compile_kernel(*args, **kwargs)
        _ = kernel.run
        return kernel

    try:
        return load()
    except Exception as error:  # noqa: BLE001  compilers raise whatever they like
        log.warning("a kernel is compiled once more", extra={"error": first_line(error)})
    with _alone:
        return load()

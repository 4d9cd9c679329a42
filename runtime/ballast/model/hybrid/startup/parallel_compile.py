"""Compiles Triton kernels in parallel and before their first launch. By default, Triton compiles each kernel at its
first launch and blocks until it is done."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, Self

import triton
from triton.runtime import build
from triton.runtime.jit import JITFunction, KernelInterface

from ballast.errors import first_line
from ballast.host.machine import read_machine

log = logging.getLogger(__name__)

_parsing = threading.Lock()


def _one_at_a_time(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(parse)
    def parse_alone(kernel: Any) -> Any:
        with _parsing:
            return parse(kernel)

    return parse_alone


# Python 3.11 before 3.11.8, such as that of Debian 12, fails at random if two threads parse ("AST constructor recursion
# depth mismatch"). In the thread that launches, this would end the start, and Triton would keep a wrong hash.
_parser = next(each for each in JITFunction.mro() if "parse" in vars(each))  # which of them depends on Triton's version
_parser.parse = _one_at_a_time(_parser.parse)

_importing = threading.Lock()


def _with_modules_of_their_own(load: Callable[[str, str], ModuleType]) -> Callable[[str, str], ModuleType]:
    @functools.wraps(load)
    def load_alone(name: str, path: str) -> ModuleType:
        with _importing:
            module = ModuleType(name)
            vars(module).update(vars(load(name, path)))
            return module

    return load_alone


# Older Triton (not 3.7) compiles a launcher for each signature, all as modules of one name. When Python loads such a
# file again, it updates the module that it loaded last under this name, so a thread could get another kernel's launcher
# ("function takes exactly 27 arguments (52 given)").
if hasattr(build, "_load_module_from_path"):
    build._load_module_from_path = _with_modules_of_their_own(build._load_module_from_path)


@contextmanager
def parallel_compile(use_device: Callable[[], None], report: Callable[[float], None]) -> Iterator[None]:
    """A context in which launches only compile: a pool of threads compiles the kernels, and leaving the context waits
    for them. Results computed inside are meaningless, except small copies (`small_copies`), from which other kernels
    read addresses. Run the same code again afterwards, and each launch finds its kernel. A kernel that does not compile
    raises at that launch, not here.

    `use_device` is called once on each thread and binds it to the device; `report` gets the fraction done, 0…1."""
    begin = time.monotonic()
    with ThreadPoolExecutor(read_machine().num_busy_cpus, "ballast-compile", use_device) as threads:
        compilers = _Compilers(threads)
        with triton.AsyncCompileMode(compilers, ignore_errors=True):
            with _launches_only_compile():
                yield
            for done, _ in enumerate(as_completed(compilers.futures), 1):
                report(done / len(compilers.futures))
    seconds = round(time.monotonic() - begin, 2)
    log.info("kernels compiled", extra={"kernels": len(compilers.futures), "seconds": seconds})


class CompileAhead:
    """Compiles Triton kernels on other threads while this one continues. Leaving this context does not wait:
    compilation continues in the background. If an error leaves the context, the compilers stop."""

    def __init__(self, use_device: Callable[[], None]) -> None:
        """`use_device`: see `parallel_compile`. Half of the CPUs stay free for this thread's work."""
        self._threads = ThreadPoolExecutor(-(-read_machine().num_busy_cpus // 2), "ballast-compile", use_device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self._threads.shutdown(wait=error_type is not None, cancel_futures=error_type is not None)

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """A context in which launches only compile, as in `parallel_compile`, but leaving it does not wait. The first
        real launch of a kernel waits until the kernel is compiled."""
        with triton.AsyncCompileMode(_Compilers(self._threads), ignore_errors=True) as mode:
            try:
                with _launches_only_compile():
                    yield
            finally:
                mode.raw_futures.clear()  # leaving the mode would wait for these


@contextmanager
def _launches_only_compile() -> Iterator[None]:
    launch = KernelInterface.__getitem__
    KernelInterface.__getitem__ = _compiled_only
    try:
        yield
    finally:
        KernelInterface.__getitem__ = launch


def _compiled_only(kernel: Any, grid: Any) -> Callable[..., Any]:
    return partial(kernel.warmup, grid=grid)


class _Compilers(Executor):
    """Compiles and also loads each kernel: Triton may have to compile a launcher for it."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = self._threads.submit(_loaded, fn, *args, **kwargs)
        self.futures.append(future)
        return future


_alone = threading.Lock()


def _loaded(compile_kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compile and load a kernel. Many concurrent compilations may cause a failure, so a failed kernel is retried once,
    and no two kernels are retried at the same time."""

    def load() -> Any:
        kernel = compile_kernel(*args, **kwargs)
        _ = kernel.run
        return kernel

    try:
        return load()
    except Exception as error:  # noqa: BLE001  compilers raise errors of any type
        log.warning("retrying the compilation of a kernel", extra={"error": first_line(error)})
    with _alone:
        try:
            return load()
        except Exception as error:
            log.warning("a kernel does not compile", extra={"error": first_line(error)})
            raise

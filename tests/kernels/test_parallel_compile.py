"""Kernels are compiled in parallel before the first of them is launched; for a GPU that is not here, through a
driver that only counts what it is given to load and to launch."""

from __future__ import annotations

import ast
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import build, jit
from triton.runtime.jit import KernelInterface

from ballast.host.cgroup import CpuQuota
from ballast.host.machine import read_machine
from ballast.model.hybrid.pointwise import pointwise_kernels
from ballast.model.hybrid.startup.parallel_compile import CompileAhead, parallel_compile

BLOCKS = (64, 128, 256)


class Driver:
    """Of a GPU that runs nothing."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.num_launched = 0
        self.utils = SimpleNamespace(
            load_binary=self._load, get_device_properties=lambda device: {"max_shared_mem": 227 << 10}
        )

    def launcher_cls(self, source: object, metadata: object) -> Any:
        return self._launch

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def _launch(self, *args: object) -> None:
        self.num_launched += 1

    def _load(self, name: str, *args: object) -> tuple[object, object, int, int, int]:
        self.loaded.append(threading.current_thread().name)
        return object(), object(), 32, 0, 1024


@pytest.fixture
def driver(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        pointwise_kernels.gated,
        "device_caches",
        type(pointwise_kernels.gated.device_caches)(pointwise_kernels.gated.create_binder),
    )
    driver = Driver()
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    return driver


def step(x: torch.Tensor) -> None:
    for block in BLOCKS:
        pointwise_kernels.gated[(2, 1)](x, x, x, 64, 64, 0.0, 0.0, UNIT=0, BLOCK=block)


@pytest.fixture
def one_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = replace(read_machine(), cpu_quota=CpuQuota(1.5, "/pod"))
    monkeypatch.setattr("ballast.model.hybrid.startup.parallel_compile.read_machine", lambda: machine)


@pytest.mark.usefixtures("one_cpu")
def test_the_cpu_quota_limits_compiling_threads(driver: Driver) -> None:
    with parallel_compile(lambda: None, lambda _: None):
        step(torch.zeros(64))
    assert driver.loaded == ["ballast-compile_0"] * len(BLOCKS)


def test_kernels_are_compiled_and_loaded_by_threads_before_launch(driver: Driver) -> None:
    x, bound, reported = torch.zeros(2, 64), [], []
    plain = KernelInterface.__getitem__
    with parallel_compile(lambda: bound.append(threading.current_thread().name), reported.append):
        step(x)
        step(x)
    assert KernelInterface.__getitem__ is plain
    assert driver.num_launched == 0
    assert len(driver.loaded) == len(BLOCKS)
    assert set(driver.loaded) <= set(bound)
    assert reported == pytest.approx([(done + 1) / len(BLOCKS) for done in range(len(BLOCKS))])
    step(x)
    assert driver.num_launched == len(driver.loaded) == len(BLOCKS)


def test_a_kernel_that_cannot_be_compiled_fails_where_it_is_launched(driver: Driver) -> None:
    x = torch.zeros(2, 64)
    with parallel_compile(lambda: None, lambda share: None):
        pointwise_kernels.gated[(2, 1)](x, x, x, 64, 64, 0.0, 0.0, UNIT=0, BLOCK=96)  # no power of two
    with pytest.raises(triton.CompilationError):
        pointwise_kernels.gated[(2, 1)](x, x, x, 64, 64, 0.0, 0.0, UNIT=0, BLOCK=96)
    assert driver.num_launched == 0


@pytest.mark.usefixtures("one_cpu")  # else a kernel could fail twice, once for want of processes
def test_a_compile_that_fails_once_is_made_up_for(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = driver.utils.load_binary
    failures = [OSError("no more processes")]

    def load(name: str, *args: object) -> tuple[object, object, int, int, int]:
        if failures:
            raise failures.pop()
        return whole(name, *args)

    monkeypatch.setattr(driver.utils, "load_binary", load)
    x = torch.zeros(2, 64)
    with parallel_compile(lambda: None, lambda share: None):
        step(x)
    loaded = list(driver.loaded)
    step(x)
    assert driver.num_launched == len(loaded) == len(driver.loaded) == len(BLOCKS)


def test_only_one_thread_parses_at_a_time(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, parsing, most = ast.parse, threading.Semaphore(1), []

    def watched(source: str) -> ast.Module:
        most.append(parsing.acquire(blocking=False))
        time.sleep(0.02)  # for another thread
        parsing.release()
        return parse(source)

    monkeypatch.setattr(jit, "ast", SimpleNamespace(**vars(ast) | {"parse": watched}))
    with parallel_compile(lambda: None, lambda share: None):
        step(torch.zeros(64))
    assert len(most) >= len(BLOCKS)
    assert all(most)


LAUNCHER = """
#include <Python.h>
static PyObject* launch(PyObject* self, PyObject* none) { return PyLong_FromLong(%d); }
static PyMethodDef methods[] = {{"launch", launch, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "__triton_launcher", NULL, -1, methods};
PyMODINIT_FUNC PyInit___triton_launcher(void) { return PyModule_Create(&module); }
"""


def test_launchers_that_are_loaded_again_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older Triton loads a launcher for each kernel, and reads it a moment later."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    numbers = [1, 2, 1, 2]
    loaded = [build.compile_module_from_src(LAUNCHER % number, "__triton_launcher") for number in numbers]
    assert [each.launch() for each in loaded] == numbers


def test_kernels_are_compiled_ahead_without_blocking_others(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, may_load, x = driver.utils.load_binary, threading.Event(), torch.zeros(2, 64)

    def load(name: str, *args: object) -> tuple[object, object, int, int, int]:
        assert may_load.wait(60)
        return whole(name, *args)

    monkeypatch.setattr(driver.utils, "load_binary", load)
    plain = KernelInterface.__getitem__
    with CompileAhead(lambda: None) as ahead:
        for _ in range(2):
            with ahead.kernels():
                step(x)
        assert KernelInterface.__getitem__ is plain
    assert (driver.loaded, driver.num_launched) == ([], 0)
    may_load.set()
    step(x)
    assert driver.num_launched == len(driver.loaded) == len(BLOCKS)
    assert all(thread.startswith("ballast-compile") for thread in driver.loaded)


def test_kernels_compiled_ahead_are_found_by_a_later_parallel_compile(driver: Driver) -> None:
    x = torch.zeros(2, 64)
    with CompileAhead(lambda: None) as ahead, ahead.kernels():
        step(x)
    with parallel_compile(lambda: None, lambda share: None):
        step(x)
    step(x)
    assert driver.num_launched == len(driver.loaded) == len(BLOCKS)


def test_a_kernel_that_fails_to_compile_ahead_fails_at_its_launch(driver: Driver) -> None:
    x = torch.zeros(2, 64)
    with CompileAhead(lambda: None) as ahead, ahead.kernels():
        pointwise_kernels.gated[(2, 1)](x, x, x, 64, 64, 0.0, 0.0, UNIT=0, BLOCK=96)  # no power of two
    with pytest.raises(triton.CompilationError):
        pointwise_kernels.gated[(2, 1)](x, x, x, 64, 64, 0.0, 0.0, UNIT=0, BLOCK=96)
    assert driver.num_launched == 0


def test_an_error_while_weights_are_loaded_ends_the_compilers(driver: Driver) -> None:
    def load() -> None:
        with CompileAhead(lambda: None) as ahead:
            with ahead.kernels():
                step(torch.zeros(2, 64))
            raise OSError("the disk is lost")

    with pytest.raises(OSError, match="lost"):
        load()
    assert not any(thread.name.startswith("ballast-compile") for thread in threading.enumerate())

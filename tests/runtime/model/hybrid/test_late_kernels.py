"""Kernels that are compiled while a model is loaded, or while it serves."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from ballast.engine.startup.build import EngineSettings
from ballast.model.batch import Batch
from ballast.model.hybrid.compiling.compiled_aside import CompiledAside
from ballast.model.hybrid.compiling.late_kernels import LateKernels
from ballast.model.hybrid.model import HybridModel
from devkit.models.cpu_backend import CpuBackend
from devkit.models.float_experts import FloatExperts
from devkit.models.float_hybrid import load_hybrid
from devkit.models.written import MakeTiny, write_tiny_model

SETTINGS = EngineSettings(
    cache_lens=320, max_batch_size=4, max_new_tokens=40, chunk_size=24, prefill_chunk_size=48, max_queue=16
)


def test_the_wait_for_a_slow_compiler_has_a_limit() -> None:
    ended = threading.Event()
    compiled = CompiledAside("some", partial(ended.wait, 10))
    with pytest.raises(RuntimeError, match="has not ended"):
        compiled.wait(0.01)
    assert not compiled.is_done
    ended.set()
    compiled.wait(10)
    assert compiled.is_done


def test_the_wait_raises_an_error_of_the_compiler() -> None:
    def refused() -> None:
        raise OSError("no nvcc")

    compiled = CompiledAside("some", refused)
    with pytest.raises(OSError, match="no nvcc"):
        compiled.wait(10)
    assert compiled.is_done


def test_a_compiler_without_urgency_gets_the_lowest_priority_and_its_thread_keeps_its_own() -> None:
    found: list[int] = []

    def compile_it() -> None:
        wait_until_lowest = "while [ $(nice) != 19 ]; do sleep 0.02; done"
        subprocess.run(["sh", "-c", f"sh -c '{wait_until_lowest}'; {wait_until_lowest}"], check=True, timeout=60)
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    CompiledAside("some", compile_it, is_urgent=False).wait(60)
    assert found == [os.getpriority(os.PRIO_PROCESS, 0)]


class Compiler:
    """Ends when `end` is called."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self.compiled = CompiledAside("some", partial(self._end.wait, 60))

    def end(self) -> None:
        self._end.set()
        self.compiled.wait(60)


def test_late_kernels_are_used_in_order_once_they_are_compiled() -> None:
    first, second, used = Compiler(), Compiler(), []
    late = LateKernels()
    late.add(first.compiled, lambda: used.append(1))
    late.add(second.compiled, lambda: used.append(2))
    second.end()
    late.use_compiled()
    assert used == []
    first.end()
    late.use_compiled()
    late.use_compiled()
    assert used == [1, 2]


def test_a_start_that_waits_uses_all_late_kernels() -> None:
    late, used = LateKernels(), []
    compiler = Compiler()

    def use() -> None:
        compiler.end()
        used.append(1)

    late.add(compiler.compiled, use)
    late.use_compiled(waits=True)
    assert used == [1]


FULL = [torch.OutOfMemoryError("CUDA out of memory"), torch.AcceleratorError("CUDA error: out of memory")]


@pytest.mark.parametrize("full", FULL, ids=["full", "full outside torch"])
def test_a_server_without_memory_for_late_kernels_continues_without_them(
    caplog: pytest.LogCaptureFixture, full: Exception
) -> None:
    first, second, used = Compiler(), Compiler(), []
    late = LateKernels()

    def use() -> None:
        used.append(1)
        raise full

    late.add(first.compiled, use)
    late.add(second.compiled, lambda: used.append(2))
    first.end()
    second.end()
    late.use_compiled()
    assert (used, late.waiting) == ([1, 2], [])
    (line,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert line.message.startswith("kernels are not used")
    assert str(full) in vars(line)["why"]


@pytest.mark.parametrize(
    ("error", "waits"), [*((full, True) for full in FULL), (torch.AcceleratorError("CUDA error: lost"), False)], ids=str
)
def test_a_start_without_memory_for_kernels_and_a_lost_device_are_errors(error: Exception, waits: bool) -> None:
    compiler, late = Compiler(), LateKernels()

    def use() -> None:
        raise error

    late.add(compiler.compiled, use)
    compiler.end()
    with pytest.raises(type(error), match=str(error)):
        late.use_compiled(waits=waits)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> HybridModel:
    file = write_tiny_model(tmp_path_factory.mktemp("model"), arch="v3", mla="split", quant="f32").gguf
    return load_hybrid(file, torch.device("cpu"), SETTINGS, make_experts=FloatExperts, stream_from_tokens=12)


@pytest.mark.parametrize(("finishes_later", "late"), [(True, ["some"]), (False, [])])
def test_a_start_records_the_kernels_that_were_not_compiled(
    written: MakeTiny, monkeypatch: pytest.MonkeyPatch, finishes_later: bool, late: list[str]
) -> None:
    compiler = Compiler()

    class Compiling:
        def use_in(self, *arguments: object) -> None:
            late_kernels = arguments[-1]
            assert isinstance(late_kernels, LateKernels)
            late_kernels.add(compiler.compiled, compiler.end)

    monkeypatch.setattr(CpuBackend, "late_attention", lambda *_: Compiling())
    file = written(arch="v3", mla="split", quant="f32").gguf
    model = load_hybrid(file, torch.device("cpu"), SETTINGS, finishes_later=finishes_later)
    compiler.end()
    assert model.start.missing == [*late, "streamed_experts"]


def prompt(num_tokens: int) -> Batch:
    positions = np.arange(num_tokens, dtype=np.int32)
    blocks = np.arange(1, 1 + -(-num_tokens // SETTINGS.block_tokens), dtype=np.int32)
    return Batch(
        token_ids=positions % 300,
        positions=positions,
        slots=positions + SETTINGS.block_tokens,
        query_indptr=np.array([0, num_tokens], np.int32),
        kv_indptr=np.array([0, len(blocks)], np.int32),
        kv_indices=blocks,
        sampled=np.array([num_tokens - 1]),
    )


def decode_lane(model: HybridModel) -> None:
    model.forward(prompt(8), lambda: None)


def prefill_lane(model: HybridModel) -> None:
    model.begin_prefill(prompt(20))


@pytest.mark.parametrize("run", [decode_lane, prefill_lane])
def test_the_next_prompt_uses_kernels_that_are_compiled(model: HybridModel, run: Callable[[HybridModel], None]) -> None:
    used: list[int] = []
    compiler = Compiler()
    model.devices[0].late.add(compiler.compiled, lambda: used.append(1))
    run(model)
    model.abandon_prefill()
    assert used == []
    compiler.end()
    run(model)
    model.abandon_prefill()
    assert used == [1]


def test_kernels_do_not_change_within_a_pass_of_the_prefill_lane(model: HybridModel) -> None:
    used: list[int] = []
    compiler = Compiler()
    prefill_lane(model)
    model.devices[0].late.add(compiler.compiled, lambda: used.append(1))
    compiler.end()
    decode_lane(model)
    assert used == []
    while not model.advance_prefill(lambda: None):
        continue
    model.prefill_logits()
    decode_lane(model)
    assert used == [1]


def test_an_idle_model_uses_kernels_that_are_compiled(model: HybridModel) -> None:
    used: list[int] = []
    compiler = Compiler()
    model.devices[0].late.add(compiler.compiled, lambda: used.append(1))
    assert not model.use_spare_time()
    prefill_lane(model)
    compiler.end()
    assert not model.use_spare_time()
    assert used == []
    model.abandon_prefill()
    assert not model.use_spare_time()
    assert used == [1]

"""The worker for routed experts: rejected arguments, and that neither side waits forever for the other."""

from __future__ import annotations

import ctypes
import gc
import weakref

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from ballast._core import kernels
from ballast._core.handoff import ExpertWorker
from ballast.errors import EngineDeadError
from ballast.host.gpu import why_unusable
from ballast.host.stream_signals import StreamSignals

HIDDEN, WIDTH, EXPERTS, CHOSEN, TOKENS, LAYERS = 32, 64, 4, 2, 3, 2


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(2)


def buffers() -> dict[str, np.ndarray]:
    return {
        "inputs": np.zeros((TOKENS, HIDDEN), np.float32),
        "ids": np.zeros((TOKENS, CHOSEN), np.int32),
        "weights": np.zeros((TOKENS, CHOSEN), np.float32),
        "results": np.zeros((TOKENS, HIDDEN), np.float32),
        "submitted": np.zeros(LAYERS, np.uint32),
        "done": np.zeros(LAYERS, np.uint32),
    }


def experts_of(rng: np.random.Generator, pool: kernels.ThreadPool) -> kernels.Experts:
    def matrix(rows: int, cols: int) -> kernels.Matrix:
        data = rng.standard_normal((EXPERTS * rows, cols), dtype=np.float32)
        return kernels.Matrix(data, GGMLQuantizationType.F32, EXPERTS * rows, cols)

    stacked = kernels.Experts(matrix(WIDTH, HIDDEN), matrix(WIDTH, HIDDEN), matrix(HIDDEN, WIDTH), EXPERTS)
    return stacked.packed(pool, kernels.usable_isas()[0], activation_bytes=2)


def make_worker(rng: np.random.Generator, **changes: object) -> ExpertWorker:
    pool = kernels.ThreadPool(2)
    layers = [experts_of(rng, pool) for _ in range(LAYERS)]
    arguments = {"layers": layers, "limit_s": 60.0, "adopt_thread": False} | buffers() | changes
    return ExpertWorker(pool, **arguments)


def wait_for(word: np.ndarray, index: int) -> None:
    while not word[index]:
        pass
    word[index] = 0


def test_chosen_experts_are_computed_except_those_with_id_minus_one(rng: np.random.Generator) -> None:
    pool, memory = kernels.ThreadPool(2), buffers()
    layers = [experts_of(rng, pool), experts_of(rng, pool)]
    worker = ExpertWorker(pool, layers, **memory, limit_s=60.0, adopt_thread=False)
    num_read = 0
    for chosen in ([[0, 3], [2, 0], [1, 2]], [[-1, 3], [3, -1]], [[-1, -1]]):
        num_tokens, ids = len(chosen), np.array(chosen, np.int32)
        worker.begin(num_tokens)
        for index, experts in enumerate(layers):
            x = rng.standard_normal((num_tokens, HIDDEN), dtype=np.float32)
            shares = rng.standard_normal((num_tokens, CHOSEN), dtype=np.float32)
            memory["inputs"][:num_tokens] = x
            memory["ids"][:num_tokens], memory["weights"][:num_tokens] = ids, shares
            memory["submitted"][index] = 1
            wait_for(memory["done"], index)
            out = np.empty_like(x)
            experts.forward(pool, x, np.abs(ids), np.where(ids < 0, np.float32(0), shares), out)
            assert np.array_equal(memory["results"][:num_tokens], out)
        assert worker.finish(60.0)
        num_read += len(layers) * len(set(ids.flatten()) - {-1})
        assert worker.bytes_read == num_read * 3 * WIDTH * HIDDEN * 4


def test_an_invalid_expert_id_fails_the_step(rng: np.random.Generator) -> None:
    memory = buffers()
    memory["ids"][0, 1] = EXPERTS
    memory["submitted"][0] = 1
    worker = make_worker(rng, **memory)
    worker.begin(1)
    with pytest.raises(IndexError, match=r"ids\[0, 1\] is 4; expected 0 to 3, or -1 for none"):
        worker.finish(60.0)
    assert memory["done"].tolist() == [1, 1]


def test_a_device_that_never_submits_fails_the_step_and_is_released(rng: np.random.Generator) -> None:
    memory = buffers()
    worker = make_worker(rng, limit_s=0.02, **memory)
    worker.begin(2)
    with pytest.raises(RuntimeError, match="the device has not asked for the experts of layer 0 for 20 ms"):
        worker.finish(60.0)
    assert memory["done"].tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="has not asked"):
        worker.begin(1)


def test_it_ends_with_a_step_running(rng: np.random.Generator) -> None:
    memory = buffers()
    worker = make_worker(rng, **memory)
    gone = weakref.ref(memory["inputs"])
    worker.begin(1)
    assert not worker.finish(0.001)
    with pytest.raises(RuntimeError, match="a step is running"):
        worker.begin(1)
    del worker
    assert memory["done"].tolist() == [1, 1]
    del memory
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": np.zeros((TOKENS, HIDDEN))}, r"inputs is float64 \[3, 32\]"),
        ({"ids": np.zeros((TOKENS, 5), np.int64)}, r"ids is int64 \[3, 5\]; expected int32 \[T = 3, k\]"),
        (
            {"weights": np.zeros((TOKENS, 5), np.float32)},
            r"weights is float32 \[3, 5\]; expected float32 \[T = 3, k = 2\]",
        ),
        ({"results": np.zeros((2, HIDDEN), np.float32)}, r"results is float32 \[2, 32\]"),
        ({"done": np.zeros(3, np.uint32)}, r"done is uint32 \[3\]; expected uint32 \[layers = 2\]"),
    ],
)
def test_mismatched_buffers_are_rejected(rng: np.random.Generator, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_worker(rng, **changes)


def test_more_tokens_than_its_buffers_hold_are_refused(rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="num_tokens is 4; expected at most 3"):
        make_worker(rng).begin(4)


def test_a_driver_without_stream_memory_operations_is_reported() -> None:
    with pytest.raises(EngineDeadError, match=r"offers no stream memory operations here: .*cuStreamWriteValue32_v2"):
        StreamSignals(ctypes.CDLL(None))


def test_a_gpu_that_cannot_wait_for_the_cpu_is_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the highest of more devices than any machine has; its C compiler exists."""
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1000)
    assert (why_unusable("cuda:999") or "").startswith("it cannot wait for the CPU: ")

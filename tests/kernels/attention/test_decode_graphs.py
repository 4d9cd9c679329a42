"""What a capture that fails says: here with stand-ins for CUDA's graphs, on the device with real ones."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from ballast.errors import EngineDeadError
from ballast.model.hybrid.graphs.decode_graphs import MAX_CAPTURED, DecodeGraphs


@pytest.fixture(params=["stand-in", pytest.param("cuda", marks=pytest.mark.gpu)], autouse=True)
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "stand-in":
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 0))
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: object())
        monkeypatch.setattr(torch.cuda, "graph", graph_of_nothing)


@contextmanager
def graph_of_nothing(graph: object, **options: object) -> Iterator[None]:
    """As torch ends a capture in which nothing was queued."""
    try:
        yield
    finally:
        warnings.warn("The CUDA Graph is empty. This usually means that …", UserWarning, stacklevel=2)


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError),
        (torch.AcceleratorError("CUDA error: out of memory"), torch.OutOfMemoryError),
        (torch.AcceleratorError("CUDA error: the device was lost"), torch.AcceleratorError),
    ],
    ids=["full", "full outside torch", "lost"],
)
def test_a_full_or_lost_device_raises_its_own_error(error: Exception, reported: type[Exception]) -> None:
    with pytest.raises(reported):
        DecodeGraphs(None).capture(2, lambda size: None, lambda size: fail(error), lambda share: None)


def test_a_failed_capture_ends_the_start_with_the_batch_size() -> None:
    with pytest.raises(EngineDeadError, match="of 2 requests cannot be captured: a value is read"):
        DecodeGraphs(None).capture(
            2, lambda size: None, lambda size: fail(RuntimeError("a value is read")), lambda share: None
        )


def test_a_step_that_fails_before_capture_is_not_a_capture_failure() -> None:
    with pytest.raises(RuntimeError, match=r"^the experts failed$"):
        DecodeGraphs(None).capture(
            2, lambda size: fail(RuntimeError("the experts failed")), lambda size: None, lambda share: None
        )


def test_steps_up_to_a_maximum_size_are_captured(cuda: None) -> None:
    graphs, captured, reported = DecodeGraphs(None), [], []
    with pytest.warns(UserWarning, match="empty"):
        graphs.capture(MAX_CAPTURED + 5, lambda size: None, captured.append, reported.append)
    assert captured == list(range(MAX_CAPTURED, 0, -1))
    assert reported[-1] == 1.0
    assert graphs.count == MAX_CAPTURED
    assert graphs.holds(MAX_CAPTURED)
    assert not graphs.holds(MAX_CAPTURED + 1), "which is queued kernel by kernel"


def test_graphs_of_rare_batch_sizes_can_wait_until_there_is_time() -> None:
    graphs, captured, reported = DecodeGraphs(None), [], []
    common = [70, 64, 48, *range(32, 0, -1)]
    with pytest.warns(UserWarning, match="empty"):
        graphs.capture(70, lambda size: None, captured.append, reported.append, finishes_later=True)
    assert captured == common
    assert reported[-1] == 1.0
    assert not graphs.holds(69)
    with pytest.warns(UserWarning, match="empty"):
        assert sum(graphs.capture_next(lambda size: None, captured.append) for _ in range(40)) == 34
    assert captured[len(common) :] == sorted(set(range(1, 71)) - set(common), reverse=True)
    assert graphs.count == 70
    assert not graphs.capture_next(fail, fail)


FULL = [torch.OutOfMemoryError("CUDA out of memory"), torch.AcceleratorError("CUDA error: out of memory")]


@pytest.mark.parametrize("is_captured", [False, True], ids=["before the capture", "in the capture"])
@pytest.mark.parametrize("full", FULL, ids=["full", "full outside torch"])
def test_a_full_device_keeps_its_existing_graphs(
    caplog: pytest.LogCaptureFixture, full: Exception, is_captured: bool
) -> None:
    def step(_: int) -> None:
        raise full

    caplog.set_level(logging.INFO)
    graphs = DecodeGraphs(None)
    with pytest.warns(UserWarning, match="empty"):
        graphs.capture(40, lambda size: None, lambda size: None, lambda share: None, finishes_later=True)
    caplog.clear()
    run, queue = (lambda size: None, step) if is_captured else (step, fail)
    assert not graphs.capture_next(run, queue)
    assert (graphs.count, graphs.holds(39)) == (33, False)
    (line,) = caplog.records
    assert (line.message, vars(line)["left"]) == ("no more decode graphs are captured", 7)
    assert not graphs.capture_next(fail, fail)


def test_a_batch_size_whose_capture_fails_is_skipped() -> None:
    graphs, captured = DecodeGraphs(None), []
    with pytest.warns(UserWarning, match="empty"):
        graphs.capture(34, lambda size: None, lambda size: None, lambda share: None, finishes_later=True)
    with pytest.raises(torch.AcceleratorError):
        graphs.capture_next(lambda size: fail(torch.AcceleratorError("CUDA error: the device was lost")), fail)
    with pytest.warns(UserWarning, match="empty"):
        assert not graphs.capture_next(lambda size: None, captured.append)
    assert captured == [33]

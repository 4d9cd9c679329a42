"""Experts whose panels are copied through buffers on the device give the CPU's results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T

from ballast._core import kernels
from ballast._core.numa import ANY_CPU, NodeThreads, Placement
from ballast.host.startup.measurements import Measurements
from ballast.host.startup.start import Start
from ballast.model.hybrid.agreement import MAX_DIFFERENCE, RandomTokens, difference
from ballast.model.hybrid.streaming import chunks, start
from ballast.model.hybrid.streaming.break_even import Timing
from ballast.model.hybrid.streaming.calibration import MIN_TOKENS, Calibration
from ballast.model.hybrid.streaming.chunks import MAX_CHUNK_BYTES, chunk_bytes, chunks_of
from ballast.model.hybrid.streaming.host_memory import HostExpertPart, HostPanels, PinnedMemory, panels_of
from ballast.model.hybrid.streaming.joint_split import JointSplit, JointTiming
from ballast.model.hybrid.streaming.kept_timings import dump_timings, load_joint_timings, load_timings
from ballast.model.hybrid.streaming.start import NEVER, start_streaming
from ballast.model.hybrid.streaming.streamed_experts import StreamedExperts, copy_pieces
from ballast.model.hybrid.streaming.streamed_layers import StreamedLayers
from ballast.model.spec import ModelSpec
from ballast.model.switched_off import SwitchedOff
from devkit.models.changed_spec import changed
from devkit.models.float_experts import FloatExperts
from devkit.models.specs.deepseek import R1_SPEC
from devkit.models.streamed_on import streamed_on, streaming_device
from devkit.models.sums_of_calls import sums_of_calls

CPU = torch.device("cpu")
FAST = kernels.usable_isas()[0]
HIDDEN, WIDTH, NUM_EXPERTS, NUM_CHOSEN = 48, 96, 10, 3


@pytest.fixture(params=[1, 2])
def layers(request: pytest.FixtureRequest) -> list[kernels.Experts]:
    """Three layers on one node and on two."""
    rng = np.random.default_rng(7)
    pool = kernels.ThreadPool(Placement([NodeThreads(300 + node, [ANY_CPU]) for node in range(request.param)]))

    def matrix(rows: int, cols: int) -> kernels.Matrix:
        values = rng.standard_normal((rows, cols), dtype=np.float32) / np.sqrt(cols)
        return kernels.Matrix(values.astype(np.float32), T.F32, rows, cols)

    def layer() -> kernels.Experts:
        gate, up = matrix(NUM_EXPERTS * WIDTH, HIDDEN), matrix(NUM_EXPERTS * WIDTH, HIDDEN)
        return kernels.Experts(gate, up, matrix(NUM_EXPERTS * HIDDEN, WIDTH), NUM_EXPERTS).packed(
            pool, FAST, activation_bytes=2
        )

    return [layer() for _ in range(3)]


def calibration_of(layers: Sequence[kernels.Experts]) -> Calibration:
    streamed = streamed_on([panels_of(layer) for layer in layers], sums_of_calls(FloatExperts), CPU)
    return Calibration(small_spec(), layers, pool_of(layers), streamed)


def test_a_pass_copies_no_expert_that_is_in_device_memory_when_it_begins(layers, monkeypatch) -> None:
    parts = [panels_of(layer) for layer in layers]
    monkeypatch.setattr(chunks, "MAX_CHUNK_BYTES", 4 * parts[0][0].expert_bytes)
    monkeypatch.setattr(chunks, "CHUNKS_PER_LAYER", 1)
    streamed = streamed_on(parts, sums_of_calls(FloatExperts), CPU)
    masks = [np.isin(np.arange(NUM_EXPERTS), ids) for ids in ([0, 3, 4, 9], [], range(NUM_EXPERTS))]
    streamed.skip([masks[0].copy, lambda: None, masks[2].copy])
    streamed._parts[0].experts._buffers.fill_(0xFF)  # not a number
    streamed.begin(2)
    masks[0][:] = True  # moved in the meantime: the pass copies the expert nevertheless
    pool, rng = pool_of(layers), np.random.default_rng(0)
    for index, ids in enumerate(([[1, 2], [8, 5]], [[0, 9], [3, 4]], [[-1, -1], [-1, -1]])):
        x, weights = rng.standard_normal((2, HIDDEN), dtype=np.float32), np.ones((2, 2), np.float32)
        streamed.submit(index, *map(torch.from_numpy, (x, np.array(ids, np.int32), weights)))
        expected = np.empty_like(x)
        layers[index].forward(pool, x, np.array(ids, np.int32), weights, expected)
        found = streamed.result(index).numpy()
        assert difference(found, expected) <= MAX_DIFFERENCE if expected.any() else not found.any()
    assert streamed.bytes_read * 3 * NUM_EXPERTS == streamed.pass_bytes * (NUM_EXPERTS - 4 + NUM_EXPERTS)


@pytest.mark.parametrize("max_experts", [1, 3, 100])
def test_streamed_experts_agree_with_the_cpu_in_every_pass(layers, max_experts, monkeypatch) -> None:
    parts = [panels_of(layer) for layer in layers]
    monkeypatch.setattr(chunks, "MAX_CHUNK_BYTES", max_experts * parts[0][0].expert_bytes)
    monkeypatch.setattr(chunks, "CHUNKS_PER_LAYER", 1)
    monkeypatch.setattr(chunks, "NUM_BUFFERS", 4)
    streamed = streamed_on(parts, sums_of_calls(FloatExperts), CPU)
    rng = np.random.default_rng(8)
    pool = kernels.ThreadPool(Placement([NodeThreads(300 + node, [ANY_CPU]) for node in range(len(parts[0]))]))
    for num_tokens in (17, 1):
        streamed.begin(num_tokens)
        for index, layer in enumerate(layers):
            x = rng.standard_normal((num_tokens, HIDDEN), dtype=np.float32)
            ids = np.stack([rng.permutation(NUM_EXPERTS)[:NUM_CHOSEN] for _ in range(num_tokens)]).astype(np.int32)
            weights = rng.random((num_tokens, NUM_CHOSEN), dtype=np.float32)
            expected = np.empty_like(x)
            layer.forward(pool, x, ids, weights, expected)
            streamed.submit(index, *map(torch.from_numpy, (x, ids, weights)))
            np.testing.assert_allclose(streamed.result(index).numpy(), expected, rtol=1e-5, atol=1e-5)
        streamed.finish(lambda: None)
    assert streamed.pass_bytes == sum(size for layer in layers for _, (_, size) in layer.memory)
    assert streamed.bytes_read == 2 * streamed.pass_bytes


@pytest.mark.parametrize(("num_tokens", "share"), [(MIN_TOKENS, 1), (MIN_TOKENS + 1, 0.2)])
def test_a_check_copies_few_experts_if_nothing_is_compared(layers, num_tokens, share, monkeypatch) -> None:
    monkeypatch.setattr(chunks, "MAX_CHUNK_BYTES", 2 * panels_of(layers[0])[0].expert_bytes)  # of ten experts
    monkeypatch.setattr(chunks, "CHUNKS_PER_LAYER", 1)
    calibration = calibration_of(layers)
    assert calibration.why_wrong([num_tokens]) is None
    read = calibration.streamed.bytes_read * 3 / calibration.streamed.pass_bytes  # all layers are of one kind
    assert read == pytest.approx(share, abs=0.05)  # nodes' chunks may have different numbers of experts


@pytest.mark.parametrize("scale", [0.0, 1e-20])
def test_experts_of_zeros_are_streamed(scale) -> None:
    pool = kernels.ThreadPool(1)

    def matrix(rows: int, cols: int) -> kernels.Matrix:
        return kernels.Matrix(np.full((rows, cols), scale, np.float32), T.F32, rows, cols)

    stacked = kernels.Experts(
        matrix(NUM_EXPERTS * WIDTH, HIDDEN),
        matrix(NUM_EXPERTS * WIDTH, HIDDEN),
        matrix(NUM_EXPERTS * HIDDEN, WIDTH),
        NUM_EXPERTS,
    )
    layers = [stacked.packed(pool, FAST, activation_bytes=2)]
    off = SwitchedOff()
    assert started(layers, from_tokens=7, warmup_sizes=(9,), off=off) is not None
    assert off.reasons == {}


@pytest.mark.parametrize(
    ("found", "expected", "differ"),
    [
        (0.0, 0.0, False),
        (1e-12, 0.0, False),
        (1e-12, 3e-12, False),
        (1.0, 1.04, False),
        (1.0, 1.1, True),
        (1e-3, 0.0, True),
        (np.nan, 0.0, True),
        (0.0, np.nan, True),
        (np.inf, np.inf, True),
        (0.0, np.inf, True),
    ],
)
def test_results_are_compared_by_the_largest_or_the_lower_bound(found, expected, differ) -> None:
    ours, theirs = np.array([[0.0, found]], np.float32), np.array([[0.0, expected]], np.float32)
    assert (not difference(ours, theirs) <= MAX_DIFFERENCE) == differ


def small_spec() -> ModelSpec:
    return changed(R1_SPEC, hidden=HIDDEN, width=WIDTH, num_experts=NUM_EXPERTS, num_experts_used=NUM_CHOSEN)


def pool_of(layers: list[kernels.Experts]) -> kernels.ThreadPool:
    return kernels.ThreadPool(Placement([NodeThreads(300 + node, [ANY_CPU]) for node in range(len(layers[0].parts))]))


def started(
    layers: list[kernels.Experts],
    *,
    from_tokens: int | None = None,
    warmup_sizes: Sequence[int] = (100,),
    off: SwitchedOff | None = None,
    pinned_bytes: int = 0,
    make_experts: type[FloatExperts] = FloatExperts,
    **options: Any,
) -> StreamedLayers | None:
    """The streamed experts of a start, for steps of up to 100 tokens; `options` are those of `start_streaming`."""
    pinned = PinnedMemory()
    pinned.num_bytes = pinned_bytes
    return start_streaming(
        small_spec(),
        layers,
        pool_of(layers),
        pinned,
        [streaming_device(CPU, sums_of_calls(make_experts), len(layers))],
        from_tokens=from_tokens,
        max_tokens=100,
        warmup_sizes=warmup_sizes,
        off=SwitchedOff() if off is None else off,
        **options,
    )


def part_of(num_experts: int, matrix_bytes: int) -> HostExpertPart:
    panels = HostPanels(np.zeros((num_experts, 1, matrix_bytes), np.uint8), T.Q8_0, 16, 32, np.empty(0, np.float32))
    return HostExpertPart(panels, panels, panels)


def test_chunks_are_even_and_cover_every_expert_once() -> None:
    parts = [[part_of(10, 100), part_of(10, 50)], [part_of(10, 100)]]
    found = [(chunk.layer, chunk.first, chunk.num_experts, chunk.num_bytes) for chunk in chunks_of(parts, 1250)]
    assert found == [
        *((0, first, count, 300 * count) for first, count in ((0, 3), (3, 3), (6, 4))),
        *((0, first, count, 150 * count) for first, count in ((0, 5), (5, 5))),
        *((1, first, count, 300 * count) for first, count in ((0, 3), (3, 3), (6, 4))),
    ]


def test_a_chunk_is_a_share_of_a_layer_within_limits() -> None:
    assert chunk_bytes(400, 7) == 100
    assert chunk_bytes(400, 150) == 150, "at least one expert"
    assert chunk_bytes(100 * MAX_CHUNK_BYTES, 7) == MAX_CHUNK_BYTES


def test_no_copy_crosses_the_border_of_two_registered_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(200, dtype=np.uint8).reshape(4, 1, 50)
    host = HostPanels(values, T.Q8_0, 16, 32, np.empty(0, np.float32))
    copied: list[int] = []
    copy = torch.Tensor.copy_

    def counted(target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool) -> torch.Tensor:
        copied.append(source.numel())
        return copy(target, source, non_blocking=non_blocking)

    monkeypatch.setattr(torch.Tensor, "copy_", counted)
    target = torch.zeros(150, dtype=torch.uint8)
    copy_pieces(target, host, 50, piece_bytes=64)
    assert target.tolist() == [*range(50, 200)]
    assert copied == [14, 64, 64, 8]


def test_streaming_starts_at_the_measured_or_requested_size(layers) -> None:
    off, sizes = SwitchedOff(), (1, 100)
    assert started(layers, from_tokens=NEVER, warmup_sizes=sizes, off=off) is None
    assert started(layers, from_tokens=101, warmup_sizes=sizes, off=off) is None, "no step is that long"
    assert off.reasons == {}
    found = started(layers, from_tokens=None, warmup_sizes=sizes, off=off)
    assert found is None, "pageable experts are streamed only on request"
    assert off.reasons == {"streamed_experts": "the experts' memory is not pinned"}
    requested = started(layers, from_tokens=7, warmup_sizes=sizes, off=off)
    assert requested is not None
    assert requested.from_tokens == 7
    timings = calibration_of(layers).timings(100)
    assert [timing.tokens for timing in timings] in ([64], [64, 100])
    assert timings[-1].lead_s >= 0 or timings[-1].tokens == 100


def test_both_processors_are_timed_together_for_sizes_up_to_the_longest_step(layers) -> None:
    calibration = calibration_of(layers)
    alone = Timing(64, 3.0, 1.0)
    first, last = calibration.joint_timings([alone], 100)
    assert (first.tokens, first.cpu_s, first.streamed_s, first.fraction) == (64, 3.0, 1.0, 0.75)
    assert last.tokens == 100
    assert min(first.joint_s, last.joint_s, last.cpu_s, last.streamed_s) > 0


@pytest.mark.parametrize(
    ("measured", "expected"),
    [((9.0, 2.0), 2.0), ((9.0, 10.0), 9.0), ((2.5,), 2.5)],
    ids=["slow once", "slow twice", "fast"],
)
def test_joint_steps_slower_than_each_processor_are_measured_twice(
    layers: list[kernels.Experts], monkeypatch: pytest.MonkeyPatch, measured: tuple[float, ...], expected: float
) -> None:
    times = iter(measured)
    monkeypatch.setattr(Calibration, "_joint_s", lambda *_: next(times))
    (timing,) = calibration_of(layers).joint_timings([Timing(64, 3.0, 1.0)], 64)
    assert timing.joint_s == expected
    assert list(times) == []


@pytest.mark.parametrize(
    ("requested_from", "joint_to", "from_tokens"), [(None, 80, 81), (None, 40, 50), (None, 100, 100), (50, 80, 50)]
)
def test_steps_are_streamed_fully_above_the_range_of_joint_steps(
    layers, monkeypatch, requested_from, joint_to, from_tokens
) -> None:
    monkeypatch.setattr(start, "_measured", lambda calibration, taken: ([], 50))
    joint = JointSplit([(1, 0.5)], 10, joint_to)
    streamed = started(layers, from_tokens=requested_from, pinned_bytes=1, joint=joint)
    assert streamed is not None
    assert (streamed.from_tokens, streamed.joint_split) == (from_tokens, joint)


def test_a_later_start_uses_the_timings_of_an_earlier_one(layers, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(Calibration, "timings", lambda *_: [Timing(64, 1.0, 2.0), Timing(100, 2.0, 1.0)])
    first = started(layers, pinned_bytes=1, record=Start(Measurements(tmp_path, {})))
    monkeypatch.setattr(Calibration, "timings", lambda *_: pytest.fail("measured again"))
    again = started(layers, pinned_bytes=1, record=Start(Measurements(tmp_path, {})))
    assert first is not None
    assert again is not None
    assert first.from_tokens == again.from_tokens == 82


JOINT = [JointTiming(64, 4.0, 2.0, 0.5, 1.0), JointTiming(100, 8.0, 2.0, 0.75, 3.0)]


def test_a_later_start_splits_joint_steps_as_an_earlier_one(layers, monkeypatch, tmp_path) -> None:
    calibration = calibration_of(layers)

    def split() -> JointSplit | None:
        return start._measured_joint(calibration, [], start._Taken(Measurements(tmp_path, {}), 100, [1]))

    monkeypatch.setattr(Calibration, "joint_timings", lambda *_: JOINT)
    first = split()
    monkeypatch.setattr(Calibration, "joint_timings", lambda *_: pytest.fail("measured again"))
    assert first is not None
    assert split() == first


@pytest.mark.parametrize(
    "rows",
    [
        None,
        {},
        [],
        [[]],
        [[64, 1.0, 1.0]],
        [[64, 1.0, 1.0, 1.5, 1.0]],
        [[64, 1.0, 0, 0.5, 1.0]],
        [[64, 1.0, 1.0, 0.5, float("nan")]],
        [[101, 1.0, 1.0, 0.5, 1.0]],
        [[64, 1.0, 1.0, 0.5, 1.0], [32, 1.0, 1.0, 0.5, 1.0]],
    ],
)
def test_invalid_stored_timings_are_rejected(rows: object) -> None:
    assert load_joint_timings(dump_timings(JOINT), 100) == JOINT
    with pytest.raises((ValueError, TypeError, IndexError)):
        load_joint_timings(rows, 100)
    with pytest.raises((ValueError, TypeError, IndexError)):
        load_timings(rows if rows != [[64, 1.0, 1.0]] else [[64, 1.0, 0.0]], 100)


@pytest.mark.parametrize("fault", ["wrong", "not a number", "cannot be compiled"])
def test_failing_or_wrong_kernels_leave_experts_to_the_cpu(layers, fault, monkeypatch) -> None:
    waited: list[StreamedExperts] = []
    monkeypatch.setattr(StreamedExperts, "wait", lambda streamed: waited.append(streamed))

    class Faulty(FloatExperts):
        def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            if fault == "cannot be compiled":
                raise RuntimeError("PassManager::run failed")
            return super().__call__(x, ids, weights) * (torch.nan if fault == "not a number" else 1.2)

    off = SwitchedOff()
    assert started(layers, from_tokens=7, warmup_sizes=(9, 100), off=off, make_experts=Faulty) is None
    assert len(waited) == 1, "running copies must end before their buffers are freed"
    why = {"wrong": "by 0.2 of", "not a number": "by nan", "cannot be compiled": "PassManager"}
    assert why[fault] in off.reasons["streamed_experts"]


def test_random_tokens_repeat() -> None:
    few, many = (RandomTokens.draw(count, 5, np.array([2, 3, 5, 7, 11]), 2) for count in (200, 5000))
    for tokens, rows, choices in ((few, 200, 200), (many, 256, 2048)):
        x, ids, weights = tokens.on(torch.device("cpu"))
        assert (x.shape, ids.shape, weights.shape) == ((tokens.num_tokens, 5), *[(tokens.num_tokens, 2)] * 2)
        assert (x.dtype, ids.dtype, weights.dtype) == (torch.float32, torch.int32, torch.float32)
        assert len(x.unique(dim=0)) == rows
        assert len(weights.unique(dim=0)) == choices
        assert set(ids.unique().tolist()) == {2, 3, 5, 7, 11}
        assert (ids[:, 0] != ids[:, 1]).all()
    assert torch.equal(x[256:512], x[:256])
    assert torch.equal(ids[2048:4096], ids[:2048])

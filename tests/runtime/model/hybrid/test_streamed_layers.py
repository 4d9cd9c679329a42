"""Experts that several devices stream give the CPU's results: each expert is streamed by exactly one device, in
proportion to its link.

The devices are the CPU's memory, and an operation on tensors of two devices fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T
from numpy.typing import NDArray

from ballast._core import kernels
from ballast._core.numa import ANY_CPU, NodeThreads, Placement
from ballast.host.startup.measurements import Measurements
from ballast.host.startup.start import Start
from ballast.model.hybrid.agreement import RandomTokens
from ballast.model.hybrid.copies.device_sender import DeviceSender
from ballast.model.hybrid.copies.exchange_sizes import exchange_bytes
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.streaming import chunks, start
from ballast.model.hybrid.streaming.calibration import MIN_TOKENS, Calibration
from ballast.model.hybrid.streaming.host_memory import PinnedMemory, panels_of
from ballast.model.hybrid.streaming.kept_timings import load_speeds
from ballast.model.hybrid.streaming.link_shares import device_of_each, relative_speeds
from ballast.model.hybrid.streaming.link_speed import measured_speeds
from ballast.model.hybrid.streaming.start import start_streaming
from ballast.model.hybrid.streaming.streamed_experts import StreamedExperts
from ballast.model.hybrid.streaming.streamed_layers import StreamedLayers
from ballast.model.switched_off import SwitchedOff
from devkit.models.changed_spec import changed
from devkit.models.cpu_backend import copied
from devkit.models.cpu_platform import CpuPlatform, DoneEvent, HostStream
from devkit.models.float_experts import FloatExperts
from devkit.models.simulated_devices import SimulatedDevices, owner_of
from devkit.models.specs.deepseek import R1_SPEC
from devkit.models.streamed_on import streamed_on, streaming_device
from devkit.models.sums_of_calls import sums_of_calls

CPU = torch.device("cpu")
HIDDEN, WIDTH, EXPERTS, CHOSEN, LAYERS = 32, 48, 12, 3, 3
SPEC = changed(R1_SPEC, hidden=HIDDEN, width=WIDTH, num_experts=EXPERTS, num_experts_used=CHOSEN)
MAX_TOKENS = 100
TOLERANCE = 1e-4
"""Relative to the largest result: orders of additions in float32."""
Given = tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]


def device(number: int) -> torch.device:
    return torch.device("cpu", number)


class Host:
    """Layers in host memory, on one node or two."""

    def __init__(self, num_nodes: int = 1) -> None:
        rng = np.random.default_rng(5)
        self.pool = kernels.ThreadPool(Placement([NodeThreads(300 + node, [ANY_CPU]) for node in range(num_nodes)]))

        def matrix(rows: int, cols: int) -> kernels.Matrix:
            values = rng.standard_normal((EXPERTS * rows, cols), dtype=np.float32) / np.float32(np.sqrt(cols))
            return kernels.Matrix(values, T.F32, EXPERTS * rows, cols)

        self.layers = [
            kernels.Experts(matrix(WIDTH, HIDDEN), matrix(WIDTH, HIDDEN), matrix(HIDDEN, WIDTH), EXPERTS).packed(
                self.pool, kernels.usable_isas()[0], activation_bytes=2
            )
            for _ in range(LAYERS)
        ]
        self.parts = [panels_of(layer) for layer in self.layers]
        self.pass_bytes = sum(part.expert_bytes * EXPERTS for parts in self.parts for part in parts)

    def streamed(self, num_devices: int, speeds: Sequence[float] | None = None) -> StreamedLayers:
        names = map(device, range(num_devices))
        return streamed_on(self.parts, sums_of_calls(FloatExperts), *names, speeds=speeds)

    def by_cpu(self, layer: int, given: Given, below: int = EXPERTS) -> NDArray[np.float32]:
        x, ids, weights = given
        out = np.empty_like(x)
        self.layers[layer].forward(self.pool, x, np.where(ids < below, ids, -1).astype(np.int32), weights, out)
        return out


@pytest.fixture(params=[1, 2], ids=["one node", "two nodes"])
def host(request: pytest.FixtureRequest) -> Host:
    return Host(request.param)


def given_for(layer: int, num_tokens: int = 23) -> Given:
    rng = np.random.default_rng(layer)
    ids = np.stack([rng.permutation(EXPERTS)[:CHOSEN] for _ in range(num_tokens)]).astype(np.int32)
    return rng.standard_normal((num_tokens, HIDDEN), dtype=np.float32), ids, rng.random(ids.shape, dtype=np.float32)


def result(streamed: StreamedLayers, layer: int, given: Given) -> NDArray[np.float32]:
    """The result of a layer, with what it is given on its owner."""
    on_owner = [torch.from_numpy(values).to(streamed.platform(layer).device) for values in given]
    streamed.submit(layer, *on_owner)
    found = streamed.result(layer)
    assert owner_of(found) == streamed.platform(layer).device.index
    return found.cpu().numpy().copy()


def check(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * float(np.abs(expected).max()))


@pytest.mark.parametrize("num_devices", range(1, 9))
def test_any_number_of_devices_gives_the_results_of_the_cpu(
    host: Host, num_devices: int, simulated: SimulatedDevices
) -> None:
    streamed = host.streamed(num_devices)
    for num_pass in (1, 2):
        streamed.begin(23)
        for layer in range(LAYERS):
            given = given_for(layer)
            check(result(streamed, layer, given), host.by_cpu(layer, given))
        streamed.finish(lambda: None)
        assert streamed.is_done(0.0)
        assert streamed.bytes_read == num_pass * host.pass_bytes
    assert sum(streamed.bytes_read_by(device(number)) for number in range(num_devices)) == streamed.bytes_read
    assert all(streamed.bytes_read_by(device(number)) > 0 for number in range(num_devices))


@pytest.mark.parametrize("num_devices", [1, 2, 3, 5])
def test_exactly_one_device_copies_each_expert(host: Host, num_devices: int, simulated: SimulatedDevices) -> None:
    streamed = host.streamed(num_devices)
    copied: Counter[tuple[int, int, int]] = Counter()
    for part in streamed._parts:
        for chunk in part.experts._chunks:
            [number] = [index for index, each in enumerate(host.parts[chunk.layer]) if each is chunk.part]
            copied.update((chunk.layer, number, chunk.first + index) for index in range(chunk.num_experts))
    assert copied == Counter(
        (layer, part, expert)
        for layer in range(LAYERS)
        for part in range(len(host.parts[0]))
        for expert in range(EXPERTS)
    )


@pytest.mark.parametrize("num_devices", [2, 3])
@pytest.mark.parametrize("nth_bound", [0, 1, -1])
def test_a_joint_step_divides_its_experts_among_the_devices(
    host: Host, num_devices: int, nth_bound: int, simulated: SimulatedDevices
) -> None:
    streamed = host.streamed(num_devices)
    counts = [streamed.bounds(layer)[nth_bound] for layer in range(LAYERS)]
    assert streamed.bounds(0)[-1] == EXPERTS
    streamed.begin_first(counts)
    for layer, count in enumerate(counts):
        x, ids, weights = given_for(layer)
        of_step = x, np.where(ids < count, ids, -1).astype(np.int32), weights
        check(result(streamed, layer, of_step), host.by_cpu(layer, of_step))
    wanted = sum(counts) * sum(part.expert_bytes for part in host.parts[0])
    largest = max(chunk.num_bytes for part in streamed._parts for chunk in part.experts._chunks)
    assert 0 <= streamed.bytes_read - wanted <= LAYERS * largest, "chunks of the second node may end elsewhere"
    shares = [streamed.bytes_read_by(device(number)) for number in range(num_devices)]
    # Layers begin with different devices; chunks of two nodes have different sizes here, which disturbs this.
    assert max(shares) - min(shares) <= 2 * largest * (1 if len(host.parts[0]) == 1 else LAYERS)


def test_a_pass_gives_the_same_bits_again(host: Host, simulated: SimulatedDevices) -> None:
    found = []
    for _ in range(2):
        streamed = host.streamed(3)
        streamed.begin(23)
        found.append([result(streamed, layer, given_for(layer)) for layer in range(LAYERS)])
    for first, second in zip(*found, strict=True):
        np.testing.assert_array_equal(first, second)


def test_one_device_sends_nothing_and_adds_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    streamed, passed = streamed_on(host.parts, sums_of_calls(FloatExperts), CPU), []
    pieces = StreamedExperts.pieces

    def recorded(experts: StreamedExperts, layer: int, *tensors: torch.Tensor):
        passed.append(tensors)
        return pieces(experts, layer, *tensors)

    monkeypatch.setattr(StreamedExperts, "pieces", recorded)
    streamed.begin(23)
    on_device = [torch.from_numpy(values) for values in given_for(0)]
    streamed.submit(0, *on_device)
    [(_, total)] = streamed._totals
    assert streamed.result(0) is total
    assert all(one is other for one, other in zip(passed[0], on_device, strict=True))


@pytest.mark.parametrize("num_devices", [2, 3])
def test_devices_that_do_not_reach_each_other_use_host_memory(
    host: Host, num_devices: int, simulated: SimulatedDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuPlatform, "reaches", lambda platform, other: 2 in (platform.device.index, other.index))
    streamed = host.streamed(num_devices)
    simulated.crossings.clear()
    for num_tokens in (23, 5, 60):  # the memory is used again
        streamed.begin(num_tokens)
        for layer in range(LAYERS):
            given = given_for(layer, num_tokens)
            check(result(streamed, layer, given), host.by_cpu(layer, given))
    assert all(2 in (source, target) for source, target, _ in simulated.crossings)
    assert bool(simulated.crossings) == (num_devices == 3)


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the host memory that devices, which do not reach each other, have allocated."""
    sizes: list[int] = []

    def allocate(num_bytes: int) -> NDArray[np.uint8]:
        sizes.append(num_bytes)
        return np.empty(num_bytes, np.uint8)

    monkeypatch.setattr(CpuPlatform, "reaches", lambda *_: False)
    monkeypatch.setattr(CpuPlatform, "host_memory", lambda _: allocate)
    return sizes


def test_host_memory_is_allocated_at_load_for_the_longest_step(
    simulated: SimulatedDevices, allocated: list[int]
) -> None:
    host = Host()
    streamed = Started(host).start(Start(), pinned_bytes=0)
    assert allocated == [exchange_bytes(SPEC, MAX_TOKENS)] * 2
    for num_tokens in (7, MAX_TOKENS):
        streamed.begin(num_tokens)
        for layer in range(LAYERS):
            given = given_for(layer, num_tokens)
            check(result(streamed, layer, given), host.by_cpu(layer, given))
    assert len(allocated) == 2
    with pytest.raises(ValueError, match=f"do not fit into the {allocated[0]} that devices exchange"):
        streamed.submit(0, *map(torch.from_numpy, given_for(0, MAX_TOKENS + 1)))


def test_devices_that_reach_each_other_need_no_host_memory(
    simulated: SimulatedDevices, allocated: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuPlatform, "reaches", lambda *_: True)
    Started(Host()).start(Start(), pinned_bytes=0)
    assert allocated == []


def test_nothing_is_streamed_if_devices_get_no_host_memory(
    simulated: SimulatedDevices, allocated: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(num_bytes: int) -> NDArray[np.uint8]:
        raise MemoryError(f"{num_bytes} bytes of host memory were refused")

    monkeypatch.setattr(CpuPlatform, "host_memory", lambda _: refused)
    started = Started(Host())
    with pytest.raises(AssertionError, match=r"exchange activations through host memory: \d+ bytes of host memory"):
        started.start(Start(), pinned_bytes=0)


class Queue:
    """The requests to the streams of simulated devices, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen = seen = []

        class Recorded(HostStream):
            def __init__(self, name: str) -> None:
                self.name = name

            def record_event(self) -> DoneEvent:
                seen.append(f"{self.name} records")
                return DoneEvent()

            def wait_event(self, event: DoneEvent) -> None:
                seen.append(f"{self.name} waits")

        @contextmanager
        def on(platform: CpuPlatform, stream: Recorded) -> Iterator[None]:
            seen.append(f"copies on {stream.name}")
            yield

        monkeypatch.setattr(CpuPlatform, "new_stream", lambda each, *_: Recorded(f"sends {each.device.index}"))
        monkeypatch.setattr(CpuPlatform, "current_stream", lambda each: Recorded(f"compute {each.device.index}"))
        monkeypatch.setattr(CpuPlatform, "on", on)

    def take(self) -> list[str]:
        taken, self.seen[:] = list(self.seen), []
        return taken


def test_a_copy_between_devices_follows_its_source_and_precedes_later_work(
    simulated: SimulatedDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a stream of its own; otherwise the source's memory could be overwritten before it is copied."""
    queue = Queue(monkeypatch)
    sender = DeviceSender(platform_of(device(0)), copied, [device(0), device(1)], 64)
    x = torch.ones(3, device=device(0))
    [[same]] = sender.send([x], [device(0)])
    assert same is x
    assert queue.take() == []
    [[same], [sent]] = sender.send([x], [device(0), device(1)])
    assert same is x
    assert (owner_of(x), owner_of(sent)) == (0, 1)
    ordered = ["compute 0 records", "sends 0 waits", "copies on sends 0", "sends 0 records", "compute 0 waits"]
    assert queue.take() == ordered


def test_host_memory_is_read_before_it_is_written_again(
    simulated: SimulatedDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(monkeypatch)
    monkeypatch.setattr(CpuPlatform, "reaches", lambda *_: False)
    sender = DeviceSender(platform_of(device(0)), copied, [device(0), device(1)], 64)
    first = ["compute 0 records", "sends 0 waits", "copies on sends 0"]
    then = ["sends 0 records", "compute 0 waits", "compute 1 waits", "compute 1 records"]
    for number, expected in enumerate(([*first, *then], [*first, "sends 0 waits", *then])):
        [[sent]] = sender.send([torch.full((3,), float(number), device=device(0))], [device(1)])
        assert sent.tolist() == [number] * 3
        assert owner_of(sent) == 1
        assert queue.take() == expected


def test_tensors_in_host_memory_are_aligned(simulated: SimulatedDevices, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of tokens is. Otherwise a kernel would be compiled while the server runs."""
    begins: list[int] = []

    def seen(host: torch.Tensor, out: torch.Tensor) -> None:
        begins.append(host.storage_offset() * host.element_size())
        copied(host, out)

    monkeypatch.setattr(CpuPlatform, "reaches", lambda *_: False)
    sender = DeviceSender(platform_of(device(0)), seen, [device(1)], 64)
    given = [torch.full((count,), float(count), device=device(0)) for count in (5, 3, 4)]
    [sent] = sender.send(given, [device(1)])
    assert [tensor.tolist() for tensor in sent] == [[5.0] * 5, [3.0] * 3, [4.0] * 4]
    assert begins == [0, 32, 48]


def test_more_devices_than_chunks_leave_some_without_experts(
    monkeypatch: pytest.MonkeyPatch, simulated: SimulatedDevices
) -> None:
    host = Host()
    monkeypatch.setattr(chunks, "chunk_bytes", lambda *_: host.pass_bytes)
    streamed = host.streamed(5)
    streamed.begin(23)
    for layer in range(LAYERS):
        given = given_for(layer)
        check(result(streamed, layer, given), host.by_cpu(layer, given))
    assert [streamed.bytes_read_by(device(number)) > 0 for number in range(5)] == [True] * 3 + [False] * 2


@pytest.mark.parametrize("speeds", [(1.0, 0.5), (0.25, 1.0), (1.0, 1.0, 0.5)])
def test_shares_follow_the_speeds_of_the_links(speeds: tuple[float, ...], simulated: SimulatedDevices) -> None:
    host = Host()
    streamed = host.streamed(len(speeds), speeds)
    streamed.begin(23)
    for layer in range(LAYERS):
        given = given_for(layer)
        check(result(streamed, layer, given), host.by_cpu(layer, given))
    largest = max(chunk.num_bytes for part in streamed._parts for chunk in part.experts._chunks)
    for number, speed in enumerate(speeds):
        share = host.pass_bytes * speed / sum(speeds)
        assert abs(streamed.bytes_read_by(device(number)) - share) <= largest


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        ([1.0], [0, 0, 0, 0, 0, 0]),
        ([1.0, 1.0], [0, 1, 0, 1, 0, 1]),
        ([1.0, 0.5], [0, 0, 1, 0, 0, 1]),
        ([0.5, 1.0], [1, 0, 1, 1, 0, 1]),
        ([1.0, 1.0, 1.0], [0, 1, 2, 0, 1, 2]),
    ],
)
def test_chunks_go_to_the_device_that_copies_them_first(speeds: list[float], expected: list[int]) -> None:
    assert device_of_each([(0, 10)] * 6, speeds) == expected


def test_chunks_of_different_sizes_are_divided_by_bytes() -> None:
    assert device_of_each([(0, size) for size in (30, 10, 10, 10, 5)], [1.0, 1.0]) == [0, 1, 1, 1, 0]


def test_layers_begin_with_different_devices() -> None:
    layers = [(layer, 10) for layer in range(3) for _ in range(3)]
    assert device_of_each(layers, [1.0] * 3) == [0, 1, 2, 1, 2, 0, 2, 0, 1]


@pytest.mark.parametrize(
    ("measured", "expected"),
    [([5e9], [1.0]), ([50e9, 51e9], [1.0, 1.0]), ([12.6e9, 50e9], [0.25, 1.0]), ([1e9, 50e9], [0.125, 1.0])],
)
def test_speeds_are_relative_to_the_fastest_link(measured: list[float], expected: list[float]) -> None:
    assert relative_speeds(measured) == expected


def test_links_are_measured_together(simulated: SimulatedDevices) -> None:
    host = Host()
    speeds = measured_speeds([device(0), device(1)], host.parts)
    assert len(speeds) == 2
    assert min(speeds) > 0


@pytest.mark.parametrize("kept", [None, [], [1.0], [1.0, 0.0], [1.0, 2.0], [0.5, 0.5], [1.0, "x"], [1.0, 1.0, 1.0]])
def test_invalid_stored_speeds_are_rejected(kept: object) -> None:
    assert load_speeds([0.5, 1.0], 2) == [0.5, 1.0]
    with pytest.raises((ValueError, TypeError)):
        load_speeds(kept, 2)


class Started:
    """Starts of streaming on two devices."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.off = SwitchedOff()

    def start(self, record: Start, *, pinned_bytes: int, make: type[FloatExperts] = FloatExperts) -> StreamedLayers:
        pinned = PinnedMemory()
        pinned.num_bytes = pinned_bytes
        streamed = start_streaming(
            SPEC,
            self.host.layers,
            self.host.pool,
            pinned,
            [streaming_device(device(number), sums_of_calls(make), count) for number, count in enumerate((2, 1))],
            from_tokens=7,
            max_tokens=MAX_TOKENS,
            warmup_sizes=(9,),
            off=self.off,
            record=record,
        )
        assert streamed is not None, self.off.reasons
        return streamed

    def shares(self, streamed: StreamedLayers) -> list[int]:
        streamed.begin(1)
        before = [streamed.bytes_read_by(device(number)) for number in (0, 1)]
        for layer in range(LAYERS):
            result(streamed, layer, given_for(layer))
        return [streamed.bytes_read_by(device(number)) - read for number, read in enumerate(before)]


def test_a_start_measures_the_links_once_and_divides_by_them(
    tmp_path, monkeypatch: pytest.MonkeyPatch, simulated: SimulatedDevices
) -> None:
    started, measured = Started(Host()), []

    def speeds(devices: list[torch.device], layers: object) -> list[float]:
        measured.append(devices)
        return [10e9, 30e9]

    monkeypatch.setattr(start, "measured_speeds", speeds)
    for _ in range(2):
        first, second = started.shares(started.start(Start(Measurements(tmp_path, {})), pinned_bytes=1))
        assert 0.2 < first / (first + second) < 0.3
    assert measured == [[device(0), device(1)]]


def test_links_of_pageable_memory_are_equal(monkeypatch: pytest.MonkeyPatch, simulated: SimulatedDevices) -> None:
    monkeypatch.setattr(start, "measured_speeds", lambda *_: pytest.fail("measured"))
    started = Started(Host())
    first, second = started.shares(started.start(Start(), pinned_bytes=0))
    assert first == second


@pytest.mark.parametrize("wrong", [0, 1])
def test_each_device_is_checked_with_each_combination_of_types(wrong: int, simulated: SimulatedDevices) -> None:
    class Faulty(FloatExperts):
        def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            return super().__call__(x, ids, weights) * (1.5 if owner_of(x) == wrong else 1.0)

    host = Host()
    streamed = streamed_on(host.parts, sums_of_calls(Faulty), device(0), device(1))
    why = Calibration(SPEC, host.layers, host.pool, streamed).why_wrong([9])
    assert why is not None
    assert "differs from the CPU's" in why


def test_each_device_of_a_layer_is_checked_with_many_tokens(simulated: SimulatedDevices) -> None:
    host = Host()
    streamed = streamed_on(host.parts, sums_of_calls(FloatExperts), device(0), device(1))
    read = []
    for _ in range(2):  # the second check finds the devices although the first one left a pass of few layers
        assert Calibration(SPEC, host.layers, host.pool, streamed).why_wrong([MIN_TOKENS + 1]) is None
        read.append([streamed.bytes_read_by(device(number)) for number in range(2)])
    assert min(read[0]) > 0
    assert read[1] == [2 * each for each in read[0]]


def test_making_tokens_is_not_timed(monkeypatch: pytest.MonkeyPatch, simulated: SimulatedDevices) -> None:
    now = 0.0
    made = RandomTokens.on

    def slowly(tokens: RandomTokens, device: torch.device) -> list[torch.Tensor]:
        nonlocal now
        now += 100.0
        return made(tokens, device)

    host = Host()
    streamed = streamed_on(host.parts, sums_of_calls(FloatExperts), device(0), device(1))
    calibration = Calibration(SPEC, host.layers, host.pool, streamed)
    monkeypatch.setattr(RandomTokens, "on", slowly)
    monkeypatch.setattr("ballast.model.hybrid.streaming.calibration.time.perf_counter", lambda: now)
    for timing in (*calibration.timings(100), *calibration.joint_timings([], 100)):
        assert timing.cpu_s == timing.streamed_s == 0.0
    assert now > 0.0

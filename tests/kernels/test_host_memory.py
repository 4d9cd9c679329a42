"""Experts' memory as a GPU sees it: the very bytes that the CPU computes with, registered in pieces or not at all."""

from __future__ import annotations

import logging
from concurrent.futures import BrokenExecutor

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from ballast._core import kernels
from ballast._core.numa import ANY_CPU, NodeThreads, Placement
from ballast.model.hybrid.streaming.host_memory import PinnedMemory, Pinning, panels_of

FAST = kernels.usable_isas()[0]
NUM_EXPERTS, HIDDEN, WIDTH = 3, 256, 96
PAGE = 4096


class Registrar:
    """Remembers what is registered. `refuses`: which of its calls, counted from 0, fails."""

    def __init__(self, refuses: int | None = None) -> None:
        self.registered: dict[int, int] = {}
        self.refuses = refuses
        self._num_calls = 0

    def register(self, address: int, num_bytes: int) -> None:
        if self._num_calls == self.refuses:
            raise OSError("cuMemHostRegister failed with code 2 of CUDA's driver")
        self._num_calls += 1
        assert address % PAGE == 0
        assert address not in self.registered
        self.registered[address] = num_bytes

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def holds(self, address: int) -> bool:
        return any(begin <= address < begin + size for begin, size in self.registered.items())


def pin(layers, registrar: Registrar, report=lambda _: None) -> PinnedMemory:
    """Page by page."""
    with Pinning(registrar, piece_bytes=PAGE) as pinning:
        for experts in layers:
            pinning.add(experts)
        return pinning.finish(report)


@pytest.fixture
def experts(make_matrix) -> tuple[kernels.Experts, list[np.ndarray]]:
    """On two made-up nodes, with the values of gate, up and down."""
    kinds = (T.Q4_K, T.Q6_K, T.Q8_0)
    shapes = [(NUM_EXPERTS * WIDTH, HIDDEN), (NUM_EXPERTS * WIDTH, HIDDEN), (NUM_EXPERTS * HIDDEN, WIDTH)]
    made = [make_matrix(kind, *shape) for kind, shape in zip(kinds, shapes, strict=True)]
    pool = kernels.ThreadPool(Placement([NodeThreads(200, [ANY_CPU, ANY_CPU]), NodeThreads(201, [ANY_CPU])]))
    packed = kernels.Experts(*(matrix for matrix, _ in made), NUM_EXPERTS).packed(pool, FAST, activation_bytes=1)
    return packed, [values.reshape(NUM_EXPERTS, -1, values.shape[1]) for _, values in made]


def test_parts_are_views_of_the_packed_experts_divided_along_the_width(experts) -> None:
    packed, (gate, up, down) = experts
    matrices = packed.parts
    assert len(matrices) == 2
    assert [matrix.rows // NUM_EXPERTS for matrix, _, _ in matrices] == [64, 32]
    for values, axis, which in ((gate, 1, 0), (up, 1, 1), (down, 2, 2)):
        unpacked = [kernels.unpack(part[which]) for part in matrices]
        np.testing.assert_array_equal(np.concatenate(unpacked, axis), values.astype(np.float32))
    parts = panels_of(packed)
    addresses = [panels.address for part in parts for panels in (part.gate, part.up, part.down)]
    assert addresses == [address for _, (address, _) in packed.memory]
    first = parts[0]
    assert (first.gate.ggml_type, first.up.ggml_type, first.down.ggml_type) == (T.Q4_K, T.Q6_K, T.Q8_0)
    assert (first.gate.rows, first.gate.cols) == (64, HIDDEN)
    assert (first.down.rows, first.down.cols) == (HIDDEN, 64)
    assert first.gate.data.shape[:2] == (NUM_EXPERTS, 4)
    assert not first.gate.data.flags.writeable
    assert sum(part.expert_bytes for part in parts) * NUM_EXPERTS == sum(size for _, (_, size) in packed.memory)


def test_a_part_keeps_its_memory_after_the_experts_are_deleted(experts) -> None:
    packed, (_, _, down) = experts
    [_, second] = packed.parts
    del packed
    np.testing.assert_array_equal(kernels.unpack(second[2]), down[:, :, 64:].astype(np.float32))


def test_unpacked_experts_have_no_parts(make_matrix) -> None:
    matrix, _ = make_matrix(T.F32, 32, 32)
    assert panels_of(kernels.Experts(matrix, matrix, matrix, 1)) == []


def test_every_byte_is_registered_once_in_chunks_and_unregistered(experts) -> None:
    packed, _ = experts
    registrar, shares = Registrar(), []
    pinned = pin([packed], registrar, shares.append)
    assert set(registrar.registered.values()) == {PAGE}
    assert pinned.num_bytes == PAGE * len(registrar.registered) >= sum(size for _, (_, size) in packed.memory)
    for _, (address, size) in packed.memory:
        assert all(registrar.holds(at) for at in (address, address + size // 2, address + size - 1))
    assert shares == sorted(shares)
    assert len(shares) == len(registrar.registered)
    assert shares[-1] == 1.0
    pinned.release()
    pinned.release()
    assert registrar.registered == {}
    assert pinned.num_bytes == 0


def test_unused_memory_is_returned(experts) -> None:
    registrar = Registrar()
    with Pinning(registrar) as pinning:
        pinning.add(experts[0])
        pinned = pinning.finish()
    assert len(registrar.registered) == 6, "a piece holds a whole matrix here"
    del pinned
    assert registrar.registered == {}


@pytest.mark.parametrize("piece", [0, 1, 7])
def test_a_failed_pinning_leaves_memory_pageable_and_is_logged_once(experts, piece, caplog) -> None:
    registrar = Registrar(refuses=piece)
    with caplog.at_level(logging.WARNING):
        pinned = pin([experts[0]], registrar)
    assert registrar.registered == {}
    assert pinned.num_bytes == 0
    [record] = caplog.records
    assert record.pinned_bytes == piece * PAGE
    assert "code 2" in record.reason


@pytest.mark.parametrize("is_enough", [True, False])
def test_a_rejected_chunk_is_retried_after_room_was_made(experts, is_enough: bool) -> None:
    registrar = Registrar(refuses=2)
    requested = []

    def make_room() -> None:
        requested.append(len(registrar.registered))
        if is_enough:
            registrar.refuses = None

    with Pinning(registrar, make_room=make_room, piece_bytes=PAGE) as pinning:
        pinning.add(experts[0])
        pinned = pinning.finish()
    assert requested == [2]
    assert bool(pinned.num_bytes) == bool(registrar.registered) == is_enough


def test_a_load_that_fails_leaves_nothing_registered(experts) -> None:
    registrar = Registrar()

    def loaded() -> None:
        with Pinning(registrar, piece_bytes=PAGE) as pinning:
            pinning.add(experts[0])
            raise ValueError("a tensor is missing")

    with pytest.raises(ValueError, match="a tensor is missing"):
        loaded()
    assert registrar.registered == {}


def test_a_device_that_cannot_be_used_is_an_error(experts) -> None:
    def use_device() -> None:
        raise RuntimeError("no such device")

    def pin() -> None:
        with Pinning(Registrar(), use_device) as pinning:
            pinning.add(experts[0])  # the thread may have failed before the last piece is added
            pinning.finish()

    with pytest.raises(BrokenExecutor):
        pin()

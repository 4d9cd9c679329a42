"""Routed experts in host memory, as a GPU accesses them: the address of each matrix, and which memory is pinned.

Copies to a GPU reach PCIe speed, and run concurrently with computation, only from memory that CUDA has page-locked;
kernels can read such memory by its address. Hundreds of gigabytes are registered in pieces, so that progress can be
reported and a refusal costs little.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from gguf import GGMLQuantizationType as GgmlType
from numpy.typing import NDArray

from ballast._core import kernels, numa
from ballast.model.hybrid.panels.stack import scales_on
from ballast.model.hybrid.panels.unit import SILU_ALONE, HostUnit
from ballast.model.hybrid.platforms.registrar import Registrar

log = logging.getLogger(__name__)

PIECE_BYTES = 512 << 20
NOT_PINNED = "the experts' memory is not pinned"
"""The reason why a GPU does not use the experts in host memory."""
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class HostPanels:
    """One matrix [rows, cols] of every expert, packed as in `panels.layout`. `data` is a view that keeps the memory
    alive."""

    data: NDArray[np.uint8]  # [experts, panels, bytes per panel]
    ggml_type: GgmlType
    rows: int
    cols: int
    scales: NDArray[np.float32]
    """Factors of the products: none, one number, or one per expert."""

    def scales_on(self, device: torch.device, experts: Sequence[int] | slice = slice(None)) -> torch.Tensor | None:
        """The scales of these experts, as in `PanelStack`."""
        return scales_on(device, self.scales, self.ggml_type, self.num_experts, experts)

    @property
    def num_experts(self) -> int:
        return int(self.data.shape[0])

    @property
    def expert_bytes(self) -> int:
        return int(self.data.shape[1] * self.data.shape[2])

    @property
    def address(self) -> int:
        """The address of the first expert; the others follow contiguously."""
        return self.data.ctypes.data


@dataclass(frozen=True, slots=True)
class HostExpertPart:
    """The part of a layer's experts on one NUMA node: gate and up [I', D], down [D, I'], and their unit. The
    results of all parts are summed."""

    gate: HostPanels
    up: HostPanels
    down: HostPanels
    unit: HostUnit = SILU_ALONE

    @property
    def matrices(self) -> tuple[HostPanels, HostPanels, HostPanels]:
        """Gate, up and down."""
        return self.gate, self.up, self.down

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert, all three matrices."""
        return sum(panels.expert_bytes for panels in self.matrices)


def panels_of(experts: kernels.Experts) -> list[HostExpertPart]:
    """The parts of a layer's packed experts, as views; empty if the experts are not packed."""
    biases, clamped = experts.biases, experts.clamped_unit
    parts = []
    for matrices, first_row in zip(experts.parts, experts.first_rows, strict=True):
        gate, up, down = (_panels(matrix, experts.num_experts) for matrix in matrices)
        parts.append(HostExpertPart(gate, up, down, HostUnit.of_part(clamped, biases, first_row, gate.rows)))
    return parts


def _panels(matrix: kernels.Matrix, num_experts: int) -> HostPanels:
    return HostPanels(matrix.panels, GgmlType(matrix.ggml_type), matrix.rows // num_experts, matrix.cols, matrix.scales)


class PinnedMemory:
    """Memory of experts that stays registered until `release`, or until this object is collected. It keeps the experts
    alive."""

    def __init__(
        self,
        registrar: Registrar | None = None,
        pieces: Sequence[numa.Range] = (),
        experts: Sequence[kernels.Experts] = (),
    ) -> None:
        """Holds `pieces` of the memory of `experts`, which are registered; without a registrar, none are."""
        self.num_bytes = sum(num_bytes for _, num_bytes in pieces)
        self._end = (
            None if registrar is None else weakref.finalize(self, _unregister, registrar, tuple(pieces), tuple(experts))
        )

    def release(self) -> None:
        """Unregister every piece. Idempotent."""
        self.num_bytes = 0
        if self._end is not None:
            self._end()


class Pinning:
    """Pins the experts of layers on a separate thread, while other layers are loaded. This is a context; if an error
    leaves it, everything is unregistered. If one piece is refused, all are unregistered, and a warning gives the
    reason."""

    def __init__(
        self,
        registrar: Registrar,
        use_device: Callable[[], None] = lambda: None,
        make_room: Callable[[], None] | None = None,
        *,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        """`use_device` binds the thread to the device. `make_room` releases memory that is pinned for less important
        purposes: after it, the first refused piece is tried once more."""
        self._registrar = registrar
        self._make_room = make_room
        self._piece_bytes = piece_bytes
        self._thread = ThreadPoolExecutor(1, "ballast-pin", use_device)
        self._layers: list[kernels.Experts] = []
        self._waiting: list[Future[None]] = []
        self._pieces: list[numa.Range] = []
        self._refusal: OSError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)
        if error_type is not None:
            _unregister(self._registrar, self._pieces, self._layers)

    def add(self, experts: kernels.Experts) -> None:
        """Queue a layer's experts for pinning. Raises as `finish`, if the thread has failed by then."""
        self._layers.append(experts)
        for piece in _pieces([place for _, place in experts.memory], self._piece_bytes):
            self._waiting.append(self._thread.submit(self._register, piece))

    def finish(self, report: Callable[[float], None] = lambda _: None) -> PinnedMemory:
        """Wait until everything that was added is pinned; `report` gets the fraction of pieces done, 0…1. Raises
        BrokenExecutor with the error of `use_device`."""
        for done, piece in enumerate(self._waiting, 1):
            piece.result()
            report(done / len(self._waiting))
        if self._refusal is None:
            return PinnedMemory(self._registrar, self._pieces, self._layers)
        _unregister(self._registrar, self._pieces, self._layers)
        wanted = sum(num_bytes for experts in self._layers for _, (_, num_bytes) in experts.memory)
        log.warning(
            "experts stay pageable: copies to the GPU are slow",
            extra={
                "wanted_bytes": wanted,
                "pinned_bytes": sum(num_bytes for _, num_bytes in self._pieces),
                "reason": str(self._refusal),
            },
        )
        return PinnedMemory()

    def _register(self, piece: numa.Range) -> None:
        if self._refusal is not None:
            return
        try:
            self._register_with_room(piece)
        except OSError as error:
            self._refusal = error
        else:
            self._pieces.append(piece)

    def _register_with_room(self, piece: numa.Range) -> None:
        try:
            self._registrar.register(*piece)
        except OSError:
            if self._make_room is None:
                raise
            make_room, self._make_room = self._make_room, None
            make_room()
            self._registrar.register(*piece)


def _unregister(registrar: Registrar, pieces: Sequence[numa.Range], _experts: Sequence[kernels.Experts]) -> None:
    for address, _ in reversed(pieces):
        try:
            registrar.unregister(address)
        except OSError as error:  # a lost device refuses every piece; the process's end releases its memory
            log.warning("memory stays registered", extra={"address": hex(address), "reason": str(error)})


def _pieces(ranges: Sequence[numa.Range], piece_bytes: int) -> Iterator[numa.Range]:
    """(address, bytes) pairs at page boundaries, none longer than `piece_bytes`, which is a multiple of a page."""
    for address, num_bytes in ranges:
        begin = address // _PAGE_BYTES * _PAGE_BYTES
        end = -(-(address + num_bytes) // _PAGE_BYTES) * _PAGE_BYTES
        for at in range(begin, end, piece_bytes):
            yield at, min(piece_bytes, end - at)

"""Panels that a file keeps: mapped or read, what they hold is what packing gives, and damage is seen."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from devkit.models.random_blocks import random_blocks

PAGE = os.sysconf("SC_PAGE_SIZE")
ROWS, COLS = 4096, 1024
"""Some megabytes: more than a huge page."""
POOL = kernels.ThreadPool(2)
ISA = kernels.usable_isas()[0]

pytestmark = pytest.mark.skipif(ISA == "reference", reason="no kernels that pack weights")


def matrix() -> kernels.Matrix:
    data = random_blocks(np.random.default_rng(1), GgmlType.Q4_K, ROWS, COLS)
    return kernels.Matrix(data, GgmlType.Q4_K, ROWS, COLS)


def packed(path: Path, *, mapped: bool, checksum: int | None) -> tuple[kernels.Matrix, kernels.PanelFile]:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        if checksum is None:
            num_bytes = kernels.packed_nbytes(GgmlType.Q4_K, num_rows=ROWS, cols=COLS)
            os.truncate(file, kernels.panel_file_nbytes(num_bytes, PAGE))
        panels = kernels.PanelFile(file, mapped=mapped, checksum=checksum)
        result = kernels.pack(POOL, matrix(), ISA, activation_bytes=2, file=panels)
    finally:
        os.close(file)
    return result, panels


@pytest.mark.parametrize("mapped_again", [False, True])
def test_panels_packed_into_a_file_are_read_from_it(tmp_path: Path, mapped_again: bool) -> None:
    plain = kernels.pack(POOL, matrix(), ISA, activation_bytes=2)
    first, file = packed(tmp_path / "panels", mapped=True, checksum=None)
    np.testing.assert_array_equal(first.panels, plain.panels)
    again, _ = packed(tmp_path / "panels", mapped=mapped_again, checksum=file.checksum)
    np.testing.assert_array_equal(again.panels, plain.panels)


def test_panels_packed_in_memory_can_be_written_to_a_file(tmp_path: Path) -> None:
    first, file = packed(tmp_path / "panels", mapped=False, checksum=None)
    memory = file.memory
    assert memory is not None
    (tmp_path / "panels").write_bytes(memory)
    again, _ = packed(tmp_path / "panels", mapped=False, checksum=file.checksum)
    np.testing.assert_array_equal(again.panels, first.panels)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("at", [1_000_003, 2_100_001], ids=["first chunk", "last chunk"])
def test_a_byte_that_changed_is_seen(tmp_path: Path, mapped: bool, at: int) -> None:
    _, file = packed(tmp_path / "panels", mapped=True, checksum=None)
    with (tmp_path / "panels").open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte[0] ^ 1]))
    with pytest.raises(RuntimeError, match="checksum differs"):
        packed(tmp_path / "panels", mapped=mapped, checksum=file.checksum)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_truncated_file_is_detected(tmp_path: Path, mapped: bool) -> None:
    _, file = packed(tmp_path / "panels", mapped=True, checksum=None)
    os.truncate(tmp_path / "panels", PAGE)
    with pytest.raises(RuntimeError, match="too s"):
        packed(tmp_path / "panels", mapped=mapped, checksum=file.checksum)


def experts() -> kernels.Experts:
    rng = np.random.default_rng(2)
    gate, up, down = (
        kernels.Matrix(random_blocks(rng, GgmlType.Q8_0, 4 * 256, 256), GgmlType.Q8_0, 4 * 256, 256) for _ in range(3)
    )
    return kernels.Experts(gate, up, down, 4)


def test_experts_are_read_from_their_files(tmp_path: Path) -> None:
    checksums: dict[str, int] = {}

    def packed() -> kernels.Experts:
        packing = kernels.ExpertsPacking(experts(), POOL, ISA, activation_bytes=2)
        for projection in ("gate", "up", "down"):
            file = os.open(tmp_path / projection, os.O_RDWR | os.O_CREAT)
            [num_bytes] = packing.nbytes(projection)
            os.truncate(file, kernels.panel_file_nbytes(num_bytes, PAGE))
            panels = kernels.PanelFile(file, mapped=True, checksum=checksums.get(projection))
            packing.pack(projection, [panels])
            os.close(file)
            checksums[projection] = panels.checksum
        return packing.finish()

    plain = experts().packed(POOL, ISA, activation_bytes=2)
    for made in (packed(), packed()):
        for kept, expected in zip(made.parts[0], plain.parts[0], strict=True):
            np.testing.assert_array_equal(kept.panels, expected.panels)


def test_experts_can_be_used_only_when_all_projections_are_packed() -> None:
    packing = kernels.ExpertsPacking(experts(), POOL, ISA, activation_bytes=2)
    packing.pack("gate")
    packing.pack("down")
    with pytest.raises(RuntimeError, match="gate, up and down must be packed"):
        packing.finish()
    packing.pack("up")
    with pytest.raises(ValueError, match="packed already"):
        kernels.ExpertsPacking(packing.finish(), POOL, ISA, activation_bytes=2)


def test_wrong_arguments_of_packing_experts_are_rejected() -> None:
    packing = kernels.ExpertsPacking(experts(), POOL, ISA, activation_bytes=2)
    with pytest.raises(ValueError, match="projection is gates; expected gate, up or down"):
        packing.nbytes("gates")
    with pytest.raises(ValueError, match="2 files; expected none, or one for each of 1 nodes"):
        packing.pack("gate", [None, None])
    with pytest.raises(ValueError, match="isa is reference, which reads weights in place"):
        kernels.ExpertsPacking(experts(), POOL, "reference", activation_bytes=2)


LAYOUT = (1, "4f0db36c490611ff")
"""PANEL_LAYOUT_VERSION, and a hash of panels of every format and kind. Where the second changes, raise the first: files
of packed weights that older builds wrote must not be read. A format that is added at the list's end, of which they
wrote none, changes the second alone."""


@pytest.mark.parametrize("isa", [isa for isa in kernels.usable_isas() if isa != "reference"])
def test_a_changed_panel_layout_has_a_new_version(isa: str) -> None:
    found = hashlib.sha256()
    for form in kernels.formats():
        rng = np.random.default_rng(form.ggml_type)
        data = random_blocks(rng, form.ggml_type, 20, 512)
        source = kernels.Matrix(data, form.ggml_type, 20, 512)
        for transposed in (False, True):
            made = kernels.pack(POOL, source, isa, activation_bytes=2, transposed=transposed)
            found.update(f"{form.name} {made.panels.shape}".encode() + made.panels.tobytes())
    assert (kernels.PANEL_LAYOUT_VERSION, found.hexdigest()[:16]) == LAYOUT

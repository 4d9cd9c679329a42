"""Matrices and experts are packed into the files that the caller opens for them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from ballast._core.numa import ANY_CPU, NodeThreads, Placement
from ballast.weights.panel_packing import Heads, Target, pack_experts, pack_matrix
from devkit.models.random_blocks import random_blocks

PAGE = os.sysconf("SC_PAGE_SIZE")
NUM_EXPERTS = 3
ISA = kernels.usable_isas()[0]
NAMES = {"gate": "g.weight", "up": "u.weight", "down": "d.weight"}


def matrix(ggml_type: GgmlType, rows: int, cols: int) -> kernels.Matrix:
    return kernels.Matrix(random_blocks(np.random.default_rng(rows), ggml_type, rows, cols), ggml_type, rows, cols)


def experts(width: int = 256) -> kernels.Experts:
    gate, up = (matrix(each, NUM_EXPERTS * width, 512) for each in (GgmlType.Q4_K, GgmlType.Q8_0))
    return kernels.Experts(gate, up, matrix(GgmlType.Q6_K, NUM_EXPERTS * 512, width), NUM_EXPERTS)


class Files:
    """Opens files in a folder, each exactly as long as its tiles require."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.opened: list[tuple[str, int]] = []

    def open(self, what: str, num_bytes: int) -> kernels.PanelFile:
        self.opened.append((what, num_bytes))
        file = os.open(self._folder / str(len(self.opened)), os.O_RDWR | os.O_CREAT)
        os.truncate(file, kernels.panel_file_nbytes(num_bytes, PAGE))
        return kernels.PanelFile(file, mapped=True, checksum=None)


def target(isa: str = ISA, num_nodes: int = 1) -> Target:
    placement = Placement([NodeThreads(200 + node, [ANY_CPU]) for node in range(num_nodes)])
    return Target(kernels.ThreadPool(placement), isa, 2)


HEADS = [Heads(1, 64, 0), Heads(4, 16, 16), Heads(2, 20, 32, 8), Heads(4, 16, 16, transposed=True)]


@pytest.mark.skipif(ISA == "reference", reason="needs a CPU with AVX2: the generic kernels pack no weights")
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_the_reported_size_is_the_size_of_the_panels(tmp_path: Path, heads: Heads) -> None:
    files = Files(tmp_path)
    kept = pack_matrix(target(), matrix(GgmlType.Q4_K, 64, 512), heads, "m", files.open)
    plain = pack_matrix(target(), matrix(GgmlType.Q4_K, 64, 512), heads, "m")
    np.testing.assert_array_equal(kept.panels, plain.panels)
    assert files.opened == [(f"m {heads}", plain.packed_nbytes)]
    assert (tmp_path / "1").read_bytes().startswith(plain.panels.tobytes())


def test_panels_are_described_by_their_heads() -> None:
    assert [str(heads) for heads in HEADS] == ["1x64/0+0", "4x16/16+0", "2x20/32+8", "4x16/16+0 transposed"]


@pytest.mark.skipif(ISA == "reference", reason="needs a CPU with AVX2: the generic kernels pack no weights")
@pytest.mark.parametrize(("width", "num_files"), [(512, 2), (256, 1)], ids=["both nodes", "one node holds none"])
def test_each_projection_has_a_file_per_node_and_is_reported_once_packed(
    tmp_path: Path, width: int, num_files: int
) -> None:
    files = Files(tmp_path)
    packed: list[tuple[str, int]] = []

    def done(projection: str) -> None:
        packed.append((projection, len(files.opened)))

    kept = pack_experts(target(num_nodes=2), experts(width), NAMES, done, files.open)
    assert files.opened == [
        (f"{NAMES[each]} {each} of {NUM_EXPERTS} experts, node {node}", kept.parts[node][index].packed_nbytes)
        for index, each in enumerate(NAMES)
        for node in range(num_files)
    ]
    assert packed == [("gate", num_files), ("up", 2 * num_files), ("down", 3 * num_files)]
    plain = pack_experts(target(num_nodes=2), experts(width), NAMES, lambda _: None)
    for made, expected in zip(sum(kept.parts, ()), sum(plain.parts, ()), strict=True):
        np.testing.assert_array_equal(made.panels, expected.panels)


def test_the_reference_kernels_read_weights_in_place(tmp_path: Path) -> None:
    files = Files(tmp_path)
    source = matrix(GgmlType.Q4_K, 64, 512)
    assert pack_matrix(target("reference"), source, HEADS[0], "m", files.open).packed_nbytes == 0
    in_place = experts()
    assert pack_experts(target("reference"), in_place, NAMES, pytest.fail, files.open) is in_place
    assert files.opened == []

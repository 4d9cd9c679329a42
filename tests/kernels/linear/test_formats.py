"""Every format against the gguf package's own dequantisation, to the bit."""

import re
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from ballast._core import kernels
from devkit.kernels.isas import isa_params
from devkit.models.random_blocks import (
    E4M3_OFFSETS,
    FLOATS,
    FORMATS,
    POWER_OFFSETS,
    QUANTIZED,
    dequantized,
    random_blocks,
)

ROOT = Path(__file__).parents[3]
T = GGMLQuantizationType
every_format = pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)


def test_the_formats_are_the_documented_ones_and_match_the_gguf_package():
    found = [(known.ggml_type, known.name, known.block_weights, known.block_bytes) for known in kernels.formats()]
    assert found == [(kind, kind.name, *GGML_QUANT_SIZES[kind]) for kind in FORMATS]
    assert {T(known.ggml_type) for known in kernels.formats() if known.layout is None} == FLOATS


def test_tables_are_as_the_gguf_package_has_them():
    tables = {known.name: known.layout.table for known in kernels.formats() if known.layout and known.layout.table}
    assert tables == {
        "IQ4_NL": quants.IQ4_NL.kvalues,
        "IQ4_XS": quants.IQ4_NL.kvalues,
        "MXFP4": quants.MXFP4.kvalues,
        "NVFP4": quants.NVFP4.kvalues,
    }


@pytest.mark.parametrize("kind", POWER_OFFSETS, ids=lambda kind: kind.name)
def test_every_power_of_two_is_read_to_the_bit(kind):
    """The smallest are no normal floats, the largest are beyond what products of floats hold."""
    block_weights, block_bytes = GGML_QUANT_SIZES[kind]
    data = np.full((256, block_bytes), 0x7A, np.uint8)
    for offset in POWER_OFFSETS[kind]:
        data[:, offset] = np.arange(256)
    matrix = kernels.Matrix(data, kind, 256, block_weights)

    got = kernels.dequantize(matrix, 0, 256)

    with np.errstate(over="ignore"):
        want = dequantized(data, kind)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("kind", POWER_OFFSETS, ids=lambda kind: kind.name)
def test_every_power_of_two_multiplies_as_it_is(pool, kind, isa):
    """The smallest scales are no normal floats; with large activations, their products are. Sums of products with the
    largest scales overflow."""
    block_weights, block_bytes = GGML_QUANT_SIZES[kind]
    data = np.full((256, block_bytes), 0x7A, np.uint8)
    for offset in POWER_OFFSETS[kind]:
        data[:, offset] = np.arange(256)
    packed = kernels.pack(pool, kernels.Matrix(data, kind, 256, block_weights), isa, activation_bytes=1)
    for activation, scales in ((2.0**60, slice(0, 150)), (1.0, slice(100, 230))):
        out = np.empty((1, 256), np.float32)
        kernels.linear(pool, np.full((1, block_weights), activation, np.float32), packed, out)
        want = dequantized(data[scales], kind).astype(np.float64).sum(axis=1) * activation
        np.testing.assert_allclose(out[0, scales], want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("kind", E4M3_OFFSETS, ids=lambda kind: kind.name)
def test_every_small_float_of_a_scale_is_read_to_the_bit(pool, kind, isa):
    """The smallest are no normal numbers, one code stands for zero, and the top bit is no sign."""
    block_weights, block_bytes = GGML_QUANT_SIZES[kind]
    data = np.full((256, block_bytes), 0x7A, np.uint8)
    for offset in E4M3_OFFSETS[kind]:
        data[:, offset] = np.roll(np.arange(256), offset)
    matrix = kernels.Matrix(data, kind, 256, block_weights)
    want = dequantized(data, kind)

    assert kernels.dequantize(matrix, 0, 256).tobytes() == want.tobytes()
    packed = kernels.pack(pool, matrix, isa, activation_bytes=1)
    assert kernels.unpack(packed)[0].tobytes() == want.tobytes()
    out = np.empty((1, 256), np.float32)
    kernels.linear(pool, np.ones((1, block_weights), np.float32), packed, out)
    np.testing.assert_allclose(out[0], want.sum(axis=1), rtol=1e-6, atol=0)


def test_a_format_appears_only_in_the_format_list_and_its_block():
    """So that another one takes these files and a row of `devkit.models.random_blocks`, and no kernel. What writes
    tiny models quantises with formats that it names, and advice names common files by their quantisation: a plan's,
    and a refusal's of types that are written no more."""
    named = re.compile(
        "|".join(rf"(?<![a-zA-Z0-9])(?:k|kPanel|Block)?{kind.name}(?![a-zA-Z0-9_])" for kind in QUANTIZED)
    )
    sources = [
        path for top in ("csrc", "runtime") for path in (ROOT / top).rglob("*") if path.suffix in (".py", ".h", ".cpp")
    ]
    assert len(sources) > 200
    found = {str(path.relative_to(ROOT)) for path in sources if named.search(path.read_text(encoding="utf-8"))}
    quantisers = {
        "runtime/ballast/weights/quantize.py",
        "runtime/ballast/weights/quantize_points.py",
        "runtime/ballast/tiny/quant_mix.py",
    }
    readers = {f"csrc/quant/{file}.h" for file in ("blocks32", "blocks256", "grid_blocks", "raw_blocks")}
    advice = {"runtime/ballast/plan/reports/shortfall.py", "runtime/ballast/weights/foreign_types.py"}
    assert found == {"csrc/cpu/format_list.h", "csrc/cpu/make_grids.py", *readers, *quantisers, *advice}


@every_format
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (3, 5), (17, 2)])
def test_rows_are_equal_to_the_bit_to_the_gguf_package(rng, kind, rows, blocks):
    cols = blocks * GGML_QUANT_SIZES[kind][0]
    data = random_blocks(rng, kind, rows, cols)
    matrix = kernels.Matrix(data, kind, rows, cols)

    got = kernels.dequantize(matrix, 0, rows)

    np.testing.assert_array_equal(got.view(np.uint32), dequantized(data, kind).view(np.uint32))
    assert (matrix.rows, matrix.cols, matrix.ggml_type, matrix.nbytes) == (rows, cols, kind, data.nbytes)


@every_format
def test_a_range_of_rows_is_those_rows_at_any_address(rng, kind):
    cols = 2 * GGML_QUANT_SIZES[kind][0]
    data = random_blocks(rng, kind, 5, cols)
    shifted = np.empty(data.nbytes + 1, np.uint8)[1:]
    shifted[:] = data.ravel()

    got = kernels.dequantize(kernels.Matrix(shifted, kind, 5, cols), 2, 4)

    np.testing.assert_array_equal(got, dequantized(data, kind)[2:4])


@pytest.mark.parametrize("kind", [T.F16, T.BF16], ids=lambda kind: kind.name)
def test_all_65536_short_floats_convert_exactly(kind):
    data = np.arange(65536, dtype=np.uint16)
    want = quants.dequantize(data.view(np.uint8) if kind == T.BF16 else data, kind)

    got = kernels.dequantize(kernels.Matrix(data, kind, 1, 65536), 0, 1)[0]

    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(got[numbers].view(np.uint32), want[numbers].view(np.uint32))


@every_format
def test_embed_picks_rows_in_any_order_and_again(rng, kind):
    cols = 3 * GGML_QUANT_SIZES[kind][0]
    data = random_blocks(rng, kind, 7, cols)
    ids = np.array([6, 0, 3, 3], np.int32)
    out = np.empty((4, cols), np.float32)

    kernels.embed(kernels.Matrix(data, kind, 7, cols), ids, out)

    np.testing.assert_array_equal(out, dequantized(data, kind)[ids])

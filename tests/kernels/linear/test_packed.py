"""Packed weights under every instruction set that runs here.

Tolerances. Packing changes no weight, so unpacked ones are compared to the bit. Products with quantised weights round
activations to one byte or two, 256 at a time or as many as divide a row into equal shares: x becomes q · peak / most,
with most 127 or 127 · 255 + 127, and peak the largest magnitude among them. Against NumPy doing the
same rounding, only the float sum of one term a sub-block remains: at most (n + 4) · 2⁻²⁴ · Σ|wᵢ xᵢ|, taken
with every weight as a term, and twice because the minimum's part is summed apart. Against the plain reference each
activation is off by half a step at most: Σ|wᵢ| · peak / (2 most) in all. Float weights round no activation.
"""

import math
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ballast._core import kernels
from ballast.host.isa import chosen_isa
from devkit.kernels.isas import isa_params
from devkit.long import pairwise
from devkit.models.random_blocks import (
    E4M3_OFFSETS,
    FLOATS,
    FORMATS,
    HALF_OFFSETS,
    POWER_OFFSETS,
    QUANTIZED,
    dequantized,
    random_blocks,
    set_scattered,
)

T = GGMLQuantizationType
ISAS = kernels.usable_isas()[:-1]
TOKENS = [0, 1, 2, 3, 15, 16, 17, 33, 63, 64, 65, 300]
MOST = {1: np.float32(127), 2: np.float32(127 * 255 + 127)}
every_width = pytest.mark.parametrize("num_bytes", [1, 2])
every_isa = pytest.mark.parametrize("isa", isa_params())
every_format = pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)


def pack_by_expert(pool, matrix, isa, num_experts):
    rows = matrix.rows // num_experts
    return kernels.pack(pool, matrix, isa, activation_bytes=1, num_heads=num_experts, head_stride=rows, num_rows=rows)


def peaks(x):
    """Of the columns that share a scale: (x in groups, their largest magnitude)."""
    shared = math.gcd(256, x.shape[-1])
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // shared, shared)
    return groups, np.abs(groups).max(axis=-1, keepdims=True, initial=0)


def rounded(x, num_bytes=1):
    """Activations as the kernels see them, float64."""
    groups, peak = peaks(x)
    with np.errstate(divide="ignore"):
        inverse = np.where(peak > 0, MOST[num_bytes] / peak, np.float32(0))
    quants = np.rint(groups * inverse)
    return (quants.astype(np.float64) * (peak / MOST[num_bytes])).reshape(x.shape)


def half_steps(x, num_bytes=1):
    """What rounding can change of each activation."""
    groups, peak = peaks(x)
    return np.broadcast_to(peak / (2 * MOST[num_bytes]), groups.shape).reshape(x.shape).astype(np.float64)


def test_an_instruction_set_is_usable_if_the_kernel_reports_its_cpu_flags():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next(line for line in lines if line.startswith("flags")).split()
    assert [fast.name for fast in kernels.fast_isas() if set(fast.cpu_flags).issubset(flags)] == ISAS


@every_isa
@every_format
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 40])
def test_packing_keeps_every_weight_to_the_bit(rng, pool, kind, isa, rows):
    cols = 2 * max(32, GGML_QUANT_SIZES[kind][0]) if kind not in FLOATS else 37
    data = random_blocks(rng, kind, rows, cols)
    packed = kernels.pack(pool, kernels.Matrix(data, kind, rows, cols), isa, activation_bytes=1)
    assert packed.isa == isa
    assert kernels.unpack(packed).tobytes() == dequantized(data, kind).reshape(1, rows, cols).tobytes()


@every_format
def test_packed_weights_take_little_more_memory_than_the_file(rng, pool, kind):
    data = random_blocks(rng, kind, 64, 2048)
    packed = kernels.pack(pool, kernels.Matrix(data, kind, 64, 2048), ISAS[0], activation_bytes=1)
    assert data.nbytes <= packed.packed_nbytes <= 1.04 * data.nbytes


@every_width
@every_isa
@every_format
def test_linear_at_every_batch_size(rng, pool, make_matrix, kind, isa, num_bytes):
    cols = 768 if kind not in FLOATS else 259
    weight, values = make_matrix(kind, 43, cols)
    packed = kernels.pack(pool, weight, isa, activation_bytes=num_bytes)
    for num_tokens in TOKENS:
        x = rng.standard_normal((num_tokens, cols), dtype=np.float32)
        out = np.full((num_tokens, 43), np.nan, np.float32)

        kernels.linear(pool, x, packed, out)

        seen = x.astype(np.float64) if kind in FLOATS else rounded(x, num_bytes)
        magnitudes = np.abs(seen) @ np.abs(values.T)
        rounding = 2 * (cols + 4) * 2.0**-24 * magnitudes
        if kind not in FLOATS:
            assert np.all(np.abs(out - seen @ values.T) <= rounding)
            rounding += half_steps(x, num_bytes) @ np.abs(values.T)
        reference = np.empty_like(out)
        kernels.linear(pool, x, weight, reference)
        assert np.all(np.abs(out - reference) <= rounding + (cols + 2) * 2.0**-24 * magnitudes)


@every_isa
@every_width
@pytest.mark.parametrize("factor", [2.0**-90, 2.0**90])
def test_activations_of_any_size_are_rounded_alike(rng, pool, make_matrix, isa, num_bytes, factor):
    packed = kernels.pack(pool, make_matrix(T.Q4_K, 16, 512)[0], isa, activation_bytes=num_bytes)
    x = rng.standard_normal((3, 512), dtype=np.float32)
    plain, scaled = (np.empty((3, 16), np.float32) for _ in range(2))
    kernels.linear(pool, x, packed, plain)
    kernels.linear(pool, x * np.float32(factor), packed, scaled)
    np.testing.assert_array_equal(scaled, plain * np.float32(factor))


def codes_at_their_limits(kind, rows, cols, bits):
    """Every byte of codes is `bits`, and block scales are one: with all bits set the largest codes and sub-block scales
    that a format can hold, with 0x77 the largest step of tables with a sign bit."""
    data = np.full_like(random_blocks(np.random.default_rng(0), kind, rows, cols), bits)
    blocks = data.reshape(rows, -1, GGML_QUANT_SIZES[kind][1])
    for offset in HALF_OFFSETS.get(kind, ()):
        blocks[:, :, offset : offset + 2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    for offset in POWER_OFFSETS.get(kind, ()):
        blocks[:, :, offset] = 128
    for offset in E4M3_OFFSETS.get(kind, ()):
        blocks[:, :, offset] = 0x40  # twice one
    if kind == T.IQ1_M:
        set_scattered(blocks, np.ones(blocks.shape[:2], np.float16))
    if kind == T.Q8_0 and bits == 0xFF:
        blocks[:, :, 2:] = 0x80  # -128
    return data


@every_isa
@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bits", [0xFF, 0x77])
@every_width
def test_no_sum_overflows_at_the_largest_codes_and_activations(pool, kind, isa, sign, bits, num_bytes):
    data = codes_at_their_limits(kind, 16, 512, bits)
    values = dequantized(data, kind).astype(np.float64)
    packed = kernels.pack(pool, kernels.Matrix(data, kind, 16, 512), isa, activation_bytes=num_bytes)
    for num_tokens in (1, 3, 17):
        x = np.full((num_tokens, 512), sign * 127, np.float32)
        out = np.empty((num_tokens, 16), np.float32)
        kernels.linear(pool, x, packed, out)
        np.testing.assert_allclose(out, x @ values.T, rtol=1e-5, atol=1e-5 * np.abs(values).sum(axis=1).max() * 127)


@every_width
@every_isa
def test_zeros_give_zeros_and_nans_are_propagated(rng, pool, make_matrix, isa, num_bytes):
    packed = kernels.pack(pool, make_matrix(T.Q4_K, 16, 512)[0], isa, activation_bytes=num_bytes)
    x = np.zeros((4, 512), np.float32)
    x[1, 300], x[2, 7], x[3, 511] = np.nan, np.inf, -np.inf
    out = np.empty((4, 16), np.float32)
    kernels.linear(pool, x, packed, out)
    assert np.all(out[0] == 0)
    assert not np.any(np.isfinite(out[1:]))


@every_isa
@pytest.mark.parametrize("num_tokens", [1, 5, 17])
@pytest.mark.parametrize(("heads", "rows", "stride", "offset"), [(3, 19, 19, 0), (5, 8, 21, 13), (1, 1, 1, 0)])
def test_heads_are_packed_apart(rng, pool, make_matrix, isa, num_tokens, heads, rows, stride, offset):
    weight, _ = make_matrix(T.Q8_0, heads * stride, 96)
    place = {"num_heads": heads, "head_stride": stride, "row_offset": offset, "num_rows": rows}
    packed = kernels.pack(pool, weight, isa, activation_bytes=1, **place)
    values = kernels.unpack(packed).astype(np.float64)
    x = rng.standard_normal((num_tokens, heads, 96), dtype=np.float32)
    out = np.full((num_tokens, heads, rows), np.nan, np.float32)
    kernels.head_linear(pool, x, packed, stride, offset, out)
    np.testing.assert_allclose(out, np.einsum("hnc,thc->thn", values, rounded(x)), rtol=0, atol=1e-5)

    turned = kernels.pack(pool, weight, isa, activation_bytes=1, **place, transposed=True)
    np.testing.assert_array_equal(kernels.unpack(turned), kernels.unpack(packed).transpose(0, 2, 1))
    x = rng.standard_normal((num_tokens, heads, rows), dtype=np.float32)
    out = np.full((num_tokens, heads, 96), np.nan, np.float32)
    kernels.head_linear_transposed(pool, x, turned, stride, offset, out)
    np.testing.assert_allclose(out, np.einsum("hnc,thn->thc", values, x.astype(np.float64)), rtol=0, atol=1e-5)


def routes(rng, num_tokens, num_experts, routing):
    if routing == "all to one":
        ids = np.full((num_tokens, 1), num_experts - 1, np.int32)
    elif routing == "none to some":
        ids = np.array([rng.permutation([0, 2])[:2] for _ in range(num_tokens)], np.int32).reshape(num_tokens, 2)
    else:
        ids = np.array([rng.permutation(num_experts)[:3] for _ in range(num_tokens)], np.int32).reshape(num_tokens, 3)
    return ids, rng.uniform(0.1, 1.0, ids.shape).astype(np.float32)


ONE_BYTE = "MXFP4 NVFP4 Q4_0 Q4_K IQ4_NL IQ4_XS Q2_K Q3_K IQ3_S IQ3_XXS IQ2_S IQ2_XS IQ2_XXS IQ1_M IQ1_S TQ1_0 TQ2_0"
TWO_BYTES = "Q4_1 Q5_0 Q5_1 Q5_K Q6_K Q8_0"


def test_activation_bytes_default_to_the_values_of_decision_80():
    by_default = {known.name: known.activation_bytes for known in kernels.formats()}
    expected = dict.fromkeys(ONE_BYTE.split(), 1) | dict.fromkeys(TWO_BYTES.split(), 2)
    assert by_default == expected | dict.fromkeys(("F32", "F16", "BF16"))


@every_isa
def test_the_default_activation_bytes_are_those_of_each_matrixs_format(rng, pool, make_matrix, isa):
    x = rng.standard_normal((3, 256), dtype=np.float32)
    for known in kernels.formats():
        weight, _ = make_matrix(T(known.ggml_type), 32, 256)
        outs = np.full((2, 3, 32), np.nan, np.float32)
        for num_bytes, out in zip((None, known.activation_bytes or 2), outs, strict=True):
            kernels.linear(pool, x, kernels.pack(pool, weight, isa, activation_bytes=num_bytes), out)
        assert np.array_equal(*outs), known.name


@every_isa
def test_the_parts_of_experts_round_each_as_their_own_format(rng, pool, make_matrix, isa):
    """Gate and up of one byte, down of two: what differs from experts of two bytes comes from those."""
    parts = [make_matrix(kind, 2 * 256, 256)[0] for kind in (T.Q4_K, T.Q4_K, T.Q6_K)]
    x = rng.standard_normal((5, 256), dtype=np.float32)
    ids, weights = np.array([[0, 1]] * 5, np.int32), np.full((5, 2), 0.5, np.float32)
    outs = []
    for num_bytes in (None, 1, 2):
        out = np.full_like(x, np.nan)
        kernels.Experts(*parts, 2).packed(pool, isa, activation_bytes=num_bytes).forward(pool, x, ids, weights, out)
        outs.append(out)
    assert not np.array_equal(outs[0], outs[1])
    assert not np.array_equal(outs[0], outs[2])


def assert_experts(rng, pool, isa, num_bytes, matrices, num_experts, num_tokens, routing):
    """Against packed linears, expert by expert. The activation between is computed twice here, by code that may differ
    in the last bit, so a few bytes of it may round to the other side: four half-steps times the largest weight, and
    1e-5 for the float sums."""
    packed = [pack_by_expert(pool, matrix, isa, num_experts) for matrix in matrices]
    gate, up, down = (kernels.unpack(matrix).astype(np.float64) for matrix in packed)
    kinds = [T(matrix.ggml_type) for matrix in packed]
    is_float = [kind in FLOATS for kind in kinds]
    x = rng.standard_normal((num_tokens, gate.shape[2]), dtype=np.float32)
    ids, weights = routes(rng, num_tokens, num_experts, routing)
    out = np.full_like(x, np.nan)

    experts = kernels.Experts(*matrices, num_experts).packed(pool, isa, activation_bytes=num_bytes)
    experts.forward(pool, x, ids, weights, out)

    want, allowed = np.zeros(x.shape), np.zeros(x.shape)
    for expert in range(num_experts):
        tokens, chosen = np.nonzero(ids == expert)
        if not tokens.size:
            continue
        g = (x[tokens] if is_float[0] else rounded(x[tokens], num_bytes)) @ gate[expert].T
        u = (x[tokens] if is_float[1] else rounded(x[tokens], num_bytes)) @ up[expert].T
        with np.errstate(over="ignore"):
            hidden = (g / (1 + np.exp(-g)) * u).astype(np.float32)
        share = weights[tokens, chosen][:, None].astype(np.float64)
        seen = hidden if is_float[2] else rounded(hidden, num_bytes)
        want[tokens] += share * (seen @ down[expert].T)
        allowed[tokens] += 1e-5 * share * (np.abs(seen) @ np.abs(down[expert].T))
        if not is_float[2]:
            step = half_steps(hidden, num_bytes).max(axis=1, keepdims=True)
            allowed[tokens] += 4 * share * step * np.abs(down[expert]).max(axis=1)
    assert np.all(np.abs(out - want) <= allowed)


@pytest.mark.parametrize(
    ("kind", "isa", "num_bytes", "routing"),
    pairwise(FORMATS, isa_params(), [1, 2], ["any", "all to one", "none to some"]),
)
def test_experts_at_every_batch_size(rng, pool, make_matrix, kind, isa, num_bytes, routing):
    """Tokens are grouped by expert before kernels are chosen, so that not every kernel needs every routing."""
    size = 256 if GGML_QUANT_SIZES[kind][0] == 256 else 64
    matrices = [make_matrix(kind, 4 * size, size)[0] for _ in range(3)]
    # For special routings, one batch per size class is enough.
    for num_tokens in TOKENS if routing == "any" else (0, 1, 2, 17, 65, 300):
        assert_experts(rng, pool, isa, num_bytes, matrices, 4, num_tokens, routing)


@every_isa
@pytest.mark.parametrize(
    ("kinds", "width"),
    [((T.Q4_K, T.Q4_K, T.Q8_0), 96), ((T.Q4_K, T.Q6_K, T.Q5_0), 32), ((T.Q4_K, T.F32, T.F16), 13)],
    ids=["narrow down", "mixed", "floats among them"],
)
@every_width
def test_a_layer_may_mix_types_and_widths(rng, pool, make_matrix, isa, num_bytes, kinds, width):
    shapes = [(4 * width, 256), (4 * width, 256), (4 * 256, width)]
    matrices = [make_matrix(kind, *shape)[0] for kind, shape in zip(kinds, shapes, strict=True)]
    for num_tokens in (1, 9, 65):
        assert_experts(rng, pool, isa, num_bytes, matrices, 4, num_tokens, "any")


@every_width
@every_isa
@pytest.mark.parametrize("cols", [1408, 1344, 1376, 2880])
@pytest.mark.parametrize("kind", [T.Q8_0, T.Q4_1, T.MXFP4], ids=lambda kind: kind.name)
def test_rows_in_smaller_shares_and_several_pieces(rng, pool, make_matrix, isa, num_bytes, kind, cols):
    weight, values = make_matrix(kind, 37, cols)
    packed = kernels.pack(pool, weight, isa, activation_bytes=num_bytes)
    for num_tokens in (1, 17, 65):
        x = rng.standard_normal((num_tokens, cols), dtype=np.float32)
        out = np.empty((num_tokens, 37), np.float32)
        kernels.linear(pool, x, packed, out)
        seen = rounded(x, num_bytes)
        assert np.all(np.abs(out - seen @ values.T) <= 2 * (cols + 4) * 2.0**-24 * (np.abs(seen) @ np.abs(values.T)))


def sums_in_tiles(kind):
    """In AMX's own order: products of bfloat16, and whole numbers over 256 columns."""
    [layout] = [known.layout for known in kernels.formats() if known.ggml_type == kind]
    return kind == T.BF16 or (layout is not None and layout.sums_whole_blocks)


@every_format
@every_width
def test_instruction_sets_agree_to_the_bit(rng, pool, make_matrix, kind, num_bytes):
    weight, _ = make_matrix(kind, 21, 512)
    x = rng.standard_normal((27, 512), dtype=np.float32)
    results = set()
    for isa in ISAS:
        if isa == "amx" and sums_in_tiles(kind):
            continue
        out = np.empty((27, 21), np.float32)
        kernels.linear(pool, x, kernels.pack(pool, weight, isa, activation_bytes=num_bytes), out)
        results.add(out.tobytes())
    assert len(results) == 1


def test_the_environment_forces_an_instruction_set(monkeypatch, pool, make_matrix):
    monkeypatch.delenv("BALLAST_CPU_ISA", raising=False)
    assert chosen_isa() == kernels.usable_isas()[0]
    weight, _ = make_matrix(T.Q8_0, 16, 32)
    for name in kernels.usable_isas():
        monkeypatch.setenv("BALLAST_CPU_ISA", name)
        assert chosen_isa() == name
        assert kernels.pack(pool, weight, chosen_isa(), activation_bytes=1).isa == name


@pytest.mark.parametrize("name", ["avx9", "AVX2", "neon"])
def test_an_unusable_isa_is_rejected_with_the_usable_ones(pool, make_matrix, name):
    story = f"isa is {name}; usable on this machine are {', '.join(kernels.usable_isas())}"
    with pytest.raises(ValueError, match=story):
        kernels.pack(pool, make_matrix(T.Q8_0, 16, 32)[0], name, activation_bytes=1)


def test_a_packed_matrix_reports_its_isa(pool, make_matrix):
    weight, _ = make_matrix(T.Q8_0, 12, 32)
    by_heads = kernels.pack(pool, weight, ISAS[0], activation_bytes=1, num_heads=3, head_stride=4, num_rows=4)
    story = r"packed for 3 heads of 4 rows, head_stride 4, row_offset 0, not transposed; pack it for the product"
    with pytest.raises(ValueError, match=story):
        kernels.linear(pool, np.zeros((1, 32), np.float32), by_heads, np.zeros((1, 12), np.float32))
    with pytest.raises(ValueError, match=story):
        kernels.head_linear_transposed(
            pool, np.zeros((1, 3, 4), np.float32), by_heads, 4, 0, np.zeros((1, 3, 32), np.float32)
        )
    with pytest.raises(ValueError, match="matrix is packed"):
        kernels.dequantize(by_heads, 0, 1)
    with pytest.raises(ValueError, match="matrix is packed"):
        kernels.pack(pool, by_heads, ISAS[0], activation_bytes=1)
    matrices = [make_matrix(T.F32, 12, 4)[0] for _ in range(3)]
    with pytest.raises(ValueError, match="gate is packed; expected it where it lies"):
        kernels.Experts(*[kernels.pack(pool, matrix, ISAS[0], activation_bytes=1) for matrix in matrices], 3)
    experts = kernels.Experts(*matrices, 3).packed(pool, ISAS[0], activation_bytes=1)
    with pytest.raises(ValueError, match="packed already"):
        experts.packed(pool, ISAS[0], activation_bytes=1)

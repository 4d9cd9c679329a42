"""Quantises floats to GGUF blocks, in NumPy. For tests and tiny models; real models need a better
quantiser.

Block layouts: ggml's `ggml-common.h`. Each sub-block gets the scale that spans its values, and each value the nearest
step. Types that the gguf package can quantise are left to it; those with few points are in quantize_points.py.
"""

from __future__ import annotations

from collections.abc import Callable

import gguf.quants
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ballast.weights.block_fields import Bytes, Floats, half, inverse, join, rounded
from ballast.weights.quantize_points import QUANTIZERS

_HALF_MAX = float(np.finfo(np.float16).max)
_NO_SCALES = frozenset({GGMLQuantizationType.F32, GGMLQuantizationType.BF16})
_FLUSH_BELOW = np.float32(1e-12)
"""Far below the smallest half-precision scale; the reciprocal of a smaller value would overflow."""
_IQ4_VALUES = np.array(gguf.quants.IQ4_NL.kvalues, np.float32)
_IQ4_MIDPOINTS = (_IQ4_VALUES[1:] + _IQ4_VALUES[:-1]) / 2
_E2M1_VALUES = np.array(gguf.quants.NVFP4.kvalues[:8], np.float32)
_E2M1_MIDPOINTS = (_E2M1_VALUES[1:] + _E2M1_VALUES[:-1]) / 2
_E2M1_MAX, _E4M3_MAX = 6.0, 448.0


def quantize(values: Floats, ggml_type: GGMLQuantizationType) -> Bytes:
    """The rows of `values`, float32 [..., cols], as blocks: uint8 [..., row_bytes].

    Raises ValueError if cols is not a multiple of the type's block, if Ballast does not support the type, and for
    values that are not finite or exceed the range of the type's scales (±65504 in half precision).
    """
    block_size, block_bytes = GGML_QUANT_SIZES[ggml_type]
    cols = values.shape[-1]
    if cols % block_size:
        raise ValueError(f"rows of {cols} weights: {ggml_type.name} needs a multiple of {block_size}")
    limit = _limit(ggml_type)
    if values.size and not float(np.abs(values).max()) <= limit:
        raise ValueError(f"{ggml_type.name} holds finite weights of at most {limit:g}; found others")
    row_bytes = cols // block_size * block_bytes
    if values.size == 0:
        return np.empty((*values.shape[:-1], row_bytes), np.uint8)
    if ggml_type not in _NO_SCALES:
        values = np.where(np.abs(values) < _FLUSH_BELOW, np.float32(0), values)
    if ggml_type in _OWN:
        blocks = _OWN[ggml_type](values.reshape(-1, block_size))
    elif ggml_type in _FROM_GGUF:
        blocks = gguf.quants.quantize(np.ascontiguousarray(values), ggml_type).view(np.uint8)
    else:
        raise ValueError(f"{ggml_type.name} is not among the types written here")
    return blocks.reshape(*values.shape[:-1], row_bytes)


def matrix_scales(values: Floats, num_experts: int, ggml_type: GGMLQuantizationType) -> Floats:
    """Factors for types with small float scales: divide `values` by them before quantising, and multiply products by
    them. float32 [num_experts], for each of as many equal blocks of rows. The largest value of a block gets the largest
    scale of the type."""
    largest = np.abs(values).reshape(num_experts, -1).max(axis=1, initial=0)
    # The next float, because a quotient rounded down would exceed the limit.
    scales = np.nextafter(largest / np.float32(_limit(ggml_type)), np.float32(np.inf))
    return np.where(largest > 0, scales, np.float32(1))


def _limit(ggml_type: GGMLQuantizationType) -> float:
    """The largest weight that a type can represent."""
    if ggml_type in _NO_SCALES:
        return float(np.finfo(np.float32).max)
    return _E2M1_MAX * _E4M3_MAX if ggml_type == GGMLQuantizationType.NVFP4 else _HALF_MAX


def _q2_k(blocks: Floats) -> Bytes:
    """16 sub-blocks of 16: 4-bit scale and minimum each; value = d·scale·q - dmin·minimum, q in 0…3."""
    subs = blocks.reshape(-1, 16, 16)
    d, dmin, scales, minimums, q = _scale_and_minimum(subs, levels=3, scale_levels=15)
    pairs = q.reshape(-1, 2, 4, 32)  # two halves of 128; in each, four runs of 32 share 32 bytes
    packed = pairs[:, :, 0] | pairs[:, :, 1] << 2 | pairs[:, :, 2] << 4 | pairs[:, :, 3] << 6
    return join(scales | minimums << 4, packed, half(d), half(dmin))


def _q3_k(blocks: Floats) -> Bytes:
    """16 sub-blocks of 16: signed 6-bit scale each; value = d·scale·q, q in -4…3 as two low bits and one high bit."""
    subs = blocks.reshape(-1, 16, 16)
    d, scales, steps = _signed_scale(subs, lowest=-4, highest=3, scale_levels=32)
    q = (steps + 4).astype(np.uint8)
    runs = (q & 3).reshape(-1, 2, 4, 32)
    low = runs[:, :, 0] | runs[:, :, 1] << 2 | runs[:, :, 2] << 4 | runs[:, :, 3] << 6
    high = np.packbits((q >> 2).reshape(-1, 8, 32), axis=1, bitorder="little")
    s = (scales + 32).astype(np.uint8)
    nibbles = s[:, :8] & 15 | (s[:, 8:] & 15) << 4
    tops = (s >> 4).reshape(-1, 4, 4)
    top = tops[:, 0] | tops[:, 1] << 2 | tops[:, 2] << 4 | tops[:, 3] << 6
    return join(high, low, nibbles, top, half(d))


def _q4_k(blocks: Floats) -> Bytes:
    """8 sub-blocks of 32: 6-bit scale and minimum each; value = d·scale·q - dmin·minimum, q in 0…15."""
    d, dmin, scales, minimums, q = _scale_and_minimum(blocks.reshape(-1, 8, 32), levels=15, scale_levels=63)
    pairs = q.reshape(-1, 4, 2, 32)
    return join(half(d), half(dmin), _pack_six_bit(scales, minimums), pairs[:, :, 0] | pairs[:, :, 1] << 4)


def _q5_k(blocks: Floats) -> Bytes:
    """As Q4_K, but q in 0…31, with the fifth bits stored apart."""
    d, dmin, scales, minimums, q = _scale_and_minimum(blocks.reshape(-1, 8, 32), levels=31, scale_levels=63)
    high = np.packbits(q >> 4, axis=1, bitorder="little")
    pairs = (q & 15).reshape(-1, 4, 2, 32)
    low = pairs[:, :, 0] | pairs[:, :, 1] << 4
    return join(half(d), half(dmin), _pack_six_bit(scales, minimums), high, low)


def _q6_k(blocks: Floats) -> Bytes:
    """16 sub-blocks of 16: signed 8-bit scale each; value = d·scale·q, q in -32…31 as four low and two high bits."""
    d, scales, steps = _signed_scale(blocks.reshape(-1, 16, 16), lowest=-32, highest=31, scale_levels=128)
    q = (steps + 32).astype(np.uint8)
    runs = (q & 15).reshape(-1, 2, 2, 64)
    low = runs[:, :, 0] | runs[:, :, 1] << 4
    tops = (q >> 4).reshape(-1, 2, 4, 32)
    high = tops[:, :, 0] | tops[:, :, 1] << 2 | tops[:, :, 2] << 4 | tops[:, :, 3] << 6
    return join(low, high, scales.astype(np.int8).view(np.uint8), half(d))


def _iq4_nl(blocks: Floats) -> Bytes:
    """32 weights: value = d·table[q]."""
    d = rounded(_extreme(blocks) / _IQ4_VALUES[0])
    q = _nearest_iq4(blocks * inverse(d))
    return join(half(d), _pack_iq4(q))


def _iq4_xs(blocks: Floats) -> Bytes:
    """8 sub-blocks of 32: signed 6-bit scale each; value = d·scale·table[q]."""
    subs = blocks.reshape(-1, 8, 32)
    d, scales = _block_of_scales(_extreme(subs)[..., 0] / _IQ4_VALUES[0], scale_levels=32)
    q = _nearest_iq4(subs * inverse(d * scales)[..., None])
    s = (scales + 32).astype(np.uint8)
    low = s[:, 0::2] & 15 | (s[:, 1::2] & 15) << 4
    high = np.bitwise_or.reduce((s >> 4).astype(np.uint16) << np.arange(0, 16, 2, dtype=np.uint16), axis=1)
    return join(half(d), high.astype("<u2")[:, None].view(np.uint8), low, _pack_iq4(q))


def _nvfp4(blocks: Floats) -> Bytes:
    """4 sub-blocks of 16: UE4M3 scale each; value = scale·table[q] / 2, a code's top bit being its sign."""
    subs = blocks.reshape(-1, 4, 16)
    scales = gguf.quants.NVFP4.fp32_to_ue4m3(np.abs(subs).max(axis=-1) / np.float32(_E2M1_MAX))
    d = gguf.quants.NVFP4.ue4m3_to_fp32(scales).astype(np.float32)
    scaled = subs * inverse(d)[..., None]
    q = (np.searchsorted(_E2M1_MIDPOINTS, np.abs(scaled)) | (scaled < 0) << 3).astype(np.uint8)
    return join(scales, q[:, :, :8] | q[:, :, 8:] << 4)


_OWN: dict[GGMLQuantizationType, Callable[[Floats], Bytes]] = {
    GGMLQuantizationType.Q2_K: _q2_k,
    GGMLQuantizationType.Q3_K: _q3_k,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q5_K: _q5_k,
    GGMLQuantizationType.Q6_K: _q6_k,
    GGMLQuantizationType.IQ4_NL: _iq4_nl,
    GGMLQuantizationType.IQ4_XS: _iq4_xs,
    GGMLQuantizationType.NVFP4: _nvfp4,
    **QUANTIZERS,
}
_FROM_GGUF = frozenset(
    {
        GGMLQuantizationType.F32,
        GGMLQuantizationType.F16,
        GGMLQuantizationType.BF16,
        GGMLQuantizationType.Q8_0,
        GGMLQuantizationType.Q4_0,
        GGMLQuantizationType.Q4_1,
        GGMLQuantizationType.Q5_0,
        GGMLQuantizationType.Q5_1,
        GGMLQuantizationType.MXFP4,
    }
)


def _scale_and_minimum(subs: Floats, levels: int, scale_levels: int) -> tuple[Floats, Floats, Bytes, Bytes, Bytes]:
    """subs [blocks, n, width] → d, dmin [blocks, 1], scales, minimums [blocks, n], q [blocks, n, width].

    A minimum is subtracted and unsigned, so a sub-block that lies above 0 starts at 0.
    """
    lowest: Floats = np.minimum(subs.min(axis=-1), 0)
    span: Floats = np.maximum(subs.max(axis=-1), 0) - lowest
    d, scales = _block_of_scales(span / np.float32(levels), scale_levels + 1)
    dmin, minimums = _block_of_scales(-lowest, scale_levels + 1)
    shifted = subs + (dmin * minimums)[..., None]
    q = np.clip(np.rint(shifted * inverse(d * scales)[..., None]), 0, levels)
    return d, dmin, scales.astype(np.uint8), minimums.astype(np.uint8), q.astype(np.uint8)


def _signed_scale(subs: Floats, lowest: int, highest: int, scale_levels: int) -> tuple[Floats, Floats, Floats]:
    """subs [blocks, n, width] → d [blocks, 1], scales [blocks, n], q [blocks, n, width], still as floats.

    The value of largest magnitude becomes `lowest`, the longer side of the range; its sign goes into the scale.
    """
    d, scales = _block_of_scales(_extreme(subs)[..., 0] / np.float32(lowest), scale_levels)
    q = np.clip(np.rint(subs * inverse(d * scales)[..., None]), lowest, highest)
    return d, scales, q


def _block_of_scales(exact: Floats, scale_levels: int) -> tuple[Floats, Floats]:
    """exact [blocks, n] → d [blocks, 1] and whole scales within ±(scale_levels - 1), so that d·scales ≈ exact."""
    top = scale_levels - 1
    d = rounded(np.abs(exact).max(axis=-1, keepdims=True) / top)
    return d, np.clip(np.rint(exact * inverse(d)), -top, top)


def _extreme(values: Floats) -> Floats:
    """The entry of largest magnitude along the last axis, with its sign, keeping the axis."""
    index = np.abs(values).argmax(axis=-1, keepdims=True)
    return np.take_along_axis(values, index, axis=-1)


def _pack_six_bit(scales: Bytes, minimums: Bytes) -> Bytes:
    """Eight 6-bit scales and eight minimums in 12 bytes: the first four of each whole, with the others' top bits above
    them."""
    low = scales[:, :4] | scales[:, 4:] >> 4 << 6
    middle = minimums[:, :4] | minimums[:, 4:] >> 4 << 6
    return join(low, middle, scales[:, 4:] & 15 | (minimums[:, 4:] & 15) << 4)


def _nearest_iq4(scaled: Floats) -> Bytes:
    return np.searchsorted(_IQ4_MIDPOINTS, scaled).astype(np.uint8)


def _pack_iq4(q: Bytes) -> Bytes:
    halves = q.reshape(q.shape[0], -1, 2, 16)
    return join(halves[:, :, 0] | halves[:, :, 1] << 4)

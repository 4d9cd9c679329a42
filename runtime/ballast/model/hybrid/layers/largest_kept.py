"""Bounds of the numbers that a layer writes to its cache for any tokens, computed from its weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.model.hybrid.attention.cache_bounds import largest_normed, largest_product, largest_rotated
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.layer import AttentionMixer
from ballast.model.packed_tensors import LayerTensors


def largest_kept(tensors: LayerTensors, mixer: AttentionMixer) -> dict[str, float]:
    """The largest number by kind of entry: "key", "value" or "latent", and, with an indexer, "index key"; of attention
    to compressed entries, "key", "entry" and "index key"."""
    rotation = mixer.rope.yarn.attention_factor if mixer.rope.yarn else 1.0
    if isinstance(mixer, CompressedSpec):
        roles = {"key": "key_norm", "entry": "entry_norm", "index key": "index_entry_norm"}
        norms = {name: tensors.vector(role) for name, role in roles.items() if role in tensors}
        return {name: rotation * largest_normed(norm) for name, norm in norms.items()}
    if isinstance(mixer, GroupedSpec):
        return _of_heads(tensors, mixer, rotation)
    return _of_latents(tensors, mixer, rotation)


def _of_latents(tensors: LayerTensors, mixer: LatentSpec, rotation: float) -> dict[str, float]:
    found = {"latent": largest_normed(tensors.vector("kv_a_norm"))}
    if mixer.rope.dim:
        keys = _largest_products(tensors, "kv_a", rows=range(mixer.kv_lora_rank, mixer.latent_dim))
        found = {"key": largest_rotated(keys[0::2], keys[1::2], rotation)} | found
    if mixer.has_indexer:
        length = float(np.linalg.norm(tensors.vector("index_key_shift")))
        found["index key"] = rotation * (largest_normed(tensors.vector("index_key_norm")) + length)
    return found


def _of_heads(tensors: LayerTensors, mixer: GroupedSpec, rotation: float) -> dict[str, float]:
    if "key_norm" in tensors:
        key = rotation * largest_normed(tensors.vector("key_norm"))
    else:
        keys = _largest_heads(tensors, mixer, "key").reshape(mixer.num_kv_heads, mixer.head_dim)
        first, second, rest = np.split(keys, (mixer.rope.dim // 2, mixer.rope.dim), 1)
        key = max(largest_rotated(first, second, rotation), float(rest.max(initial=0.0)))
    found = {"key": key, "value": mixer.value_scale * float(_largest_heads(tensors, mixer, "value").max())}
    if mixer.index is not None:
        found["index key"] = rotation * largest_normed(tensors.vector("index_key_norm"))
    return found


def _largest_heads(tensors: LayerTensors, mixer: GroupedSpec, role: str) -> NDArray[np.float64]:
    """Upper bounds of keys or values, which may be rows of a larger matrix."""
    if not mixer.fuses_qkv:
        return _largest_products(tensors, role, f"{role}_bias")
    begin = 0
    for each in tensors.slices("qkv"):
        if each.role == role:
            return _largest_products(tensors, "qkv", rows=range(begin, begin + each.num_rows))
        begin += each.num_rows
    raise AssertionError(f"{role} is no part of the fused matrix")


def _largest_products(
    tensors: LayerTensors, role: str, bias: str | None = None, rows: range | None = None
) -> NDArray[np.float64]:
    """Upper bounds of the output rows of a matrix that follows the layer's norm, or the mean of a token's normed rows
    with gates of at most 1. `rows` None: all rows. `bias`: the role of the optional bias."""
    matrix = tensors.view(role)
    ids = np.array(range(matrix.rows) if rows is None else rows, np.int32)
    values = np.empty((len(ids), matrix.cols), np.float32)
    kernels.embed(matrix, ids, values)
    if matrix.scales.size:
        values *= matrix.scales
    added = tensors.vector(bias) if bias is not None and bias in tensors else None
    if "attention_norm" in tensors:
        return largest_product(tensors.vector("attention_norm"), values, added)
    norms = tensors.vector("attention_stream_norm").reshape(-1, matrix.cols)
    bounds = np.stack([largest_product(norm, values, added) for norm in norms])
    mean: NDArray[np.float64] = bounds.mean(0)
    return mean

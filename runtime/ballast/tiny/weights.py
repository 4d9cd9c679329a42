"""Random weights with the scales of a trained model. They depend only on shape and seed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ballast.families.architecture import ClampedSilu
from ballast.model.layers.tensor import Tensor
from ballast.model.tensors import expected_tensors
from ballast.tiny.shape import TinyShape
from ballast.tiny.spec import spec_of

Floats = NDArray[np.float32]

_BRANCH_GAIN = 0.6
"""Size of one block's contribution to the residual stream, whose rows start at about 1."""
_SILU_RMS = 0.6
"""Root mean square of silu(g)·u for normal g and u of variance 1."""
_CLAMPED_RMS = 8.0
"""The same of a clamped unit whose products have the biases below."""
_LIMITED_RMS = 0.2
"""The same of silu(g)·u with factors that are limited to 0.5."""
_LOGIT_STD = 3.0
"""Scale of the logits for a thousand tokens: about 2.5 nats of entropy, and the best token about 1 above the next."""
_PADDING_GAIN = 2.0
"""Makes rows without a token likelier than others, so that tests detect a sampler that does not mask them."""


def tensors(shape: TinyShape, num_tokens: int, num_rows: int, seed: int) -> Iterator[tuple[str, Floats]]:
    """(GGUF name, values) of every tensor in the joint layout, which the writer splits for the split one. Rows
    num_tokens…num_rows-1 of embedding and output belong to no token."""
    for name, tensor in expected_tensors(spec_of(shape, num_rows, "joint")).items():
        if tensor.group == "output":
            values = _matrix(seed, tensor, _LOGIT_STD)
            values[num_tokens:] *= _PADDING_GAIN
        elif tensor.group == "embedding":
            values = _matrix(seed, tensor, math.sqrt(tensor.cols))
        elif tensor.below:
            values = _table(seed, tensor)
        elif tensor.role == "rope_factors":
            values = _rope_factors(shape, tensor)
        elif len(tensor.shape) > 1 and not tensor.is_added:
            values = _matrix(seed, tensor, _gain(shape, tensor))
        else:
            values = _vector(seed, tensor)
        if tensor.role == "router":
            # Rows of different norms: some experts are chosen often and clearly, others rarely.
            values = values * np.exp(_normal(seed, f"{name}.spread", (shape.num_experts, 1)) * np.float32(0.4))
        yield name, values


def _gain(shape: TinyShape, tensor: Tensor) -> float:
    """Gain of a layer's matrix: the size of its results for inputs of size 1."""
    gains = {
        "output": 2 * _BRANCH_GAIN,  # attention averages over tokens, which shrinks its output
        "output_up": 2 * _BRANCH_GAIN,
        "entry_offset": math.sqrt(tensor.cols),
        "index_entry_offset": math.sqrt(tensor.cols),
        "router": 1.5,
        "down": _BRANCH_GAIN / _SILU_RMS,
        "index_pool_offset": math.sqrt(tensor.cols),
        "experts_down": _BRANCH_GAIN / _unit_rms(tensor) / _routed_gain(shape),
    }
    return gains.get(tensor.role, 1.0)


def _vector(seed: int, tensor: Tensor) -> Floats:
    """Factors near 1, or biases. Those of gate and up are so large that the unit's limit is often reached."""
    spreads = {"router_bias": 0.15, "index_key_shift": 0.1, "sinks": 2.0, "rate_shift": 1.0}
    spread = (spreads | {"experts_gate_bias": 4.0, "experts_up_bias": 3.0}).get(tensor.role, 0.3)
    if tensor.role == "rate":
        rates: Floats = np.exp(_normal(seed, tensor.name, tensor.shape) * np.float32(0.7) - np.float32(0.5))
        return -rates
    if tensor.role.endswith(("_stream_base", "stream_end_base")):  # weights that differ between rows
        return _normal(seed, tensor.name, tensor.shape)
    if tensor.role == "mlp_gate":
        return _normal(seed, tensor.name, tensor.shape) * np.float32(1.5 / math.sqrt(tensor.cols))
    if tensor.is_added or tensor.role == "sinks":
        return _normal(seed, tensor.name, tensor.shape) * np.float32(spread)
    # The gates of a stream halve what a block reads.
    mean = 2 if tensor.role.endswith("_stream_norm") else 1
    return mean + _normal(seed, tensor.name, tensor.shape) * np.float32(0.1)


def _table(seed: int, tensor: Tensor) -> Floats:
    """Different whole numbers in each row."""
    scores = _normal(seed, tensor.name, (tensor.shape[0], tensor.below))
    return np.argsort(scores, axis=1)[:, : tensor.cols].astype(np.float32)


def _rope_factors(shape: TinyShape, tensor: Tensor) -> Floats:
    """The divisors of the frequencies of the first rope_dim / 4 pairs; further entries are not used."""
    assert shape.factors is not None
    dim, factors = shape.rope_dim // 2, shape.factors
    frequencies = shape.rope_theta ** -(np.arange(0, dim, 2) / dim)
    rotations = factors.original_context * frequencies / (2 * np.pi)
    kept = np.clip((rotations - factors.slow_rotations) / (factors.fast_rotations - factors.slow_rotations), 0.0, 1.0)
    values = np.ones(tensor.shape, np.float32)
    values[: dim // 2] = 1 / ((1 - kept) / factors.factor + kept)
    return values


def _unit_rms(tensor: Tensor) -> float:
    """Root mean square of what the unit of a tensor's experts gives."""
    unit = None if tensor.part_of is None else tensor.part_of.unit
    if isinstance(unit, ClampedSilu):
        return _LIMITED_RMS
    return _SILU_RMS if unit is None else _CLAMPED_RMS


def _routed_gain(shape: TinyShape) -> float:
    """Roughly, the size of the chosen experts' weighted sum relative to one expert's output."""
    total_weight = 1.0 if shape.normalize_weights else 0.8
    return shape.weights_scale * total_weight / math.sqrt(shape.num_experts_used)


def _matrix(seed: int, tensor: Tensor, gain: float) -> Floats:
    """Normal weights that turn a vector of variance 1 into one of variance gain²."""
    return _normal(seed, tensor.name, tensor.shape) * np.float32(gain / math.sqrt(tensor.cols))


def _normal(seed: int, name: str, dims: tuple[int, ...]) -> Floats:
    """Normal numbers from a generator per tensor, so that they do not depend on other tensors."""
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return generator.standard_normal(dims, dtype=np.float32)

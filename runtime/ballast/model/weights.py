"""A model's weights in the form that the CPU computes with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ballast._core import kernels
from ballast.errors import ModelError
from ballast.host.machine import read_machine
from ballast.model.layers.ngram import TABLE
from ballast.model.packed_tensors import F32, LayerTensors, Packing, Tensors
from ballast.model.spec import ModelSpec
from ballast.model.tensors import (
    EMBEDDING,
    NGRAM_TABLE,
    OUTPUT,
    ROPE_FACTORS,
    expected_tensors,
    layer_tensors,
    output_tensors,
)
from ballast.weights.gguf import GgufModel, block_of
from ballast.weights.read_ahead import ReadAhead


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The whole model."""

    embedding: kernels.Matrix  # [vocabulary, D]
    layers: tuple[Mapping[str, Any], ...]
    """Of each layer, by role."""
    output_tensors: Mapping[str, Any]
    """By role, those by which the output reads the residual stream."""
    output: kernels.Matrix  # [sampled vocabulary, D]
    rope_factors: F32 | None = None
    """The divisors of the frequencies of rotations with factors, per pair."""


def load_weights(
    gguf_model: GgufModel,
    spec: ModelSpec,
    num_sampled_ids: int,
    packing: Packing,
    report: Callable[[float], None],
) -> ModelWeights:
    """Pack every tensor of a checked file; for "reference", and the embedding always, they are seen in place.
    `report` gets the share of bytes done, 0…1, after each layer. Raises ModelError for numbers that must be finite
    and are not.

    The output head ends at `num_sampled_ids` rows: a row without a token is never computed, so never sampled.
    """
    with read_ahead(gguf_model, spec, packing) as ahead:
        tensors = Tensors(gguf_model, packing, ahead)
        layers = []
        for index, share in enumerate(shares_after_layers(gguf_model, spec.num_layers)):
            layers.append(LayerTensors(tensors, layer_tensors(spec, index)).all())
            if spec.layers[index].ngram is not None:
                gguf_model.expect_single_rows(NGRAM_TABLE)
                layers[-1][TABLE] = tensors.view(NGRAM_TABLE)
            report(share)
        return ModelWeights(
            embedding=tensors.view(EMBEDDING),
            layers=tuple(layers),
            output_tensors=LayerTensors(tensors, output_tensors(spec)).all(),
            output=tensors.matrix(
                EMBEDDING if spec.tied_output else OUTPUT, num_rows=min(num_sampled_ids, spec.vocab_size)
            ),
            rope_factors=read_rope_factors(gguf_model, spec, tensors),
        )


def read_rope_factors(gguf_model: GgufModel, spec: ModelSpec, tensors: Tensors) -> F32 | None:
    """The divisors of the frequencies of rotations with factors, per pair; None if no rotation has any. Raises
    ModelError if they are not positive."""
    if not any(rope.has_factors for rope in spec.ropes):
        return None
    factors = tensors.vector(ROPE_FACTORS)
    if factors.min() <= 0:
        raise ModelError(gguf_model.path, f"found {factors.min()}; expected factors above 0", tensor=ROPE_FACTORS)
    return factors


def read_ahead(gguf_model: GgufModel, spec: ModelSpec, packing: Packing) -> ReadAhead:
    """A reader that loads the tensors to be packed, layer by layer, while others are packed. Packed tensors leave the
    page cache if memory has no room for both."""
    names: set[str] = set()
    if packing.isa != "reference":
        names = {name for name, tensor in expected_tensors(spec).items() if not tensor.read_in_place}
    if packing.kept is not None and packing.kept.is_filled:
        names -= set(packing.kept_tensors)
    layers = {name: block_of(name) for name in gguf_model.tensors if name in names}
    last = spec.num_layers
    names_by_layer = sorted(layers, key=lambda name: last if (layer := layers[name]) is None else layer)
    num_bytes = sum(gguf_model.tensors[name].num_bytes for name in names_by_layer)
    return ReadAhead(gguf_model, names_by_layer, drops_packed=2 * num_bytes > read_machine().memory.available_bytes)


def shares_after_layers(gguf_model: GgufModel, num_layers: int) -> list[float]:
    """Cumulative fraction of the model's bytes after each layer; the last entry does not include tensors that belong to
    no layer."""
    num_bytes = [0] * num_layers
    for name, info in gguf_model.tensors.items():
        index = block_of(name)
        if index is not None and index < num_layers:
            num_bytes[index] += info.num_bytes
    total = sum(info.num_bytes for info in gguf_model.tensors.values())
    return [done / total for done in itertools.accumulate(num_bytes)]

"""The tensors that a model must have, as its layers declare them. All are checked before anything is loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from ballast.errors import ModelError
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.ngram import TABLE
from ballast.model.layers.stream import GatedStreamSpec
from ballast.model.layers.tensor import Tensor, matrix, norm, vector
from ballast.model.spec import ModelSpec
from ballast.weights.gguf import GgufModel
from ballast.weights.gguf_file import TensorInfo

log = logging.getLogger(__name__)

EMBEDDING, OUTPUT_NORM, OUTPUT = "token_embd.weight", "output_norm.weight", "output.weight"
ROPE_FACTORS = "rope_freqs.weight"
NGRAM_TABLE = "per_layer_token_embd.weight"

TYPES = frozenset(GgmlType(known.ggml_type) for known in kernels.formats())
"""Types that matrices may have. Norms and biases are F32."""

SCALED_TYPES = frozenset(
    GgmlType(known.ggml_type)
    for known in kernels.formats()
    if known.layout is not None and known.layout.scales == "e4m3"
)
"""Types whose matrices may have a separate scale tensor in the file, a factor of their products."""


@lru_cache(maxsize=16)
def used_tensors(spec: ModelSpec) -> Mapping[str, Tensor]:
    """Name → declaration of everything that the model computes with. An output that is tied to the embedding is listed
    under its own name."""
    return MappingProxyType(
        {
            EMBEDDING: matrix(
                "embedding",
                "token_embd",
                (spec.vocab_size, spec.hidden),
                "model.embed_tokens",
                group="embedding",
                classes=("Embedding",),
                read_in_place="all rows",
            ),
            **{tensor.name: tensor for tensor in output_tensors(spec)},
            OUTPUT: matrix("output", "output", (spec.vocab_size, spec.hidden), "lm_head", group="output"),
            **{tensor.name: tensor for tensor in _rope_factors(spec)},
            **{tensor.name: tensor for tensor in _ngram_table(spec)},
            **{tensor.name: tensor for layer in range(spec.num_layers) for tensor in layer_tensors(spec, layer)},
        }
    )


def output_tensors(spec: ModelSpec) -> tuple[Tensor, ...]:
    """Those by which the output reads the residual stream, before its matrix."""
    if isinstance(spec.stream, GatedStreamSpec):
        return spec.stream.output_tensors(spec.hidden)
    return (*spec.stream_end, norm("output_norm", "output_norm", spec.hidden, "model.norm"))


def _ngram_table(spec: ModelSpec) -> tuple[Tensor, ...]:
    """The table of the layer that embeds n-grams."""
    layer = next((index for index, layer in enumerate(spec.layers) if layer.ngram is not None), None)
    if layer is None or spec.ngram is None:
        return ()
    module = f"model.layers.{layer}.ple.ple_embedding"
    shape, classes = (spec.ngram.table_rows, spec.ngram.row_width), ("{family}NGramEmbedding",)
    table = matrix(
        TABLE,
        "per_layer_token_embd",
        shape,
        module,
        group="embedding",
        classes=classes,
        read_in_place="few rows",
    )
    return (table,)


def _rope_factors(spec: ModelSpec) -> tuple[Tensor, ...]:
    """The divisors of the frequencies of rotations with factors: one per pair of the widest rotation. Narrower
    rotations use the first ones."""
    if not any(rope.has_factors for rope in spec.ropes):
        return ()
    num_pairs = max(rope.dim for rope in spec.ropes) // 2
    classes = ("{family}RotaryEmbedding",)
    return (vector("rope_factors", "rope_freqs", num_pairs, "model.rotary_emb", classes=classes),)


@lru_cache(maxsize=16)
def expected_tensors(spec: ModelSpec) -> Mapping[str, Tensor]:
    """Name → declaration of every tensor that the model reads from its file."""
    used = used_tensors(spec)
    return MappingProxyType({name: used[name] for name in used if name != OUTPUT or not spec.tied_output})


def layer_tensors(spec: ModelSpec, layer: int) -> tuple[Tensor, ...]:
    """Those of a layer, with the names of their tensors and modules in the model."""
    return tuple(
        replace(tensor, name=f"blk.{layer}.{tensor.name}", module=f"model.layers.{layer}.{tensor.module}")
        for tensor in spec.layers[layer].tensors(spec.hidden, spec.architecture.ffn_norm)
    )


def expert_module(layer: int) -> str:
    """The module of a layer's routed experts."""
    return f"model.layers.{layer}.mlp.experts"


def routed_bytes(spec: ModelSpec, weights: Mapping[str, int]) -> dict[int, int]:
    """Layer → bytes of its routed experts, of all routed layers. `weights`: bytes by name; those left out are 0."""
    return {
        layer: sum(weights.get(each.name, 0) for each in layer_tensors(spec, layer) if each.group == "routed experts")
        for layer in spec.routed_layers
    }


def check_tensors(gguf: GgufModel, spec: ModelSpec) -> None:
    """Raises ModelError naming file, tensor, expected and found for the first tensor that is missing, has another
    shape, or is of a type that cannot be read. Other tensors are not used; those of an option that only later layers of
    a kind have are refused."""
    expected = expected_tensors(spec)
    for name, tensor in expected.items():
        info = gguf.tensors.get(name)
        if info is None:
            raise ModelError(gguf.path, f"is missing; expected shape {tensor.shape}", tensor=name)
        if _shape(info, tensor) != tensor.shape:
            raise ModelError(info.file, f"expected shape {tensor.shape}, found {info.shape}", tensor=name)
        _check_type(info, tensor)
    extra = [name for name in gguf.tensors if name not in expected]
    not_taken = set(_not_taken(spec))
    scales = {scale_name(name) for name in expected if name.endswith(".weight")} | {scale_name(OUTPUT)}
    for name in extra:
        if name in scales:
            _check_scale(gguf, name, expected)
        _check_bias(gguf.tensors[name], expected)
        if name in not_taken:
            problem = "is not used, because the first layer of its kind has none; expected it in all of them or none"
            raise ModelError(gguf.tensors[name].file, problem, tensor=name)
    extra = [name for name in extra if name not in scales]
    if extra:
        log.info("%s: %d tensors are not used, starting with %s", gguf.path, len(extra), extra[0])


def _shape(info: TensorInfo, tensor: Tensor) -> tuple[int, ...]:
    """Its shape in the file, without the dimensions of 1 that files may add."""
    if not tensor.has_ones or len(info.shape) <= len(tensor.shape):
        return info.shape
    return tuple(dim for dim in info.shape if dim != 1)


def _not_taken(spec: ModelSpec) -> Iterator[str]:
    """The tensors of options that layers do not have."""
    for index, layer in enumerate(spec.layers):
        if isinstance(layer.mixer, GroupedSpec):
            taken = layer.mixer.tensors(spec.hidden)
            yield from (f"blk.{index}.{each.name}" for each in layer.mixer.declared(spec.hidden) if each not in taken)


def scale_name(matrix: str) -> str:
    """The tensor that holds what a matrix's products are multiplied by: of experts a number each, else one."""
    return matrix.removesuffix(".weight") + ".scale"


def _check_scale(gguf: GgufModel, name: str, expected: Mapping[str, Tensor]) -> None:
    """Refuse a scale of a matrix that no converter gives one, or of another type than those that have one. An
    `.input_scale` is for activations that are rounded to four bits, as none is here."""
    info = gguf.tensors[name]
    weight = name.removesuffix(".scale") + ".weight"
    if weight not in expected:
        raise ModelError(
            info.file, f"is a scale of {weight}, but the embedding is used instead of that tensor", tensor=name
        )
    matrix, group = gguf.tensors[weight], expected[weight].group
    if group in ("embedding", "router") or matrix.ggml_type not in SCALED_TYPES:
        kinds = ", ".join(kind.name for kind in sorted(SCALED_TYPES))
        raise ModelError(
            info.file,
            f"is a scale of all of {matrix.name}, which is {matrix.ggml_type.name}; only {kinds} of attention, "
            "feed-forward, experts and output have one",
            tensor=name,
        )
    shape = (expected[weight].num_experts,)
    if info.shape != shape or info.ggml_type != GgmlType.F32:
        raise ModelError(
            info.file,
            f"expected shape {shape} of F32, found {info.shape} of {info.ggml_type.name}",
            tensor=name,
        )


def _check_bias(info: TensorInfo, expected: Mapping[str, Tensor]) -> None:
    """Refuse a bias that would have to be added to what a matrix gives."""
    matrix = info.name.removesuffix(".bias") + ".weight"
    if info.name.endswith(".bias") and matrix in expected:
        raise ModelError(
            info.file,
            f"is a bias of {matrix}, which is not supported for this architecture",
            tensor=info.name,
        )


def _check_type(info: TensorInfo, tensor: Tensor) -> None:
    allowed = {GgmlType.F32} if len(tensor.shape) == 1 or tensor.is_added else TYPES
    if tensor.below:
        allowed = {GgmlType.I32}
    if tensor.may_be_short:
        allowed = {GgmlType.F32, GgmlType.F16, GgmlType.BF16}
    if info.ggml_type not in allowed:
        names = ", ".join(kind.name for kind in sorted(allowed))
        raise ModelError(info.file, f"type {info.ggml_type.name} cannot be read; expected {names}", tensor=info.name)

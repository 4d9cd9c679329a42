"""Computes how many bytes each tensor takes once it is loaded, without loading it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ballast._core import kernels
from ballast.model.layers.tensor import ExpertPart, Tensor, parts_of_experts
from ballast.model.spec import ModelSpec
from ballast.model.tensors import EMBEDDING, OUTPUT, expected_tensors, layer_tensors, output_tensors
from ballast.weights.gguf import GgufModel


def loaded_bytes(gguf: GgufModel, spec: ModelSpec, isa: str, threads_per_node: Sequence[int]) -> dict[str, int]:
    """Tensor → bytes in memory after `load_weights`, for all of the vocabulary's rows. Tensors that are read in place
    (the embedding, and everything for "reference") take as much page cache as they take of the file."""
    expected = expected_tensors(spec)
    found = {name: gguf.tensors[name].num_bytes for name in expected}
    if isa == "reference":
        return found
    for layer in range(spec.num_layers):
        tensors = layer_tensors(spec, layer)
        found |= {each.name: _matrix(gguf, each) for each in tensors if each.is_packed and each.part_of is None}
        for parts in parts_of_experts(tensors).values():
            found |= _expert_bytes(gguf, parts, threads_per_node)
    found |= {each.name: _matrix(gguf, each) for each in output_tensors(spec) if each.is_packed}
    output = expected[EMBEDDING if spec.tied_output else OUTPUT]
    found[output.name] = _matrix(gguf, output) + (found[EMBEDDING] if spec.tied_output else 0)
    return found


def _matrix(gguf: GgufModel, tensor: Tensor) -> int:
    """A matrix as it is packed: whole, in slices, or one per head."""
    kind = int(gguf.tensors[tensor.name].ggml_type)
    if tensor.slices:
        return sum(kernels.packed_nbytes(kind, num_rows=each.num_rows, cols=tensor.cols) for each in tensor.slices)
    if not tensor.heads:
        return kernels.packed_nbytes(kind, num_rows=tensor.shape[0], cols=tensor.cols)
    return sum(
        kernels.packed_nbytes(
            kind, num_heads=rows.num_heads, num_rows=rows.num_rows, cols=tensor.cols, transposed=rows.is_transposed
        )
        for rows in tensor.heads
    )


def _expert_bytes(
    gguf: GgufModel, parts: Mapping[ExpertPart, Tensor], threads_per_node: Sequence[int]
) -> dict[str, int]:
    tensors = (parts["gate"], parts["up"], parts["down"])
    gate_type, up_type, down_type = (int(gguf.tensors[tensor.name].ggml_type) for tensor in tensors)
    sizes = kernels.experts_packed_nbytes(
        (gate_type, up_type, down_type),
        num_experts=parts["down"].num_experts,
        hidden=parts["down"].shape[-2],
        width=parts["down"].cols,
        threads_per_node=threads_per_node,
    )
    found = dict.fromkeys((tensor.name for tensor in tensors), 0)
    for tensor, size in zip(tensors, sizes, strict=True):
        found[tensor.name] += size
    return found

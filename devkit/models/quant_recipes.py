"""The types that published files give the tensors of a model."""

from __future__ import annotations

from collections.abc import Mapping

from gguf import GGMLQuantizationType as GgmlType

from ballast.model.layers.tensor import Tensor
from ballast.model.spec import ModelSpec
from ballast.model.tensors import OUTPUT, expected_tensors
from ballast.tiny.quant_mix import fitting_type
from ballast.weights.gguf import block_of

_VALUES = ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight")


def q4_k_m_types(spec: ModelSpec) -> dict[str, GgmlType]:
    """Name → type of every matrix, as llama-quantize chooses for Q4_K_M: Q6_K for the output and, in half of the
    layers, for values and down projections; Q4_K for everything else. Routers, norms and biases stay float32."""
    matrices = _matrices(spec)
    values = [name for name in matrices if name.endswith(_VALUES)]

    def preferred(name: str) -> GgmlType:
        is_fine = (
            name == OUTPUT
            or (name in values and _has_more_bits(values.index(name), len(values)))
            or ("ffn_down" in name and _has_more_bits(block_of(name) or 0, spec.num_layers))
        )
        return GgmlType.Q6_K if is_fine else GgmlType.Q4_K

    return {name: fitting_type(preferred(name), tensor.cols) for name, tensor in matrices.items()}


def mxfp4_types(spec: ModelSpec) -> dict[str, GgmlType]:
    """Name → type of every matrix, as gpt-oss is published: MXFP4 for routed experts and Q8_0 for everything else."""
    return {name: GgmlType.MXFP4 if "_exps." in name else GgmlType.Q8_0 for name in _matrices(spec)}


def _matrices(spec: ModelSpec) -> Mapping[str, Tensor]:
    """Name → declaration of every tensor that is quantised, layer by layer."""
    tensors = expected_tensors(spec).items()
    return {name: each for name, each in tensors if each.is_packed and not each.is_exact and not each.is_added}


def _has_more_bits(index: int, count: int) -> bool:
    """Whether this one of `count` layers is among the first or last eighth, or each third of the others."""
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2

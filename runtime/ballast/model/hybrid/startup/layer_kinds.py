"""Selects the layers that are enough to launch every kernel of the whole model.

Kernels are compiled for types and shapes, and most layers share them. Warm-up steps run one layer of each kind, which
covers all kernels in one or two seconds regardless of the model's depth.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from ballast.model.hybrid.experts.layer_on_device import LayerOnDevice
from ballast.model.spec import ModelSpec
from ballast.weights.gguf import GgufModel, block_of


def one_of_each_kind(
    gguf_model: GgufModel, spec: ModelSpec, routed: Mapping[int, LayerOnDevice], layers: range
) -> list[int]:
    """Ascending indices of the first of `layers` of each kind. `routed` maps each routed layer, by its index among the
    routed layers, to the experts that the device computes."""
    tensors: list[list[Hashable]] = [[] for _ in range(spec.num_layers)]
    for name, info in gguf_model.tensors.items():
        index = block_of(name)
        if index is not None and index < spec.num_layers:
            tensors[index].append((name.removeprefix(f"blk.{index}"), info.ggml_type, info.shape))
    firsts: dict[Hashable, int] = {}
    routed_index = {layer: index for index, layer in enumerate(spec.routed_layers)}
    for index in layers:
        on_device = routed.get(routed_index[index]) if index in routed_index else None
        copies = None if on_device is None else (on_device.num_gpu_experts, on_device.is_whole, len(on_device.across))
        # Counters of layers are 8 bytes apart, and Triton compiles separate kernels for addresses that are multiples of
        # 16.
        firsts.setdefault((frozenset(tensors[index]), spec.layers[index], copies, index % 2), index)
    return list(firsts.values())

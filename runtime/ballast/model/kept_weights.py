"""Which packed weights a folder keeps for the next start (`--packed_dir`), and what they take there. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ballast._core import kernels
from ballast.model.packed_size import loaded_bytes
from ballast.model.spec import ModelSpec
from ballast.model.tensors import expected_tensors, layer_tensors
from ballast.moe.gpu_experts import GpuExperts
from ballast.weights.gguf import GgufModel


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """Tensors whose packed weights are kept: those that are in host memory while the server runs."""

    tensors: frozenset[str]
    sizes: tuple[int, ...]
    """Bytes of the panels of each matrix."""
    isa: str
    threads_per_node: tuple[int, ...]
    """How rows are divided among nodes."""

    def file_bytes(self, unit_bytes: int) -> int:
        """What their files take, each in multiples of `unit_bytes`."""
        return sum(kernels.panel_file_nbytes(size, unit_bytes) for size in self.sizes)


def kept_weights(
    gguf: GgufModel,
    spec: ModelSpec,
    isa: str,
    threads_per_node: tuple[int, ...],
    *,
    on_gpu: bool = False,
    gpu_experts: GpuExperts = (),
) -> KeptWeights:
    """All matrices of a model on the CPU; with a GPU, only the routed experts, except layers that the GPU holds
    completely. Rows that are read from the model's file are not kept."""
    if isa == "reference":
        return KeptWeights(frozenset(), (), isa, threads_per_node)
    loaded, expected = loaded_bytes(gguf, spec, isa, threads_per_node), expected_tensors(spec)
    for name, each in expected.items():
        if each.read_in_place:
            loaded[name] -= gguf.tensors[name].num_bytes
    names = {name for name, each in expected.items() if each.is_packed and not each.is_added and loaded[name] > 0}
    if on_gpu:
        names &= set(_experts_in_host(spec, gpu_experts))
    return KeptWeights(frozenset(names), tuple(loaded[name] for name in names), isa, threads_per_node)


def _experts_in_host(spec: ModelSpec, gpu_experts: GpuExperts) -> Iterator[str]:
    """Tensors of routed experts, but for layers of which the GPU has them all."""
    num_experts = spec.routing.num_experts
    whole = {layer for layer, ids in zip(spec.routed_layers, gpu_experts, strict=False) if len(ids) == num_experts}
    for layer in spec.routed_layers:
        if layer not in whole:
            yield from (tensor.name for tensor in layer_tensors(spec, layer) if tensor.group == "routed experts")

"""Which packed weights a folder keeps for the next start (`--packed_dir`), and what they take there. Pure."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from ballast._core import kernels
from ballast.model.packed_size import loaded_bytes
from ballast.model.spec import ModelSpec
from ballast.model.tensors import expected_tensors
from ballast.moe.gpu_experts import GpuExperts
from ballast.weights.gguf import GgufModel


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """Tensors whose panels are kept: those that lie in host memory while the server runs."""

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
    """All matrices of a model that the CPU computes; beside a GPU, which is sent the others, the routed experts but
    for layers that it has whole. The embedding is read from the model's file."""
    if isa == "reference":
        return KeptWeights(frozenset(), (), isa, threads_per_node)
    loaded = loaded_bytes(gguf, spec, isa, threads_per_node)
    embedding = "token_embd.weight"
    loaded[embedding] -= gguf.tensors[embedding].num_bytes
    names = {name for name, shape in expected_tensors(spec).items() if len(shape) > 1 and loaded[name] > 0}
    if on_gpu:
        names &= _experts_in_host(spec, names, gpu_experts)
    return KeptWeights(frozenset(names), tuple(loaded[name] for name in names), isa, threads_per_node)


def _experts_in_host(spec: ModelSpec, names: Set[str], gpu_experts: GpuExperts) -> Set[str]:
    whole = {spec.num_dense_layers + index for index, ids in enumerate(gpu_experts) if len(ids) == spec.num_experts}
    return {name for name in names if name.endswith("_exps.weight") and int(name.split(".")[1]) not in whole}

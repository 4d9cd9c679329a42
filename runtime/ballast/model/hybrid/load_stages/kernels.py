"""The kernels that a device computes with."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ballast._core import kernels
from ballast.errors import ModelError
from ballast.host.gpu import driver_library
from ballast.host.nvcc import use_packaged_tools
from ballast.host.startup.kernel_cache import keep_compiled_kernels_in
from ballast.host.startup.measurements import Measurements
from ballast.model.hybrid.attention.attention import Attention, PlainAttention, largest_query
from ballast.model.hybrid.attention.expanded import ExpandedSizes
from ballast.model.hybrid.attention.sizes import LatentSizes, Sizes
from ballast.model.hybrid.copies.pinned_ahead import PinnedAhead
from ballast.model.hybrid.copies.registrar import CudaRegistrar
from ballast.model.hybrid.experts.division import Divide, divide
from ballast.model.hybrid.linear import Linear, MakeLinear
from ballast.model.hybrid.load_options import HybridOptions
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.pointwise.pointwise import Pointwise, TorchPointwise
from ballast.model.hybrid.sparse.choice import PlainPositionChoice, PositionChoice
from ballast.model.hybrid.sparse.chosen import ChosenAttention, PlainChosenAttention
from ballast.model.hybrid.sparse.sizes import IndexSizes
from ballast.model.hybrid.sparse.sparse import SparseAttention
from ballast.model.hybrid.streaming.host_memory import Pinning
from ballast.model.hybrid.streaming.streamed_experts import GroupedExperts, LayerSums, MakeExperts
from ballast.model.layers.latent import IndexSpec, LatentSpec
from ballast.model.layers.layer import Mixer
from ballast.model.rope import RopeTable, softmax_scale
from ballast.model.spec import ModelSpec
from ballast.model.switched_off import SwitchedOff
from ballast.weights.gguf import GgufModel

if TYPE_CHECKING:
    from ballast.model.hybrid.attention.late_flashinfer import LateFlashinfer
    from ballast.model.hybrid.startup.kernels_ahead import KernelsAhead
    from ballast.model.hybrid.startup.parallel_compile import CompileAhead


def pinning(device: torch.device, ahead: PinnedAhead | None) -> AbstractContextManager[Pinning | None]:
    if device.type != "cuda":
        return nullcontext()
    make_room = None if ahead is None else ahead.give_back
    return Pinning(CudaRegistrar(), lambda: torch.cuda.set_device(device), make_room)


def warmup_sizes(device: torch.device, spec: ModelSpec, most_tokens: int, longest: int) -> tuple[list[int], list[int]]:
    """Sizes for the kernels of experts, up to `most_tokens` tokens, and for whole steps, up to `longest` tokens."""
    if device.type != "cuda":
        return sorted({1, most_tokens}), sorted({1, longest})
    from ballast.model.hybrid.startup.warmup_sizes import (  # here alone: a CPU needs no Triton
        sizes_for_experts,
        sizes_for_steps,
    )

    return (
        sizes_for_experts(most_tokens, spec.routing.num_experts_used, spec.routing.num_experts),
        sizes_for_steps(longest, spec.routing.num_experts_used, spec.routing.num_experts),
    )


def divide_on(device: torch.device) -> Divide:
    if device.type != "cuda":
        return divide
    from ballast.model.hybrid.experts.fused_routing import fused_divide  # here alone: a CPU needs no Triton

    return fused_divide


def parallel_compile(device: torch.device, report: Callable[[float], None]) -> AbstractContextManager[None]:
    if device.type != "cuda":
        return nullcontext()
    from ballast.model.hybrid.startup import parallel_compile as compiler  # here alone: a CPU needs no Triton

    return compiler.parallel_compile(lambda: torch.cuda.set_device(device), report)


def compile_ahead(device: torch.device) -> AbstractContextManager[CompileAhead | None]:
    if device.type != "cuda":
        return nullcontext()
    from ballast.model.hybrid.startup.parallel_compile import CompileAhead  # here alone: a CPU needs no Triton

    return CompileAhead(lambda: torch.cuda.set_device(device))


def kernels_ahead(
    compiling: CompileAhead,
    spec: ModelSpec,
    pool: kernels.ThreadPool,
    make_experts: MakeExperts,
    options: HybridOptions,
    expert_sizes: Sequence[int],
) -> KernelsAhead:
    from ballast.model.hybrid.startup.kernels_ahead import KernelsAhead  # here alone: a CPU needs no Triton

    return KernelsAhead(compiling, spec, pool, make_experts, options.max_step_tokens, expert_sizes, options.device)


def attentions(
    gguf_model: GgufModel, spec: ModelSpec, sizes: Sizes, kv_dtype: torch.dtype, device: torch.device
) -> Sequence[Any]:
    """One of each lane, by kernels that need not be compiled first."""
    if device.type == "cuda":
        for compiler in ("FLASHINFER_WORKSPACE_BASE", "TRITON_CACHE_DIR"):
            keep_compiled_kernels_in(compiler)
        use_packaged_tools(Path(os.environ["FLASHINFER_WORKSPACE_BASE"], "link"), driver_library())
    try:
        if spec.choices:
            choose, attend = _sparse(spec.choices[0], sizes, kv_dtype, device)
            is_shared = not all(index.has_indexer for index in spec.choices)
            return [SparseAttention(choose, attend, is_shared=is_shared) for _ in range(2)]
        return [_dense(sizes, device) for _ in range(2)]
    except ValueError as error:
        raise ModelError(gguf_model.path, str(error)) from error


def _dense(sizes: Sizes, device: torch.device) -> Attention:
    if device.type != "cuda":
        return PlainAttention(sizes)
    from ballast.model.hybrid.attention.gpu import GpuAttention, paged_attention  # here alone: a CPU needs no Triton

    return GpuAttention(paged_attention(sizes, device))


def _sparse(
    index: IndexSpec, sizes: Sizes, kv_dtype: torch.dtype, device: torch.device
) -> tuple[PositionChoice, ChosenAttention]:
    assert isinstance(sizes, LatentSizes), "chosen positions are those of latent attention"
    of_index = IndexSizes(index.num_heads, index.key_dim, index.top_k, sizes.block_tokens)
    if device.type != "cuda":
        return PlainPositionChoice(of_index), PlainChosenAttention(sizes)
    from ballast.model.hybrid.sparse.gpu import sparse_kernels  # here alone: a CPU needs no Triton

    return sparse_kernels(of_index, sizes, kv_dtype, device, lambda: parallel_compile(device, lambda _: None))


def late_flashinfer(
    mixer: Mixer, of: Sizes, expanded: ExpandedSizes | None, device: torch.device, off: SwitchedOff
) -> LateFlashinfer | None:
    """flashinfer's kernels, which begin to compile; None where they cannot be used."""
    if device.type != "cuda" or (isinstance(mixer, LatentSpec) and mixer.index is not None):
        return None
    from ballast.model.hybrid.attention.late_flashinfer import LateFlashinfer  # here alone: a CPU needs no Triton

    return LateFlashinfer(of, expanded, device, off)


def pointwise(rms_eps: float, mixer: Mixer, rope: RopeTable, kv_dtype: torch.dtype, device: torch.device) -> Pointwise:
    if device.type != "cuda":
        return TorchPointwise(rms_eps, rope, device)
    from ballast.model.hybrid.pointwise.triton_pointwise import TritonPointwise  # here alone: a CPU needs no Triton

    return TritonPointwise(rms_eps, rope, device, largest_query(softmax_scale(mixer), kv_dtype))


def panel_linears(device: torch.device) -> MakeLinear:
    keep_compiled_kernels_in("TRITON_CACHE_DIR")
    from ballast.model.hybrid.panels.panel_linear import PanelLinear  # here alone: a CPU needs no Triton

    def make(matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool = False) -> Linear:
        return PanelLinear(matrix, rows, cols, is_transposed=is_transposed, device=device)

    return make


def autotune(
    made: Sequence[Linear], most_tokens: int, device: torch.device, off: SwitchedOff, measurements: Measurements
) -> None:
    from ballast.model.hybrid.panels import autotune as tuning
    from ballast.model.hybrid.panels.panel_linear import PanelLinear  # here alone: a CPU needs no Triton

    linears = [linear for linear in made if isinstance(linear, PanelLinear)]
    compiled_first = partial(parallel_compile, device, lambda _: None)
    tuning.autotune(linears, most_tokens, device, tuning.replay_seconds, compiled_first, off, measurements)


def grouped_experts(gate: PanelStack, up: PanelStack, down: PanelStack) -> GroupedExperts:
    from ballast.model.hybrid.experts.expert_panels import ExpertPanels  # here alone: a CPU needs no Triton

    return ExpertPanels(gate, up, down)


def expert_sums(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, num_experts: int) -> LayerSums:
    from ballast.model.hybrid.experts.expert_sums import ExpertSums  # here alone: a CPU needs no Triton

    return ExpertSums(x, ids, weights, num_experts)

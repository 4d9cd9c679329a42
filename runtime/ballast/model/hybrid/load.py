"""From a checked model file to a hybrid model on a device."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
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
from ballast.model.hybrid.attention.device_kv_pool import DeviceKvPool
from ballast.model.hybrid.attention.expanded import ExpandedAttention, ExpandedSizes, PlainExpandedKernels
from ballast.model.hybrid.attention.sizes import GroupedSizes, LatentSizes, Sizes
from ballast.model.hybrid.common_mixer import common_mixer
from ballast.model.hybrid.compiling.late_kernels import LateKernels
from ballast.model.hybrid.copies.pinned_ahead import PinnedAhead
from ballast.model.hybrid.copies.registrar import CudaRegistrar
from ballast.model.hybrid.experts.device_layers import WholeLayers, place_experts
from ballast.model.hybrid.experts.divided_experts import DividedExperts, LayerOnDevice
from ballast.model.hybrid.experts.division import Divide, divide
from ballast.model.hybrid.experts.joint_experts import JointExperts
from ballast.model.hybrid.experts.self_check import checked
from ballast.model.hybrid.graphs.decode_inputs import DecodeInputs
from ballast.model.hybrid.handoff.host_experts import HostExperts
from ballast.model.hybrid.layers.attention_layer import AttentionKind, AttentionLayer
from ballast.model.hybrid.layers.grouped_attention import GroupedAttention
from ballast.model.hybrid.layers.latent_attention import LatentAttention
from ballast.model.hybrid.linear import Linear, MakeLinear
from ballast.model.hybrid.load_options import HybridOptions
from ballast.model.hybrid.model import DeviceParts, HybridModel, RoutedExperts
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.pointwise.pointwise import Pointwise, TorchPointwise
from ballast.model.hybrid.slices import slice_sizes_of
from ballast.model.hybrid.sparse.choice import PlainPositionChoice, PositionChoice
from ballast.model.hybrid.sparse.chosen import ChosenAttention, PlainChosenAttention
from ballast.model.hybrid.sparse.sizes import IndexSizes
from ballast.model.hybrid.sparse.sparse import SparseAttention
from ballast.model.hybrid.startup.layer_kinds import one_of_each_kind
from ballast.model.hybrid.startup.pcie_share import MOST_TOKENS, SHARES, kept_share, layers_to_measure, measured_share
from ballast.model.hybrid.streaming.host_memory import NOT_PINNED, PinnedMemory, Pinning
from ballast.model.hybrid.streaming.start import start_streaming
from ballast.model.hybrid.streaming.streamed_experts import GroupedExperts, LayerSums, MakeExperts, sums_of_calls
from ballast.model.hybrid.weights import HybridWeights, load_hybrid_weights
from ballast.model.layers.latent import IndexSpec, LatentSpec
from ballast.model.layers.layer import Mixer
from ballast.model.packed_tensors import Packing
from ballast.model.rope import RopeTable, build_rope_table, softmax_scale
from ballast.model.spec import ModelSpec
from ballast.model.switched_off import SwitchedOff
from ballast.weights.gguf import GgufModel

if TYPE_CHECKING:
    from ballast.model.hybrid.attention.late_flashinfer import LateFlashinfer
    from ballast.model.hybrid.startup.kernels_ahead import KernelsAhead
    from ballast.model.hybrid.startup.parallel_compile import CompileAhead

log = logging.getLogger(__name__)

_WEIGHTS_SHARE, _PINNED_SHARE, _COMPILED_SHARE = 0.9, 0.93, 0.98
"""Of the progress of loading on a GPU, when weights are loaded, experts pinned and kernels compiled; the rest is the
capture of graphs."""


def load_hybrid_model(
    gguf_model: GgufModel,
    spec: ModelSpec,
    packing: Packing,
    options: HybridOptions,
    report: Callable[[float], None] = lambda _: None,
    ahead: PinnedAhead | None = None,
) -> tuple[HybridModel, HybridWeights]:
    """Load the model, on the thread that will run it; `report` gets the share done, 0…1. `ahead`: memory that is pinned
    meanwhile; it is waited for before anything is timed, and given back where experts are refused theirs.

    Raises ModelError for latents that the GPU cannot take, EngineDeadError where a product or a capture fails, and
    whatever CUDA itself reports."""
    device, pcie_share = options.device, options.pcie_share
    times, measurements = options.start.times, options.start.measurements
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    off = SwitchedOff()
    mixer = common_mixer(spec)
    assert mixer is not None, "the plan rejects layers of different attention"
    sizes = _sizes(mixer, options.block_tokens)
    with times.phase("kernels"):
        attends = _attentions(gguf_model, spec, sizes, options.kv_dtype, device)
        expanded_sizes = _expanded_sizes(mixer, sizes)
        flashinfer = _flashinfer(mixer, sizes, expanded_sizes, device, off)
    make_experts = options.make_experts or _grouped_experts
    num_positions = min(spec.context_length, options.num_blocks * options.block_tokens)
    longest = min(options.max_step_tokens, num_positions)
    for_experts, for_steps = _warmup_sizes(device, spec, options.max_step_tokens, longest)

    def tried(layers: Sequence[LayerOnDevice], experts: Sequence[kernels.Experts]) -> list[LayerOnDevice]:
        compiled_first = partial(_parallel_compile, device, lambda _: None)
        with times.phase("kernels"):
            return checked(layers, experts, packing.pool, spec, for_experts, device, compiled_first, off)

    whole = WholeLayers(options.gpu_experts, make_experts, device, tried)
    loaded, ready, compiled = (_WEIGHTS_SHARE, _PINNED_SHARE, _COMPILED_SHARE) if on_gpu else (1.0, 1.0, 1.0)
    made: list[Linear] = []
    pinned = PinnedMemory()
    with _pinning(device, ahead) as pinning, _compile_ahead(device) as compiling:
        early = None
        if compiling is not None:
            early = _kernels_ahead(compiling, spec, packing.pool, make_experts, options, for_experts)

        def note(linear: Linear) -> None:
            made.append(linear)
            if early is not None:
                early.add_linear(linear)

        make_linear = _noted(options.make_linear or _panel_linears(device), note)

        def is_taken(index: int, experts: kernels.Experts) -> bool:
            is_on_device = whole.take(index, experts)
            if not is_on_device:
                if pinning is not None:
                    pinning.add(experts)
                if early is not None and pcie_share != 0:
                    early.add_experts(experts)
            return is_on_device

        with times.phase("weights"):
            weights = load_hybrid_weights(
                gguf_model,
                spec,
                options.num_sampled_ids,
                packing,
                make_linear,
                device,
                lambda done: report(loaded * done),
                is_taken,
            )
        if pinning is not None:
            with times.phase("pinned"):
                pinned = pinning.finish(lambda done: report(loaded + (ready - loaded) * done))
    _tell_bounds(weights, options.kv_dtype)
    if on_gpu:
        with times.phase("kernels"):
            _autotune(made, options.max_step_tokens, device, off, measurements)
    routed_weights = [layer.routed for layer in weights.layers if layer.routed is not None]
    in_host = {index: layer.experts for index, layer in enumerate(routed_weights) if layer.experts is not None}
    on_host = list(in_host.values())
    pointwise = _pointwise(spec.rms_eps, mixer, build_rope_table(mixer.rope, num_positions), options.kv_dtype, device)
    # Before anything on the CPU is timed: until now a compiler may have run. One that still runs leaves it the CPUs.
    if ahead is not None:
        with times.phase("pinned"):
            ahead.wait()
    slices = slice_sizes_of(mixer) if options.slices is None else options.slices
    short = replace(slices, long_from=None)
    attention = AttentionLayer(_kind(mixer, pointwise, attends[0], None), short)

    def prefill_attention(expanded: ExpandedAttention | None) -> AttentionLayer[Any]:
        cuts = short if expanded is None else slices
        return AttentionLayer(_kind(mixer, pointwise, attends[1], expanded), cuts)

    def use_expanded(expanded: ExpandedAttention) -> None:
        model.set_prefill_attention(prefill_attention(expanded))

    late = LateKernels()
    if flashinfer is not None:
        with times.phase("kernels"):
            flashinfer.use_in(attends, use_expanded, pointwise.num_saturated, slices.long_tokens, late)
    plain = None
    if not on_gpu and expanded_sizes is not None:
        plain_kernels = PlainExpandedKernels(expanded_sizes, pointwise.num_saturated)
        plain = ExpandedAttention(expanded_sizes, plain_kernels, slices.long_tokens)
    is_readable = pcie_share != 0 and (bool(pinned.num_bytes) if on_gpu else options.make_experts is not None)
    placed = [
        place_experts(layer, whole.left_of(index), make_experts, device, is_readable=is_readable)
        for index, layer in in_host.items()
    ]
    by_layer = whole.placed | dict(zip(in_host, tried(placed, on_host), strict=True))
    host = HostExperts(spec, on_host, packing.pool, options.max_step_tokens, device, pin_thread=options.pin_thread)
    experts = DividedExperts(host, [by_layer[index] for index in sorted(by_layer)], _divide(device), device)
    kv = DeviceKvPool(spec.planes, options.num_blocks, options.block_tokens, options.kv_dtype, device)
    inputs = DecodeInputs(options.max_batch_size, -(-num_positions // options.block_tokens), spec.hidden, device)
    streamed = start_streaming(
        spec,
        on_host,
        packing.pool,
        pinned,
        device,
        _expert_sums if options.make_experts is None else sums_of_calls(options.make_experts),
        from_tokens=options.stream_from_tokens,
        max_tokens=options.max_step_tokens,
        warmup_sizes=for_experts,
        off=off,
        joint=options.joint_split,
        record=options.start,
    )
    joint = None
    if streamed is not None and streamed.joint_split is not None:
        joint = JointExperts(host, streamed, streamed.joint_split)
    routed = RoutedExperts(experts, streamed, joint, pinned, packing.pool)
    parts = DeviceParts(device, attention, prefill_attention(plain), pointwise, kv, inputs, late)
    model = HybridModel(spec, weights, routed, parts, options.max_step_tokens, options.vram, off)

    with times.phase("kernels"):
        late.use_compiled(waits=not options.finishes_later)
    if late.waiting:
        log.info("other kernels compute prompts until these are compiled", extra={"kernels": late.waiting})
    if experts.can_share:
        experts.set_pcie_share(SHARES[0] if pcie_share is None else pcie_share)
    elif pcie_share != 0 and experts.has_host and not pinned.num_bytes:
        off.add("pcie_share", NOT_PINNED)
    if on_gpu:
        kinds = one_of_each_kind(gguf_model, spec, by_layer)
        with times.phase("kernels"):
            with _parallel_compile(device, lambda done: report(ready + (compiled - ready) * done)):
                model.warm_up(for_steps, host.idle(), kinds)
            model.warm_up(for_steps, host.idle(), kinds)
        torch.cuda.empty_cache()  # pieces of all sizes, of which a long step can use few
    if experts.can_share and pcie_share is None:
        measured = layers_to_measure(sorted(in_host))

        def best_share() -> float:
            in_these = [in_host[index] for index in measured]
            few_host = HostExperts(spec, in_these, packing.pool, MOST_TOKENS, device, pin_thread=options.pin_thread)
            few = DividedExperts(few_host, [by_layer[index] for index in measured], _divide(device), device)
            these = [routed_weights[index] for index in measured]
            return measured_share(few, these, spec.hidden, options.max_batch_size, device)

        with times.phase("measured"):
            share = measurements.take("pcie_share", pinned.num_bytes, best_share, float, kept_share)
        experts.set_pcie_share(share)
    if options.decodes_by_graphs and on_gpu:
        with times.phase("graphs"):
            model.capture_decode(
                lambda done: report(compiled + (1 - compiled) * done), finishes_later=options.finishes_later
            )
    options.start.missing.extend([*late.waiting, *off.reasons])
    model.start = options.start
    return model, weights


def _pinning(device: torch.device, ahead: PinnedAhead | None) -> AbstractContextManager[Pinning | None]:
    if device.type != "cuda":
        return nullcontext()
    make_room = None if ahead is None else ahead.give_back
    return Pinning(CudaRegistrar(), lambda: torch.cuda.set_device(device), make_room)


def _tell_bounds(weights: HybridWeights, kv_dtype: torch.dtype) -> None:
    """Say whether the cache can hold whatever tokens may come; where not, what is too large is bounded and counted."""
    holds = torch.finfo(kv_dtype).max
    is_safe = all(largest <= holds for largest in weights.largest.values())
    kept = "s and ".join(weights.largest)
    log.log(
        logging.INFO if is_safe else logging.WARNING,
        f"the cache holds all {kept}s" if is_safe else f"the cache may have to bound {kept}s",
        extra={**{f"largest_{name}": largest for name, largest in weights.largest.items()}, "holds": holds},
    )


def _warmup_sizes(device: torch.device, spec: ModelSpec, most_tokens: int, longest: int) -> tuple[list[int], list[int]]:
    """Sizes for the kernels of experts, up to `most_tokens` tokens, and for whole steps, up to `longest` tokens."""
    if device.type != "cuda":
        return sorted({1, most_tokens}), sorted({1, longest})
    from ballast.model.hybrid.startup import warmup_sizes  # here alone: a CPU needs no Triton

    return (
        warmup_sizes.sizes_for_experts(most_tokens, spec.routing.num_experts_used, spec.routing.num_experts),
        warmup_sizes.sizes_for_steps(longest, spec.routing.num_experts_used, spec.routing.num_experts),
    )


def _divide(device: torch.device) -> Divide:
    if device.type != "cuda":
        return divide
    from ballast.model.hybrid.experts.fused_routing import fused_divide  # here alone: a CPU needs no Triton

    return fused_divide


def _parallel_compile(device: torch.device, report: Callable[[float], None]) -> AbstractContextManager[None]:
    if device.type != "cuda":
        return nullcontext()
    from ballast.model.hybrid.startup.parallel_compile import parallel_compile  # here alone: a CPU needs no Triton

    return parallel_compile(lambda: torch.cuda.set_device(device), report)


def _compile_ahead(device: torch.device) -> AbstractContextManager[CompileAhead | None]:
    if device.type != "cuda":
        return nullcontext()
    from ballast.model.hybrid.startup.parallel_compile import CompileAhead  # here alone: a CPU needs no Triton

    return CompileAhead(lambda: torch.cuda.set_device(device))


def _kernels_ahead(
    compiling: CompileAhead,
    spec: ModelSpec,
    pool: kernels.ThreadPool,
    make_experts: MakeExperts,
    options: HybridOptions,
    expert_sizes: Sequence[int],
) -> KernelsAhead:
    from ballast.model.hybrid.startup.kernels_ahead import KernelsAhead  # here alone: a CPU needs no Triton

    return KernelsAhead(compiling, spec, pool, make_experts, options.max_step_tokens, expert_sizes, options.device)


def _sizes(mixer: Mixer, block_tokens: int) -> Sizes:
    scale = softmax_scale(mixer)
    if isinstance(mixer, LatentSpec):
        return LatentSizes(mixer.num_heads, mixer.kv_lora_rank, mixer.rope.dim, scale, block_tokens)
    return GroupedSizes(mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, mixer.v_dim, scale, block_tokens)


def _kind(
    mixer: Mixer, pointwise: Pointwise, attend: Attention, expanded: ExpandedAttention | None
) -> AttentionKind[Any]:
    """`expanded`: for long slices of latent attention."""
    if isinstance(mixer, LatentSpec):
        return LatentAttention(mixer, pointwise, attend, expanded)
    return GroupedAttention(mixer, pointwise, attend)


def _attentions(
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

    return sparse_kernels(of_index, sizes, kv_dtype, device, lambda: _parallel_compile(device, lambda _: None))


def _expanded_sizes(mixer: Mixer, of: Sizes) -> ExpandedSizes | None:
    """The sizes of attention outside the latent space; None if attention has no latent space or sees chosen positions
    alone."""
    if not isinstance(of, LatentSizes) or not isinstance(mixer, LatentSpec) or mixer.index is not None:
        return None
    return ExpandedSizes(of.num_heads, of.rank, mixer.nope_dim, of.rope_dim, mixer.v_dim, of.scale, of.block_tokens)


def _flashinfer(
    mixer: Mixer, of: Sizes, expanded: ExpandedSizes | None, device: torch.device, off: SwitchedOff
) -> LateFlashinfer | None:
    """flashinfer's kernels, which begin to compile; None where they cannot be used."""
    if device.type != "cuda" or (isinstance(mixer, LatentSpec) and mixer.index is not None):
        return None
    from ballast.model.hybrid.attention.late_flashinfer import LateFlashinfer  # here alone: a CPU needs no Triton

    return LateFlashinfer(of, expanded, device, off)


def _pointwise(rms_eps: float, mixer: Mixer, rope: RopeTable, kv_dtype: torch.dtype, device: torch.device) -> Pointwise:
    if device.type != "cuda":
        return TorchPointwise(rms_eps, rope, device)
    from ballast.model.hybrid.pointwise.triton_pointwise import TritonPointwise  # here alone: a CPU needs no Triton

    return TritonPointwise(rms_eps, rope, device, largest_query(softmax_scale(mixer), kv_dtype))


def _noted(make_linear: MakeLinear, note: Callable[[Linear], None]) -> MakeLinear:
    """`note` gets every layer that is made."""

    def make(matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool = False) -> Linear:
        linear = make_linear(matrix, rows, cols, is_transposed=is_transposed)
        note(linear)
        return linear

    return make


def _panel_linears(device: torch.device) -> MakeLinear:
    keep_compiled_kernels_in("TRITON_CACHE_DIR")
    from ballast.model.hybrid.panels.panel_linear import PanelLinear  # here alone: a CPU needs no Triton

    def make(matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool = False) -> Linear:
        return PanelLinear(matrix, rows, cols, is_transposed=is_transposed, device=device)

    return make


def _autotune(
    made: Sequence[Linear], most_tokens: int, device: torch.device, off: SwitchedOff, measurements: Measurements
) -> None:
    from ballast.model.hybrid.panels.autotune import autotune, replay_seconds
    from ballast.model.hybrid.panels.panel_linear import PanelLinear  # here alone: a CPU needs no Triton

    linears = [linear for linear in made if isinstance(linear, PanelLinear)]
    compiled_first = partial(_parallel_compile, device, lambda _: None)
    autotune(linears, most_tokens, device, replay_seconds, compiled_first, off, measurements)


def _grouped_experts(gate: PanelStack, up: PanelStack, down: PanelStack) -> GroupedExperts:
    from ballast.model.hybrid.experts.expert_panels import ExpertPanels  # here alone: a CPU needs no Triton

    return ExpertPanels(gate, up, down)


def _expert_sums(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, num_experts: int) -> LayerSums:
    from ballast.model.hybrid.experts.expert_sums import ExpertSums  # here alone: a CPU needs no Triton

    return ExpertSums(x, ids, weights, num_experts)

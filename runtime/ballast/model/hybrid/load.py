"""From a checked model file to a hybrid model on a device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from ballast._core import kernels
from ballast.errors import ModelError
from ballast.model.hybrid.attention.kv_pool import DeviceKvPool
from ballast.model.hybrid.attention.latent import Attention, AttentionSizes, PlainAttention
from ballast.model.hybrid.compiled_kernels import keep_compiled_kernels_in
from ballast.model.hybrid.decode_inputs import DecodeInputs
from ballast.model.hybrid.experts.check import checked
from ballast.model.hybrid.experts.divided import DividedExperts, LayerOnDevice
from ballast.model.hybrid.experts.division import Divide, divide
from ballast.model.hybrid.experts.pcie_share import SHARES, calibrate
from ballast.model.hybrid.experts.placement import WholeLayers, place_experts
from ballast.model.hybrid.handoff.host_experts import HostExperts
from ballast.model.hybrid.linear import Linear, MakeLinear
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.pointwise import Pointwise, TorchPointwise
from ballast.model.hybrid.streaming.host_memory import CudaRegistrar, PinnedMemory, pin
from ballast.model.hybrid.streaming.start import start_streaming
from ballast.model.hybrid.streaming.streamed_experts import GroupedExperts, MakeExperts
from ballast.model.hybrid.weights import HybridWeights, load_hybrid_weights
from ballast.model.rope import RopeTable, build_rope_table, softmax_scale
from ballast.model.spec import ModelSpec
from ballast.model.weights import Packing
from ballast.moe.residents import Residents
from ballast.vram import VramLimit
from ballast.weights.gguf import GgufModel

log = logging.getLogger(__name__)

_WEIGHTS_SHARE, _PINNED_SHARE, _COMPILED_SHARE = 0.9, 0.93, 0.98
"""Of the progress of loading on a GPU, when weights are loaded, experts pinned and kernels compiled; the rest is the
capture of graphs."""


def load_hybrid_model(
    gguf_model: GgufModel,
    spec: ModelSpec,
    num_sampled_ids: int,
    packing: Packing,
    *,
    num_blocks: int,
    block_tokens: int,
    max_step_tokens: int,
    max_batch_size: int,
    device: torch.device,
    make_linear: MakeLinear | None = None,
    kv_dtype: torch.dtype = torch.float16,
    pin_thread: bool = False,
    decodes_by_graphs: bool = True,
    make_experts: MakeExperts | None = None,
    stream_from_tokens: int | None = None,
    residents: Residents = (),
    pcie_share: float | None = 0.0,
    vram: VramLimit | None = None,
    report: Callable[[float], None] = lambda _: None,
) -> tuple[HybridModel, HybridWeights]:
    """Load the model, on the thread that will run it. Steps have at most `max_step_tokens` tokens, decode steps
    `max_batch_size` requests. Only the first `num_sampled_ids` ids are sampled. Without `make_linear` the dense weights
    stay packed in their type, which takes a device that Triton compiles for. `pin_thread`: the thread of the experts
    becomes the pool's first, pinned. On a GPU decode steps are captured, unless `decodes_by_graphs` is off. Experts
    are streamed in steps of `stream_from_tokens` tokens and more; 0: never; None: from as many as pays, as measured.
    `residents`: routed experts that lie in the device's memory as well; of a layer all of whose experts do, the host
    keeps none. `pcie_share`: of a decode step's other experts, those that the device reads from host memory; None: as
    measured. `vram`: what the device's allocator keeps to, for the reason when it is full."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    on_gpu = device.type == "cuda"
    attention = _attention(gguf_model, spec, block_tokens, device)
    make = make_experts or _grouped_experts
    num_positions = min(spec.context_length, num_blocks * block_tokens)
    for_experts, for_steps = _token_counts(device, spec, max_step_tokens, min(max_step_tokens, num_positions))

    def tried(layers: Sequence[LayerOnDevice], experts: Sequence[kernels.Experts]) -> list[LayerOnDevice]:
        rehearse = partial(_rehearsal, device, lambda _: None)
        return checked(layers, experts, packing.pool, spec, for_experts, device, rehearse)

    whole = WholeLayers(residents, make, device, tried)
    loaded, ready, compiled = (_WEIGHTS_SHARE, _PINNED_SHARE, _COMPILED_SHARE) if on_gpu else (1.0, 1.0, 1.0)
    made: list[Linear] = []
    weights = load_hybrid_weights(
        gguf_model,
        spec,
        num_sampled_ids,
        packing,
        _noted(make_linear or _panel_linears(device), made),
        device,
        lambda done: report(loaded * done),
        whole.take,
    )
    if on_gpu:
        _choose_ways(made, max_step_tokens, device)
    routed_weights = [layer.routed for layer in weights.layers if layer.routed is not None]
    in_host = {index: layer.experts for index, layer in enumerate(routed_weights) if layer.experts is not None}
    on_host = list(in_host.values())
    pinned = PinnedMemory()
    if on_gpu:
        pinned = pin(on_host, CudaRegistrar(), report=lambda done: report(loaded + (ready - loaded) * done))
    is_readable = pcie_share != 0 and (bool(pinned.num_bytes) if on_gpu else make_experts is not None)
    placed = [
        place_experts(layer, whole.left_of(index), make, device, is_readable=is_readable)
        for index, layer in in_host.items()
    ]
    by_layer = whole.placed | dict(zip(in_host, tried(placed, on_host), strict=True))
    host = HostExperts(spec, on_host, packing.pool, max_step_tokens, device, pin_thread=pin_thread)
    experts = DividedExperts(host, [by_layer[index] for index in sorted(by_layer)], _divide(device), device)
    kv = DeviceKvPool(spec.num_layers, num_blocks, block_tokens, spec.latent_dim, kv_dtype, device)
    inputs = DecodeInputs(max_batch_size, -(-num_positions // block_tokens), spec.hidden, device)
    pointwise = _pointwise(spec.rms_eps, build_rope_table(spec, num_positions), device)
    streamed = start_streaming(
        spec,
        on_host,
        packing.pool,
        pinned,
        device,
        make,
        from_tokens=stream_from_tokens,
        max_tokens=max_step_tokens,
        token_counts=for_experts,
    )
    model = HybridModel(
        spec, weights, experts, kv, inputs, device, attention, pointwise, pinned, streamed, max_step_tokens, vram
    )
    if experts.can_share:
        experts.set_pcie_share(SHARES[0] if pcie_share is None else pcie_share)
    elif pcie_share and experts.has_host and not pinned.num_bytes:
        log.warning("no PCIe share", extra={"asked": pcie_share, "reason": "the experts' memory is not pinned"})
    if on_gpu:
        with _rehearsal(device, lambda done: report(ready + (compiled - ready) * done)):
            model.bring_up(for_steps, host.idle())
        model.bring_up(for_steps, host.idle())
    if experts.can_share and pcie_share is None:
        calibrate(experts, routed_weights, spec.hidden, max_batch_size, device)
    if decodes_by_graphs and on_gpu:
        model.capture_decode(lambda done: report(compiled + (1 - compiled) * done))
    return model, weights


def _token_counts(device: torch.device, spec: ModelSpec, most_tokens: int, longest: int) -> tuple[list[int], list[int]]:
    """With which experts are tried, of `most_tokens` tokens at most, and steps brought up, of `longest` at most."""
    if device.type != "cuda":
        return sorted({1, most_tokens}), sorted({1, longest})
    from ballast.model.hybrid import token_counts  # here alone: a CPU needs no Triton

    return (
        token_counts.counts_for_experts(most_tokens, spec.num_experts_used),
        token_counts.counts_for_steps(longest, spec.num_experts_used),
    )


def _divide(device: torch.device) -> Divide:
    if device.type != "cuda":
        return divide
    from ballast.model.hybrid.experts.fused_routing import fused_divide  # here alone: a CPU needs no Triton

    return fused_divide


def _rehearsal(device: torch.device, report: Callable[[float], None]) -> AbstractContextManager[None]:
    if device.type != "cuda":
        return nullcontext()
    from ballast.model.hybrid.rehearsal import rehearsal  # here alone: a CPU needs no Triton

    return rehearsal(lambda: torch.cuda.set_device(device), report)


def _attention(gguf_model: GgufModel, spec: ModelSpec, block_tokens: int, device: torch.device) -> Attention:
    sizes = AttentionSizes(spec.num_heads, spec.kv_lora_rank, spec.rope_dim, softmax_scale(spec), block_tokens)
    if device.type != "cuda":
        return PlainAttention(sizes)
    for compiler in ("FLASHINFER_WORKSPACE_BASE", "TRITON_CACHE_DIR"):
        keep_compiled_kernels_in(compiler)
    from ballast.model.hybrid.attention.gpu import gpu_attention  # here alone: a CPU needs no Triton

    try:
        return gpu_attention(sizes, device)
    except ValueError as error:
        raise ModelError(gguf_model.path, str(error)) from error


def _pointwise(rms_eps: float, rope: RopeTable, device: torch.device) -> Pointwise:
    if device.type != "cuda":
        return TorchPointwise(rms_eps, rope, device)
    from ballast.model.hybrid.triton_pointwise import TritonPointwise  # here alone: a CPU needs no Triton

    return TritonPointwise(rms_eps, rope, device)


def _noted(make_linear: MakeLinear, made: list[Linear]) -> MakeLinear:
    """`made` gets every layer that is made."""

    def make(matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool = False) -> Linear:
        made.append(make_linear(matrix, rows, cols, is_transposed=is_transposed))
        return made[-1]

    return make


def _panel_linears(device: torch.device) -> MakeLinear:
    keep_compiled_kernels_in("TRITON_CACHE_DIR")
    from ballast.model.hybrid.panels.linear import PanelLinear  # here alone: a CPU needs no Triton

    def make(matrix: kernels.Matrix, rows: int, cols: int, *, is_transposed: bool = False) -> Linear:
        return PanelLinear(matrix, rows, cols, is_transposed=is_transposed, device=device)

    return make


def _choose_ways(made: Sequence[Linear], most_tokens: int, device: torch.device) -> None:
    from ballast.model.hybrid.panels.linear import PanelLinear  # here alone: a CPU needs no Triton
    from ballast.model.hybrid.panels.trial import choose_ways, replay_seconds

    linears = [linear for linear in made if isinstance(linear, PanelLinear)]
    choose_ways(linears, most_tokens, device, replay_seconds, lambda: _rehearsal(device, lambda _: None))


def _grouped_experts(gate: PanelStack, up: PanelStack, down: PanelStack) -> GroupedExperts:
    from ballast.model.hybrid.experts.panels import ExpertPanels  # here alone: a CPU needs no Triton

    return ExpertPanels(gate, up, down)

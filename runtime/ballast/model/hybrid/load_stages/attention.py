"""The mixers of all layers: selects their kernels before weights are loaded, and makes the layers afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ballast.errors import ModelError
from ballast.model.hybrid.attention.attention import Attention
from ballast.model.hybrid.attention.divided_heads import DividedHeads
from ballast.model.hybrid.attention.expanded import ExpandedAttention, ExpandedSizes
from ballast.model.hybrid.attention.sizes import GroupedSizes, LatentSizes, Sizes
from ballast.model.hybrid.backends.backend import Backend
from ballast.model.hybrid.compiling.late_kernels import LateKernels
from ballast.model.hybrid.compressed.compression import Compression, Rotation
from ballast.model.hybrid.layers.attention_layers import AttentionLayers, LayerKind
from ballast.model.hybrid.layers.compressed_attention import CompressedAttention
from ballast.model.hybrid.layers.delta_net import DeltaNetLayer
from ballast.model.hybrid.layers.grouped_attention import GroupedAttention
from ballast.model.hybrid.layers.kimi_delta import KimiDeltaLayer
from ballast.model.hybrid.layers.latent_attention import LatentAttention
from ballast.model.hybrid.load_stages.stage import Report
from ballast.model.hybrid.load_stages.state import DeviceState, LoadState
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.recurrent.recurrence import Recurrence
from ballast.model.hybrid.residual.gated import GatedResidual
from ballast.model.hybrid.residual.residual import MixedResidual, PlainResidual, Residual
from ballast.model.hybrid.sparse.sizes import IndexSizes
from ballast.model.hybrid.sparse.sparse import SparseAttention
from ballast.model.hybrid.steps.slices import overlap_tokens, slice_sizes_of
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.grouped import SINKS
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.layer import DeviceAttention, Mixer, RecurrentMixer
from ballast.model.layers.positions import RopeSpec
from ballast.model.layers.stream import GatedStreamSpec
from ballast.model.rope import RopeTable, build_rope_table, softmax_scale, unrotated
from ballast.model.spec import ModelSpec


def choose_kernels(state: LoadState, report: Report) -> None:
    """Select the kernels of attention and of recurrent layers. Start to compile those that take minutes."""
    options = state.options
    is_short = options.kv_dtype == torch.float8_e4m3fn
    sizes = [_sizes(mixer, options.block_tokens, is_short=is_short) for mixer in state.mixers]
    state.expanded_sizes = _expanded_sizes(state.mixers[0], sizes[0]) if sizes else None

    def choose(device: DeviceState) -> None:
        backend = device.backend
        backend.prepare()
        device.recurrences = _recurrences(state, backend)
        device.compressions = _compressions(state, backend)
        pairs = list(zip(state.mixers, sizes, strict=True))
        device.attends = [[_attention(state, backend, *pair) for pair in pairs] for _ in range(2)]
        device.late_attention = [
            None if mixer.index is not None else backend.late_attention(own, state.expanded_sizes, state.off)
            for mixer, own in pairs
        ]

    with state.times.phase("kernels"):
        state.on_each(choose)
    longest = min(options.max_step_tokens, state.num_positions)
    backend = state.devices[0].backend
    state.expert_sizes, state.step_sizes = backend.warmup_sizes(state.spec, options.max_step_tokens, longest)


def make_layers(state: LoadState, report: Report) -> None:
    """Make the attention of both lanes. Kernels of long prompts that are still compiling are used later."""
    # Pinning must end before anything on the CPU is timed. It may overlap with compilers, which may have run until now;
    # a compiler that still runs has the lowest CPU priority.
    if state.ahead is not None:
        with state.times.phase("pinned"):
            state.ahead.wait()
    state.on_each(lambda device: _make_layers(state, device))


def _make_layers(state: LoadState, device: DeviceState) -> None:
    options = state.options
    pointwise = _pointwise_by_mixer(state, device.backend)
    device.pointwise = pointwise[0] if pointwise else _without_rotation(state, device.backend)
    device.gates = device.backend.row_gates(state.spec.rms_eps)
    device.residual = _residual(state.spec, device)
    has_states, has_ids = state.spec.state_bytes > 0, state.spec.looks_up_experts(device.layers)
    slices = slice_sizes_of((*state.mixers, *state.compressed)[0], has_states=has_states)
    slices = slices if options.slices is None else options.slices
    if state.overlaps:
        slices = slices.within(overlap_tokens(state.spec.routing))
    short = replace(slices, long_from=None)
    unplanned: dict[Mixer, LayerKind[Any, Any]] = {
        mixer: _recurrent_kind(mixer, recurrence) for mixer, recurrence in device.recurrences.items()
    }
    for mixer, compression in device.compressions.items():
        compression.num_saturated = device.pointwise.num_saturated
        unplanned[mixer] = CompressedAttention(mixer, device.pointwise, compression)

    def layers(attends: Sequence[Attention], expanded: ExpandedAttention | DividedHeads | None) -> AttentionLayers:
        kinds: dict[Mixer, LayerKind[Any, Any]] = {
            mixer: _kind(mixer, own, attend, expanded)
            for mixer, own, attend in zip(state.mixers, pointwise, attends, strict=True)
        }
        kinds |= unplanned
        own_slices = short if expanded is None else slices
        of_layer = [kinds[mixer] for mixer in state.layer_mixers]
        return AttentionLayers(of_layer, own_slices, has_states=has_states, has_ids=has_ids)

    device.attention = layers(device.attends[0], None)

    def prefill_attention(expanded: ExpandedAttention | DividedHeads | None) -> AttentionLayers:
        return layers(device.attends[1], expanded)

    def use_expanded(expanded: ExpandedAttention) -> None:
        device.expanded = expanded
        if device.heads is None:
            device.loaded.prefill_attention = prefill_attention(expanded)
        else:  # other devices use it, too
            device.heads.attention = expanded

    device.make_prefill_attention = prefill_attention
    device.late = LateKernels()
    with state.times.phase("kernels"):
        for index, late in enumerate(device.late_attention):
            if late is not None:
                lanes = [attends[index] for attends in device.attends]
                late.use_in(lanes, use_expanded, device.pointwise.num_saturated, slices.long_tokens, device.late)
    device.expanded = None
    if state.expanded_sizes is not None:
        with state.times.phase("kernels"):
            kernels = device.backend.expanded_kernels(state.expanded_sizes, device.pointwise.num_saturated, state.off)
        if kernels is not None:
            device.expanded = ExpandedAttention(state.expanded_sizes, kernels, slices.long_tokens)


def _residual(spec: ModelSpec, device: DeviceState) -> Residual:
    stream = spec.stream
    if stream is None:
        return PlainResidual(device.pointwise)
    if isinstance(stream, GatedStreamSpec):
        return GatedResidual(stream, device.gates)
    mixer = device.backend.stream_mixer(stream, spec.rms_eps)
    return MixedResidual(stream, mixer, device.pointwise, spec.rms_eps)


def _pointwise_by_mixer(state: LoadState, backend: Backend) -> list[Pointwise]:
    """Mixers with the same rotation and scale share one, and all share the count of large numbers."""
    made: dict[tuple[RopeSpec, float], Pointwise] = {}
    for mixer in state.mixers:
        key = mixer.rope, softmax_scale(mixer)
        if key not in made:
            rope = _rope_table(state, mixer)
            made[key] = backend.pointwise(state.spec.rms_eps, rope, key[1], state.options.kv_dtype)
            made[key].num_saturated = next(iter(made.values())).num_saturated
    return [made[mixer.rope, softmax_scale(mixer)] for mixer in state.mixers]


def _without_rotation(state: LoadState, backend: Backend) -> Pointwise:
    """The operations of a model whose attention rotates by itself."""
    return backend.pointwise(state.spec.rms_eps, unrotated(0), 1.0, state.options.kv_dtype)


def _rope_table(state: LoadState, mixer: DeviceAttention) -> RopeTable:
    if isinstance(mixer, LatentSpec) and not mixer.rotates:
        return unrotated(mixer.rope.dim)
    return build_rope_table(mixer.rope, state.num_positions, state.weights.rope_factors)


def _attention(state: LoadState, backend: Backend, mixer: DeviceAttention, sizes: Sizes) -> Attention:
    """Attention with kernels that need no compilation in advance."""
    own = mixer.index
    try:
        if own is None:
            return backend.attention(sizes)
        given = own.num_heads, own.key_dim, own.top_k, sizes.block_tokens, own.pool
        index = IndexSizes(*given, has_weights=own.has_weights)
        choose, attend = backend.sparse_attention(index, sizes, state.options.kv_dtype)
        is_shared = not all(choice.has_indexer for choice in state.spec.choices)
        return SparseAttention(choose, attend, is_shared=is_shared)
    except ValueError as error:
        raise ModelError(state.gguf_model.path, str(error)) from error


def _recurrences(state: LoadState, backend: Backend) -> dict[RecurrentMixer, Recurrence]:
    try:
        return {
            mixer: backend.recurrence(mixer, state.spec.rms_eps)
            for mixer in dict.fromkeys(state.layer_mixers)
            if isinstance(mixer, RecurrentMixer)
        }
    except ValueError as error:
        raise ModelError(state.gguf_model.path, str(error)) from error


def _compressions(state: LoadState, backend: Backend) -> dict[CompressedSpec, Compression]:
    """Mixers with the same rotation share its tables."""
    rotations: dict[RopeSpec, Rotation] = {}
    for rope in dict.fromkeys(mixer.rope for mixer in state.compressed):
        table = build_rope_table(rope, state.num_positions)
        rotations[rope] = Rotation(*(torch.from_numpy(each).to(backend.device) for each in (table.cos, table.sin)))
    options, rms_eps = state.options, state.spec.rms_eps
    try:
        return {
            mixer: backend.compression(mixer, options.block_tokens, rms_eps, rotations[mixer.rope], options.kv_dtype)
            for mixer in state.compressed
        }
    except ValueError as error:
        raise ModelError(state.gguf_model.path, str(error)) from error


def _sizes(mixer: DeviceAttention, block_tokens: int, *, is_short: bool) -> Sizes:
    scale = softmax_scale(mixer)
    if isinstance(mixer, LatentSpec):
        return LatentSizes(mixer.num_heads, mixer.kv_lora_rank, mixer.rope.dim, scale, block_tokens, is_short)
    return GroupedSizes(
        mixer.num_heads,
        mixer.num_kv_heads,
        mixer.head_dim,
        mixer.v_dim,
        scale,
        block_tokens,
        mixer.window,
        SINKS in mixer.options,
        is_short,
    )


def _expanded_sizes(mixer: DeviceAttention, of: Sizes) -> ExpandedSizes | None:
    """The sizes of attention outside the latent space; None if attention has no latent space or reads only selected
    positions."""
    if not isinstance(of, LatentSizes) or not isinstance(mixer, LatentSpec) or mixer.index is not None:
        return None
    return ExpandedSizes(of.num_heads, of.rank, mixer.nope_dim, of.rope_dim, mixer.v_dim, of.scale, of.block_tokens)


def _recurrent_kind(mixer: RecurrentMixer, recurrence: Recurrence) -> LayerKind[Any, Any]:
    return KimiDeltaLayer(recurrence) if isinstance(mixer, KimiDeltaSpec) else DeltaNetLayer(mixer, recurrence)


def _kind(
    mixer: DeviceAttention, pointwise: Pointwise, attend: Attention, expanded: ExpandedAttention | DividedHeads | None
) -> LayerKind[Any, Any]:
    """`expanded`: for long slices of latent attention."""
    if isinstance(mixer, LatentSpec):
        return LatentAttention(mixer, pointwise, attend, expanded)
    return GroupedAttention(mixer, pointwise, attend)

"""The attention of all layers: its kernels, chosen before weights are loaded, and its layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ballast.model.hybrid.attention.attention import Attention
from ballast.model.hybrid.attention.expanded import ExpandedAttention, ExpandedSizes, PlainExpandedKernels
from ballast.model.hybrid.attention.sizes import GroupedSizes, LatentSizes, Sizes
from ballast.model.hybrid.compiling.late_kernels import LateKernels
from ballast.model.hybrid.layers.attention_layer import AttentionKind, AttentionLayer
from ballast.model.hybrid.layers.grouped_attention import GroupedAttention
from ballast.model.hybrid.layers.latent_attention import LatentAttention
from ballast.model.hybrid.load_stages import kernels
from ballast.model.hybrid.load_stages.stage import Report
from ballast.model.hybrid.load_stages.state import LoadState
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.slices import slice_sizes_of
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.layer import Mixer
from ballast.model.rope import build_rope_table, softmax_scale


def choose_kernels(state: LoadState, report: Report) -> None:
    """Choose the kernels of attention. Those that take minutes to compile begin to compile."""
    options, mixer = state.options, state.mixer
    sizes = state.sizes = _sizes(mixer, options.block_tokens)
    with state.times.phase("kernels"):
        state.attends = kernels.attentions(state.gguf_model, state.spec, sizes, options.kv_dtype, state.device)
        state.expanded_sizes = _expanded_sizes(mixer, sizes)
        state.flashinfer = kernels.late_flashinfer(mixer, sizes, state.expanded_sizes, state.device, state.off)
    longest = min(options.max_step_tokens, state.num_positions)
    state.expert_sizes, state.step_sizes = kernels.warmup_sizes(
        state.device, state.spec, options.max_step_tokens, longest
    )


def make_layers(state: LoadState, report: Report) -> None:
    """Make the attention of both lanes. Kernels of long prompts that are still compiled are used later."""
    options, mixer = state.options, state.mixer
    rope = build_rope_table(mixer.rope, state.num_positions)
    pointwise = state.pointwise = kernels.pointwise(state.spec.rms_eps, mixer, rope, options.kv_dtype, state.device)
    # Before anything on the CPU is timed: until now a compiler may have run. One that still runs leaves it the CPUs.
    if state.ahead is not None:
        with state.times.phase("pinned"):
            state.ahead.wait()
    slices = slice_sizes_of(mixer) if options.slices is None else options.slices
    short = replace(slices, long_from=None)
    state.attention = AttentionLayer(_kind(mixer, pointwise, state.attends[0], None), short)

    def prefill_attention(expanded: ExpandedAttention | None) -> AttentionLayer[Any]:
        cuts = short if expanded is None else slices
        return AttentionLayer(_kind(mixer, pointwise, state.attends[1], expanded), cuts)

    def use_expanded(expanded: ExpandedAttention) -> None:
        state.model.set_prefill_attention(prefill_attention(expanded))

    state.make_prefill_attention = prefill_attention
    state.late = LateKernels()
    if state.flashinfer is not None:
        with state.times.phase("kernels"):
            state.flashinfer.use_in(
                state.attends, use_expanded, pointwise.num_saturated, slices.long_tokens, state.late
            )
    state.expanded = None
    if not state.on_gpu and state.expanded_sizes is not None:
        plain_kernels = PlainExpandedKernels(state.expanded_sizes, pointwise.num_saturated)
        state.expanded = ExpandedAttention(state.expanded_sizes, plain_kernels, slices.long_tokens)


def _sizes(mixer: Mixer, block_tokens: int) -> Sizes:
    scale = softmax_scale(mixer)
    if isinstance(mixer, LatentSpec):
        return LatentSizes(mixer.num_heads, mixer.kv_lora_rank, mixer.rope.dim, scale, block_tokens)
    return GroupedSizes(mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, mixer.v_dim, scale, block_tokens)


def _expanded_sizes(mixer: Mixer, of: Sizes) -> ExpandedSizes | None:
    """The sizes of attention outside the latent space; None if attention has no latent space or sees chosen positions
    alone."""
    if not isinstance(of, LatentSizes) or not isinstance(mixer, LatentSpec) or mixer.index is not None:
        return None
    return ExpandedSizes(of.num_heads, of.rank, mixer.nope_dim, of.rope_dim, mixer.v_dim, of.scale, of.block_tokens)


def _kind(
    mixer: Mixer, pointwise: Pointwise, attend: Attention, expanded: ExpandedAttention | None
) -> AttentionKind[Any]:
    """`expanded`: for long slices of latent attention."""
    if isinstance(mixer, LatentSpec):
        return LatentAttention(mixer, pointwise, attend, expanded)
    return GroupedAttention(mixer, pointwise, attend)

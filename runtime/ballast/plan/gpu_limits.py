"""Checks before loading whether a GPU can compute a model."""

from __future__ import annotations

from ballast.model.hybrid.common_mixer import common_mixer
from ballast.model.hybrid.sparse.sizes import MOST_CHOSEN
from ballast.model.layers.grouped import GATE, OUTPUT_BIAS, SINKS, GroupedSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.layer import LayerSpec
from ballast.model.spec import ModelSpec


def why_not_on_gpu(spec: ModelSpec) -> str | None:
    """Why a GPU cannot compute the layers; None if it can."""
    if any(map(_is_for_cpu, spec.layers)):
        return (
            "its attention has windows, sinks, a bias of the output, scaled values or fused matrices, or its experts "
            "have biases or a clamped unit, which a GPU does not compute yet; the CPU computes them"
        )
    if any(map(_is_gated_or_limited, spec.layers)):
        return (
            "its attention has gates or factors of frequencies, or its shared experts or dense layers have a clamped "
            "unit, which a GPU does not compute yet; the CPU computes them"
        )
    mixer = common_mixer(spec)
    if mixer is None:
        return "its layers have different kinds of attention, and a GPU supports one kind; the CPU supports all"
    if not isinstance(mixer, LatentSpec) or mixer.index is None or mixer.index.top_k <= MOST_CHOSEN:
        return None
    return (
        f"a token attends to {mixer.index.top_k} positions, and kernels on a GPU select at most {MOST_CHOSEN}; "
        "the CPU has no limit"
    )


def _is_gated_or_limited(layer: LayerSpec) -> bool:
    mixer, feed_forward = layer.mixer, layer.feed_forward
    unit = feed_forward.unit if layer.experts is None else layer.experts.shared_unit
    is_gated = isinstance(mixer, GroupedSpec) and GATE in mixer.options
    return unit is not None or mixer.rope.has_factors or is_gated


def _is_for_cpu(layer: LayerSpec) -> bool:
    """Whether only the CPU computes this layer."""
    mixer, experts = layer.mixer, layer.experts
    if experts is not None and (experts.has_biases or experts.unit is not None):
        return True
    if not isinstance(mixer, GroupedSpec):
        return False
    has_own = mixer.window is not None or mixer.value_scale != 1 or mixer.fuses_qkv
    return has_own or bool(mixer.options & {OUTPUT_BIAS, SINKS})

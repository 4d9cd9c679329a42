"""Checks before loading whether a GPU can compute a model."""

from __future__ import annotations

from collections.abc import Iterator

from ballast.model.hybrid.common_mixer import common_mixer
from ballast.model.hybrid.sparse.sizes import MAX_CHOSEN
from ballast.model.layers.grouped import GATE, OUTPUT_BIAS, SINKS, GroupedSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.layer import LayerSpec
from ballast.model.spec import ModelSpec


def why_not_on_gpu(spec: ModelSpec) -> str | None:
    """Why a GPU cannot compute the layers; None if it can."""
    if features := list(dict.fromkeys(feature for layer in spec.layers for feature in _only_on_cpu(layer))):
        return f"only the CPU computes its {', its '.join(features)}"
    mixer = common_mixer(spec)
    if mixer is None:
        return "its layers have different kinds of attention, and a GPU supports one kind; the CPU supports all"
    if not isinstance(mixer, LatentSpec) or mixer.index is None or mixer.index.top_k <= MAX_CHOSEN:
        return None
    return (
        f"a token attends to {mixer.index.top_k} positions, and kernels on a GPU select at most {MAX_CHOSEN}; "
        "the CPU has no limit"
    )


def _only_on_cpu(layer: LayerSpec) -> Iterator[str]:
    """What a GPU does not compute in a layer, in words."""
    mixer, experts = layer.mixer, layer.experts
    if isinstance(mixer, GroupedSpec):
        features = {
            "attention windows": mixer.window is not None,
            "attention sinks": SINKS in mixer.options,
            "gates of heads": GATE in mixer.options,
            "bias of the attention's output": OUTPUT_BIAS in mixer.options,
            "scaled values": mixer.value_scale != 1,
            "fused queries, keys and values": mixer.fuses_qkv,
        }
        yield from (feature for feature, is_there in features.items() if is_there)
    if mixer.rope.has_factors:
        yield "factors of rotary frequencies"
    if experts is not None and experts.has_biases:
        yield "biases of experts"
    if experts is not None and experts.unit is not None:
        yield "clamped units of experts"
    if (layer.feed_forward.unit if experts is None else experts.shared_unit) is not None:
        yield "clamped units of dense layers or shared experts"

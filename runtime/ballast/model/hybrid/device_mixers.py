"""The mixers of a model as a GPU prepares steps for them: once per mixer, for all layers that have it."""

from __future__ import annotations

from dataclasses import replace

from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.layer import AttentionMixer
from ballast.model.spec import ModelSpec


def device_mixers(spec: ModelSpec) -> tuple[AttentionMixer, ...] | None:
    """The mixer of each layer: any mixers of grouped-query attention, or one of latent attention, with an indexer if
    any layer has one. None if a GPU does not support the combination."""
    mixers = [layer.mixer for layer in spec.layers]
    grouped = tuple(mixer for mixer in mixers if isinstance(mixer, GroupedSpec))
    latent = tuple(_with_indexer(mixer) for mixer in mixers if isinstance(mixer, LatentSpec))
    if len(grouped) == spec.num_layers:
        return grouped
    return latent if len(latent) == spec.num_layers and len(set(latent)) == 1 else None


def _with_indexer(mixer: LatentSpec) -> LatentSpec:
    return mixer if mixer.index is None else replace(mixer, index=replace(mixer.index, has_indexer=True))

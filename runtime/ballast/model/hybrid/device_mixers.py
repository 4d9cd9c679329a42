"""The mixers of a model as a GPU prepares steps for them: once per mixer, for all layers that have it."""

from __future__ import annotations

from dataclasses import replace

from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.layer import Mixer
from ballast.model.spec import ModelSpec


def device_mixers(spec: ModelSpec) -> tuple[Mixer, ...] | None:
    """The mixer of each layer: any mixers of grouped-query attention, or one of latent attention, with an indexer if
    any layer has one. None if a GPU does not support the combination."""
    if all(isinstance(layer.mixer, GroupedSpec) for layer in spec.layers):
        return tuple(layer.mixer for layer in spec.layers)
    mixers = tuple(_with_indexer(layer.mixer) for layer in spec.layers)
    return mixers if len(set(mixers)) == 1 else None


def _with_indexer(mixer: Mixer) -> Mixer:
    if isinstance(mixer, LatentSpec) and mixer.index is not None:
        return replace(mixer, index=replace(mixer.index, has_indexer=True))
    return mixer

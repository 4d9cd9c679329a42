"""The mixers of a model as a GPU prepares steps for them: once per mixer, for all layers that have it."""

from __future__ import annotations

from dataclasses import replace

from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.layer import Mixer, RecurrentMixer
from ballast.model.spec import ModelSpec


def device_mixers(spec: ModelSpec) -> tuple[Mixer, ...] | None:
    """The mixer of each layer, also recurrent ones: any mixers of grouped-query attention, any of compressed entries,
    or one of latent attention, with an indexer if any layer has one. None if a GPU does not support the combination."""
    mixers = tuple(_with_indexer(layer.mixer) for layer in spec.layers)
    attentions = {mixer for mixer in mixers if not isinstance(mixer, RecurrentMixer)}
    if any(all(isinstance(mixer, kind) for mixer in attentions) for kind in (GroupedSpec, CompressedSpec)):
        return mixers if attentions else None
    return mixers if len(attentions) == 1 else None


def _with_indexer(mixer: Mixer) -> Mixer:
    if not isinstance(mixer, LatentSpec) or mixer.index is None:
        return mixer
    return replace(mixer, index=replace(mixer.index, has_indexer=True))

"""The mixers of a model as a GPU prepares steps for them: once per mixer, for all layers that have it."""

from __future__ import annotations

from dataclasses import replace

from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.layer import AttentionMixer
from ballast.model.spec import ModelSpec

DeviceMixer = AttentionMixer | DeltaNetSpec
"""What a GPU computes."""


def device_mixers(spec: ModelSpec) -> tuple[DeviceMixer, ...] | None:
    """The mixer of each layer: any mixers of grouped-query attention, also with recurrent layers, or one of latent
    attention, with an indexer if any layer has one. None if a GPU does not support the combination."""
    mixers = tuple(_with_indexer(layer.mixer) for layer in spec.layers if not isinstance(layer.mixer, KimiDeltaSpec))
    attentions = {mixer for mixer in mixers if not isinstance(mixer, DeltaNetSpec)}
    if len(mixers) < spec.num_layers or not attentions:
        return None
    is_supported = len(set(mixers)) == 1 or all(isinstance(mixer, GroupedSpec) for mixer in attentions)
    return mixers if is_supported else None


def _with_indexer(mixer: DeviceMixer) -> DeviceMixer:
    if not isinstance(mixer, LatentSpec) or mixer.index is None:
        return mixer
    return replace(mixer, index=replace(mixer.index, has_indexer=True))

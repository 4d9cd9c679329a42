"""The mixer that all layers of a model share. A GPU needs one, because it prepares a step once for all layers."""

from __future__ import annotations

from dataclasses import replace

from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.layer import AttentionMixer, Mixer
from ballast.model.spec import ModelSpec


def common_mixer(spec: ModelSpec) -> AttentionMixer | None:
    """The mixer, with an indexer if any layer has one. None if layers differ in any other respect, or
    have no attention."""
    first, *others = dict.fromkeys(map(_with_indexer, spec.mixers))
    return None if others or isinstance(first, DeltaNetSpec) else first


def _with_indexer(mixer: Mixer) -> Mixer:
    if isinstance(mixer, LatentSpec) and mixer.index is not None:
        return replace(mixer, index=replace(mixer.index, has_indexer=True))
    return mixer

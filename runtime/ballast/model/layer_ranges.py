"""Which ranges of layers devices can compute one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from ballast.model.layers.latent import LatentSpec
from ballast.model.spec import ModelSpec


def may_begin(spec: ModelSpec, layer: int) -> bool:
    """Whether a device can begin with a layer: its positions must not be selected by the layer below."""
    mixer = spec.layers[layer].mixer
    return not isinstance(mixer, LatentSpec) or mixer.index is None or mixer.has_indexer


def check_ranges(spec: ModelSpec, ranges: Sequence[range]) -> None:
    """Raises ValueError if devices with these ranges of layers cannot compute the model one after the other."""
    layers = [layer for own in ranges for layer in own]
    if layers != list(range(spec.num_layers)) or not all(ranges):
        raise ValueError(
            f"devices have layers {[list(own) for own in ranges]}; expected each of {spec.num_layers} once, in order"
        )
    for own in ranges[1:]:
        if not may_begin(spec, own[0]):
            raise ValueError(
                f"layer {own[0]} uses the positions that a layer below selects; a device cannot begin with it"
            )

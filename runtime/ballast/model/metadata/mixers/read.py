"""Reads the mixer of each layer: attention, or linear attention with recurrent state."""

from __future__ import annotations

from ballast.families.family import Dimensions
from ballast.model.layers.layer import Mixer
from ballast.model.layers.positions import RopeSpec
from ballast.model.metadata.keys import Keys
from ballast.model.metadata.layers import Layers, Widths
from ballast.model.metadata.mixers.compressed import read_compressed
from ballast.model.metadata.mixers.grouped import read_grouped
from ballast.model.metadata.mixers.latent import latent_dims, read_latent
from ballast.model.metadata.mixers.recurrent import read_delta_net, read_kimi_delta, recurrent_layers
from ballast.model.metadata.mixers.value_scale import read_value_scale
from ballast.model.metadata.settings import Settings


def dimensions_of(keys: Keys, layers: Layers, widths: Widths) -> Dimensions | None:
    """The dimensions that identify known models; None if none are known by them."""
    if keys.architecture.attention != "latent":
        return None
    first = recurrent_layers(keys, layers.num_layers).index(False)
    return Dimensions(**latent_dims(keys, first)._asdict(), **widths._asdict())


def read_mixers(settings: Settings, layers: Layers, widths: Widths, rope: RopeSpec) -> tuple[Mixer, ...]:
    """Each layer's, of the architecture's kind. `rope`: without its dimensions. Raises ModelError for a key that is
    missing or senseless."""
    keys = settings.keys
    if keys.architecture.attention == "compressed":
        return read_compressed(keys, layers.num_layers, widths, rope)
    is_recurrent = recurrent_layers(keys, layers.num_layers)
    if keys.architecture.attention == "latent":
        latent = read_latent(keys, layers, widths, rope, is_recurrent)
        if not any(is_recurrent):
            return tuple(latent)
        kimi_delta = read_kimi_delta(keys, is_recurrent, widths.num_heads)
        return tuple(kimi_delta if kind else mixer for kind, mixer in zip(is_recurrent, latent, strict=True))
    value_scale = read_value_scale(settings, widths) if keys.architecture.scales_values else 1.0
    mixers: dict[int, Mixer] = dict(read_grouped(keys, widths, rope, value_scale, is_recurrent))
    if any(is_recurrent):
        mixers = dict.fromkeys(range(layers.num_layers), read_delta_net(keys, is_recurrent)) | mixers
    return tuple(mixers[layer] for layer in range(layers.num_layers))

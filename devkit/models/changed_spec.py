"""Specs for tests and tools, made by changing all layers of another spec."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from ballast.model.layers.feed_forward import DenseSpec, ExpertsSpec, FeedForward, RoutingSpec
from ballast.model.layers.latent import IndexSpec, LatentSpec
from ballast.model.layers.layer import LayerSpec, Mixer, RecurrentMixer
from ballast.model.layers.positions import RopeSpec
from ballast.model.spec import ModelSpec

_MODEL, _ROUTING, _EXPERTS, _ROPE = (
    frozenset(field.name for field in fields(kind)) for kind in (ModelSpec, RoutingSpec, ExpertsSpec, RopeSpec)
)


def changed(
    spec: ModelSpec,
    *,
    num_layers: int | None = None,
    num_dense_layers: int | None = None,
    dense_width: int | None = None,
    mixer: Mixer | None = None,
    index: IndexSpec | None = None,
    indexed_layers: Collection[int] | None = None,
    **changes: Any,
) -> ModelSpec:
    """`spec` with changes in all of its layers, by the names of the fields that have them: of `ModelSpec`,
    `RoutingSpec`, `ExpertsSpec`, `RopeSpec` and the mixer. `num_layers` leaves out the last layers, or repeats the
    last. `mixer` replaces that of all layers, `index` their choice of positions; `indexed_layers` have an indexer.
    Recurrent layers keep their mixer."""
    count = num_layers or spec.num_layers
    layers = [spec.layers[min(layer, spec.num_layers - 1)] for layer in range(count)]
    of_model = {name: changes.pop(name) for name in _MODEL & changes.keys()}
    of_routing = {name: changes.pop(name) for name in _ROUTING & changes.keys()}
    of_experts = {name: changes.pop(name) for name in _EXPERTS & changes.keys()}
    of_rope = {name: changes.pop(name) for name in _ROPE & changes.keys()}
    experts = replace(experts_of(spec), **of_experts)
    experts = replace(experts, routing=replace(experts.routing, **of_routing))
    num_dense = spec.routed_layers[0] if num_dense_layers is None else num_dense_layers
    units = [layer.feed_forward.unit for layer in spec.layers if isinstance(layer.feed_forward, DenseSpec)]
    dense = DenseSpec(spec.widest_dense if dense_width is None else dense_width, *units[:1])
    mixers = [_mixer(mixer or layer.mixer, of_rope, changes) for layer in layers]
    if index is not None:
        mixers = [replace(latent_of(each), index=index) for each in mixers]
    if indexed_layers is not None:
        mixers = [_indexed(each, layer in indexed_layers) for layer, each in enumerate(mixers)]
    num_rows = of_model.get("vocab_size", spec.vocab_size)
    routed = [replace(experts, table_rows=num_rows if _has_table(layer) else 0) for layer in layers[num_dense:]]
    feed_forwards: list[FeedForward] = [*[dense] * num_dense, *routed]
    streams, ngrams = [layer.stream for layer in layers], [layer.ngram for layer in layers]
    return replace(spec, layers=tuple(map(LayerSpec, mixers, feed_forwards, streams, ngrams)), **of_model)


def _has_table(layer: LayerSpec) -> bool:
    """Whether a table gives the experts of a token's id."""
    return layer.experts is not None and layer.experts.table_rows > 0


def _mixer(mixer: Mixer, of_rope: Mapping[str, Any], changes: Mapping[str, Any]) -> Mixer:
    if isinstance(mixer, RecurrentMixer):
        return mixer
    return replace(mixer, rope=replace(mixer.rope, **of_rope), **changes)


def _indexed(mixer: Mixer, has_indexer: bool) -> Mixer:
    latent = latent_of(mixer)
    assert latent.index is not None
    return replace(latent, index=replace(latent.index, has_indexer=has_indexer))


def experts_of(spec: ModelSpec) -> ExpertsSpec:
    """Of the first routed layer."""
    experts = spec.layers[spec.routed_layers[0]].experts
    assert experts is not None
    return experts


def latent_of(model: ModelSpec | Mixer) -> LatentSpec:
    """The mixer, or that of the first layer, which is latent."""
    mixer = model.layers[0].mixer if isinstance(model, ModelSpec) else model
    assert isinstance(mixer, LatentSpec)
    return mixer

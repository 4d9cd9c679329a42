"""The layers that one GPU computes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.layer import DeviceAttention
from ballast.model.layers.plane import Plane, State
from ballast.model.spec import ModelSpec

_LAYER = re.compile(r"model\.layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class DeviceLayers:
    """A range of a model's layers. What follows the last layer of the model belongs to that layer."""

    spec: ModelSpec
    layers: range

    def has_module(self, module: str) -> bool:
        """Whether a module belongs to these layers."""
        return self.layer_of(self.spec, module) in self.layers

    @staticmethod
    def layer_of(spec: ModelSpec, module: str) -> int:
        """The layer that a module belongs to."""
        found = _LAYER.match(module)
        return spec.num_layers - 1 if found is None else int(found[1])

    @property
    def planes(self) -> tuple[tuple[Plane, ...], ...]:
        """What each layer keeps of a token."""
        return self.spec.planes[self.layers.start : self.layers.stop]

    @property
    def window(self) -> int | None:
        """The widest window of the model; see `ModelSpec.window`."""
        return self.spec.window

    @property
    def states(self) -> tuple[tuple[State, ...], ...]:
        """What each layer keeps of a sequence."""
        return self.spec.states[self.layers.start : self.layers.stop]

    @property
    def expert_biases(self) -> int:
        """Numbers in the biases of the layers' routed experts."""
        experts = [self.spec.layers[layer].experts for layer in self.layers]
        return sum(each.num_biases(self.spec.hidden) for each in experts if each is not None)

    @property
    def num_choices(self) -> int:
        """Number of layers that select positions or entries."""
        mixers = [self.spec.layers[layer].mixer for layer in self.layers]
        indexes = [mixer.index for mixer in mixers if isinstance(mixer, DeviceAttention)]
        of_positions = sum(index is not None and index.has_indexer for index in indexes)
        return of_positions + sum(isinstance(mixer, CompressedSpec) and mixer.index is not None for mixer in mixers)

    @property
    def has_ngrams(self) -> bool:
        """Whether a layer has an n-gram embedding."""
        return any(self.spec.layers[layer].ngram is not None for layer in self.layers)

    @property
    def num_compressed(self) -> int:
        """Number of layers that read a window and compressed entries."""
        return sum(isinstance(self.spec.layers[layer].mixer, CompressedSpec) for layer in self.layers)

    @property
    def rotation_width(self) -> int:
        """Floats per position of the tables that attention to compressed entries has."""
        return sum(
            {mixer.rope: mixer.rope.dim for mixer in self.spec.mixers if isinstance(mixer, CompressedSpec)}.values()
        )

    @property
    def routed(self) -> list[int]:
        """The indices of the layers with routed experts, among those of the model."""
        return [index for index, layer in enumerate(self.spec.routed_layers) if layer in self.layers]

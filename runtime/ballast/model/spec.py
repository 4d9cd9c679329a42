"""The dimensions and rules of a model. All come from the file's metadata, none from a constant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ballast.families.architecture import Architecture
from ballast.model.layers.feed_forward import RoutingSpec
from ballast.model.layers.grouped import BlockIndexSpec
from ballast.model.layers.latent import IndexSpec, LatentSpec
from ballast.model.layers.layer import AttentionMixer, DeviceAttention, LayerSpec, Mixer, RecurrentMixer
from ballast.model.layers.ngram import NgramSpec
from ballast.model.layers.plane import Plane, State
from ballast.model.layers.positions import RopeSpec
from ballast.model.layers.stream import GatedStreamSpec, StreamSpec
from ballast.model.layers.tensor import Tensor


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model. Its layers may differ in their mixers and in the width of their feed-forward; they choose experts by
    one rule."""

    name: str
    architecture: Architecture
    vocab_size: int
    """Rows of the embedding; may exceed the tokenizer's tokens."""
    context_length: int
    hidden: int
    layers: tuple[LayerSpec, ...]
    """Ordinary transformer layers; a multi-token-prediction block at the end is not counted."""
    rms_eps: float
    tied_output: bool

    def __post_init__(self) -> None:
        if len({layer.experts.routing for layer in self.layers if layer.experts is not None}) != 1:
            raise ValueError(
                f"{self.name} has several rules for choosing experts; expected the same rule in all routed layers"
            )

    @property
    def stream(self) -> StreamSpec | GatedStreamSpec | None:
        """The hyper-connections, which all layers have or none."""
        return self.layers[0].stream

    @property
    def stream_end(self) -> tuple[Tensor, ...]:
        """The tensors of the weights by which the rows of the residual stream are added up after the last layer."""
        return self.stream.end_tensors(self.hidden) if isinstance(self.stream, StreamSpec) else ()

    @property
    def ngram(self) -> NgramSpec | None:
        """The n-gram embedding, which one layer has at most."""
        return next((layer.ngram for layer in self.layers if layer.ngram is not None), None)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def routed_layers(self) -> tuple[int, ...]:
        """Layers that have routed experts, ascending. What is kept by routed layer is in this order."""
        return tuple(index for index, layer in enumerate(self.layers) if layer.experts is not None)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The different mixers, in the order of their first layers."""
        return tuple(dict.fromkeys(layer.mixer for layer in self.layers))

    @property
    def attentions(self) -> tuple[AttentionMixer, ...]:
        """The mixers that read earlier tokens."""
        return tuple(mixer for mixer in self.mixers if not isinstance(mixer, RecurrentMixer))

    @property
    def routing(self) -> RoutingSpec:
        """How routed layers choose experts."""
        [routing] = {layer.experts.routing for layer in self.layers if layer.experts is not None}
        return routing

    def looks_up_experts(self, layers: Iterable[int]) -> bool:
        """Whether tables give the experts of some of these layers, by the id of a token."""
        experts = [self.layers[layer].experts for layer in layers]
        return any(each is not None and each.table_rows > 0 for each in experts)

    @property
    def widest_dense(self) -> int:
        """Width of the widest dense feed-forward; 0 without any."""
        return max((layer.feed_forward.width for layer in self.layers if layer.experts is None), default=0)

    @property
    def widest_expert(self) -> int:
        """Width of the widest routed expert."""
        return max(layer.experts.width for layer in self.layers if layer.experts is not None)

    @property
    def widest_shared(self) -> int:
        """Width of the widest shared experts, all of a layer together; 0 without any."""
        return max(layer.experts.shared_width for layer in self.layers if layer.experts is not None)

    @property
    def has_other_units(self) -> bool:
        """Whether routed experts have biases or compute something else than silu(g) · u."""
        experts = [layer.experts for layer in self.layers if layer.experts is not None]
        return any(each.has_biases or each.unit is not None for each in experts)

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """The different rotations of queries and keys, in the order of their first layers; empty if no position
        counts."""
        rotating = (mixer for mixer in self.attentions if not isinstance(mixer, LatentSpec) or mixer.rotates)
        return tuple(dict.fromkeys(mixer.rope for mixer in rotating))

    @property
    def rope(self) -> RopeSpec:
        """The rotation of the first layer with attention, which most models have in all layers. `ropes` lacks it if it
        is not used."""
        return self.attentions[0].rope

    @property
    def choices(self) -> tuple[IndexSpec | BlockIndexSpec, ...]:
        """The different ways to choose the positions that attention on a GPU sees; empty where it sees all."""
        attentions = [mixer for mixer in self.attentions if isinstance(mixer, DeviceAttention)]
        return tuple(dict.fromkeys(mixer.index for mixer in attentions if mixer.index is not None))

    @property
    def planes(self) -> tuple[tuple[Plane, ...], ...]:
        """By layer, what it keeps of a token."""
        return tuple(layer.mixer.planes for layer in self.layers)

    @property
    def states(self) -> tuple[tuple[State, ...], ...]:
        """By layer, what it keeps of a sequence."""
        return tuple(layer.states(self.hidden) for layer in self.layers)

    @property
    def state_bytes(self) -> int:
        """Bytes that are kept of a sequence, in all states of all layers; 0 without such layers."""
        return sum(state.num_bytes for states in self.states for state in states)

    @property
    def window(self) -> int | None:
        """Tokens of the widest window; None if all layers read all tokens, or if none does: then the pool's blocks are
        those of the windows, and no layer frees any."""
        windows = {plane.window for planes in self.planes for plane in planes}
        return max((window for window in windows if window is not None), default=None) if None in windows else None

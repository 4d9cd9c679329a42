"""A transformer layer: a mixer, which reads other tokens, and a feed-forward. A norm precedes each of them."""

from __future__ import annotations

from dataclasses import dataclass

from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.feed_forward import ExpertsSpec, FeedForward
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.ngram import NgramSpec
from ballast.model.layers.plane import State
from ballast.model.layers.stream import GatedStreamSpec, StreamSpec
from ballast.model.layers.tensor import Tensor, norm

DeviceAttention = LatentSpec | GroupedSpec
"""Attention that GPUs support as well."""

AttentionMixer = DeviceAttention | CompressedSpec
"""Mixers that read all earlier tokens, or a window of them, most of them by their positions."""

RecurrentMixer = DeltaNetSpec | KimiDeltaSpec
"""Mixers that keep a state of each sequence, and nothing of single tokens."""

Mixer = AttentionMixer | RecurrentMixer


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer of a model. Layers may differ."""

    mixer: Mixer
    feed_forward: FeedForward
    stream: StreamSpec | GatedStreamSpec | None = None
    """The hyper-connections around mixer and feed-forward; None: what they give is added to the residual stream."""
    ngram: NgramSpec | None = None
    """The n-gram embedding that is added to the stream before the mixer, which needs a gated stream."""

    @property
    def experts(self) -> ExpertsSpec | None:
        """The feed-forward if it has routed experts."""
        return self.feed_forward if isinstance(self.feed_forward, ExpertsSpec) else None

    def states(self, hidden: int) -> tuple[State, ...]:
        """The state of a sequence, of the same size for any length."""
        own = self.ngram and self.stream and self.ngram.states(self.stream.num_rows * hidden)
        return (*self.mixer.states, *(own or ()))

    def tensors(self, hidden: int, ffn_norm: str) -> tuple[Tensor, ...]:
        """All tensors of the layer. `ffn_norm`: the name in files of the norm before the feed-forward."""
        if isinstance(self.stream, GatedStreamSpec):
            return (
                *(self.ngram.tensors(hidden, self.stream.num_rows) if self.ngram else ()),
                *self.stream.tensors(hidden, "attention"),
                *self.mixer.tensors(hidden),
                *self.stream.tensors(hidden, "ffn"),
                *self.feed_forward.tensors(hidden),
            )
        return (
            norm("attention_norm", "attn_norm", hidden, "input_layernorm"),
            *self.mixer.tensors(hidden),
            norm("ffn_norm", ffn_norm, hidden, "post_attention_layernorm"),
            *self.feed_forward.tensors(hidden),
            *(self.stream.tensors(hidden, "attention") + self.stream.tensors(hidden, "ffn") if self.stream else ()),
        )

"""The shapes of the tiny models: one preset for each supported kind of model."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

from ballast.families.architecture import Gating, WindowRule
from ballast.model.layers.delta_net import MatrixLayout
from ballast.model.layers.feed_forward import ROUTER_BIAS
from ballast.model.layers.grouped import QK_NORM
from ballast.model.layers.ngram import NgramSpec
from ballast.model.layers.stream import GatedStreamSpec, StreamSpec
from ballast.tiny.tokenizer import Family


@dataclass(frozen=True, slots=True)
class TinyYarn:
    """YaRN with the keys of config.json. A GGUF only has `mscale_all_dim`; in every real model both are equal."""

    factor: float = 40.0
    original_context: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0
    is_plain: bool = False
    """Whether the GGUF has no log multiplier, and config.json no mscale."""
    has_betas: bool = True
    """Whether the GGUF has the betas."""
    attention_factor: float | None = None
    """The factor of cos and sin. None: it follows from the others."""


@dataclass(frozen=True, slots=True)
class TinyHeads:
    """Grouped-query attention, instead of latent attention."""

    num_kv_heads: int = 2
    head_dim: int = 128
    options: frozenset[str] = frozenset({QK_NORM})
    """As in `GroupedSpec`."""
    window: int | None = None
    """The window of the layers that have one. The architecture says which they are, or `windowed_layers`."""
    windowed_layers: tuple[int, ...] | None = None
    windowed_heads: int | None = None
    """Heads of queries in layers with a window; None: as many as in others."""
    windowed_kv_heads: int | None = None
    """Heads of keys and values in `windowed_layers`; None: as many as in others."""
    windowed_theta: float | None = None
    """The base of the frequencies in layers with a window; None: as in others."""
    windowed_rope_dim: int | None = None
    """Entries of a head that are rotated in layers with a window; None: as in others."""
    gates_entries: bool = False
    """As in `GroupedSpec`."""
    v_dim: int | None = None
    """Width of a head's value. None: that of its key."""
    value_scale: float = 1.0
    fuses_qkv: bool = False
    """Whether queries, keys and values have one tensor."""

    @property
    def value_dim(self) -> int:
        """Width of a head's value."""
        return self.v_dim or self.head_dim

    def has_window(self, layer: int, rule: WindowRule | None) -> bool:
        """`rule`: the architecture's, where the shape does not name the layers."""
        if self.windowed_layers is not None:
            return layer in self.windowed_layers
        return self.window is not None and rule is not None and rule.has_window(layer)

    def kv_heads(self, layer: int) -> int:
        """Heads of keys and values of a layer."""
        own = self.windowed_kv_heads if layer in (self.windowed_layers or ()) else None
        return own or self.num_kv_heads


@dataclass(frozen=True, slots=True)
class TinyIndex:
    """Sparse attention. With fewer heads, many scores would be exactly 0 and ties would decide."""

    num_heads: int = 16
    key_dim: int = 128
    top_k: int = 32
    shared_layers: tuple[int, ...] = ()
    """Layers that reuse the selection of the layer below."""
    pool: int = 1
    """As in `IndexSpec`."""


@dataclass(frozen=True, slots=True)
class TinyDeltaNet:
    """Gated DeltaNet in all layers but every `interval`-th. Three heads of values share one of keys, so that none of
    the ways to share them looks like another."""

    num_heads: int = 6
    num_key_heads: int = 2
    width: int = 64
    conv_taps: int = 4
    interval: int = 3
    product_layout: MatrixLayout = "split"
    """As in `DeltaNetSpec`."""
    beta_layout: MatrixLayout = "grouped"
    """As in `DeltaNetSpec`."""

    def has(self, layer: int) -> bool:
        """Whether a layer is one of Gated DeltaNet."""
        return (layer + 1) % self.interval != 0


@dataclass(frozen=True, slots=True)
class TinyKimiDelta:
    """Kimi Delta Attention in all layers but `attention_layers`, with as many heads."""

    attention_layers: tuple[int, ...]
    head_dim: int = 64
    conv_taps: int = 4
    lower_bound: float = 0.0
    """As in `KimiDeltaSpec`."""


@dataclass(frozen=True, slots=True)
class TinyCompressed:
    """Attention to windows and compressed entries, instead of latent attention."""

    ratios: tuple[int, ...]
    """As in `CompressedSpec`, by layer."""
    head_dim: int = 128
    window: int = 16
    output_groups: int = 2
    output_rank: int = 32
    theta: float = 160000.0
    """The base of the frequencies in layers with entries, which alone have YaRN."""
    num_hashed: int = 0
    """Layers that look up experts by the id of a token, the first ones."""


@dataclass(frozen=True, slots=True)
class TinyNgram:
    """The n-gram embedding, whose heads are as wide together as the model."""

    layer: int = 1
    most_tokens: int = 3
    heads_per_length: int = 4
    least_rows: int = 500
    """Heads have the next prime numbers of rows from here on."""
    conv_taps: int = 4

    @property
    def head_sizes(self) -> tuple[int, ...]:
        """Rows of each head."""
        sizes: list[int] = []
        for number in itertools.count(self.least_rows):
            if len(sizes) == (self.most_tokens - 1) * self.heads_per_length:
                break
            if all(number % divisor for divisor in range(2, math.isqrt(number) + 1)):
                sizes.append(number)
        return tuple(sizes)

    @property
    def head_offsets(self) -> tuple[int, ...]:
        """The first row of each head."""
        return tuple(itertools.accumulate(self.head_sizes[:-1], initial=0))

    @property
    def table_rows(self) -> int:
        """A multiple of 128, as in the published model."""
        return -(-sum(self.head_sizes) // 128) * 128

    def multipliers(self, vocab_size: int) -> tuple[int, ...]:
        """Odd numbers, almost as large as the products with tokens may be."""
        most = (2**63 - 1) // vocab_size
        return tuple((most // (index + 2) // 7919 * 7907) | 1 for index in range(self.most_tokens))

    def spec(self, row_width: int, vocab_size: int, end_id: int) -> NgramSpec:
        """The embedding with rows of this width, for a vocabulary whose texts end with `end_id`."""
        return NgramSpec(
            self.table_rows,
            row_width,
            self.multipliers(vocab_size),
            self.head_offsets,
            self.head_sizes,
            end_id,
            self.conv_taps,
        )


@dataclass(frozen=True, slots=True)
class TinyFactors:
    """The divisors of the frequencies in layers without a window, by Llama 3's rule."""

    factor: float
    original_context: int
    slow_rotations: float = 1.0
    """The frequencies of pairs with at most this many turns in the original context are divided by `factor`."""
    fast_rotations: float = 32.0
    """Pairs with at least this many turns keep their frequency."""


@dataclass(frozen=True, slots=True)
class TinyLimits:
    """Limits of the layers' units; 0: none."""

    experts: tuple[float, ...]
    shared: tuple[float, ...]
    """Of shared experts and dense layers."""


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Everything that defines a tiny model, except seed, layout and quantisation.

    The sizes of latents and heads are the real ones, since GPU kernels for attention are built for them.
    """

    name: str
    family: Family
    """Determines tokenizer, chat template and, for `deepseek2`, the transformers class."""
    gating: Gating
    num_layers: int = 4
    num_dense_layers: int = 1
    hidden: int = 256
    ffn_dim: int = 512
    num_heads: int = 4
    q_lora_rank: int | None = 256
    kv_lora_rank: int = 512
    nope_dim: int = 64
    rope_dim: int = 64
    v_dim: int = 64
    num_experts: int = 16
    num_experts_used: int = 4
    num_shared_experts: int = 1
    expert_dim: int = 256
    num_groups: int = 1
    """1: no groups; a V2 shape then uses greedy top-k, like V2-Lite."""
    num_groups_used: int = 1
    normalize_weights: bool = False
    weights_scale: float = 1.0
    rms_eps: float = 1e-6
    """transformers always normalises the latents with 1e-6, so it must have this value."""
    rope_theta: float = 10000.0
    yarn: TinyYarn | None = field(default_factory=TinyYarn)
    context: int | None = None
    """Positions that the file declares; None: those of YaRN, or 4096."""
    architecture: str = "deepseek2"
    """`general.architecture` of the file."""
    heads: TinyHeads | None = None
    """None: latent attention."""
    index: TinyIndex | None = None
    """None: every token attends to all earlier tokens."""
    query_beta: float = 0.0
    """Of the factor of queries by position, whose length is YaRN's original context."""
    delta_net: TinyDeltaNet | None = None
    """None: no layer is one of Gated DeltaNet."""
    kimi_delta: TinyKimiDelta | None = None
    """None: no layer is one of Kimi Delta Attention."""
    compressed: TinyCompressed | None = None
    """None: no layer has compressed entries."""
    stream: StreamSpec | GatedStreamSpec | None = None
    """The hyper-connections; None: none."""
    ngram: TinyNgram | None = None
    """None: no layer embeds n-grams."""
    factors: TinyFactors | None = None
    limits: TinyLimits | None = None
    router_bias_name: str = ROUTER_BIAS
    """How the file names the routers' biases."""
    counts_layers: bool = True
    """Whether the file has the numbers of dense layers and shared experts; otherwise these follow from its tensors and
    the width of the shared experts."""
    old_keys: bool = False
    """Omit keys that older conversions lack: group counts, YaRN's betas and, for softmax gating, its name and the
    norm."""

    @property
    def has_latents(self) -> bool:
        """Whether layers have latent attention, whose tensors have two layouts."""
        return self.heads is None and self.compressed is None

    @property
    def context_length(self) -> int:
        scaled = 4096 if self.yarn is None else int(self.yarn.factor * self.yarn.original_context)
        return self.context or scaled

"""The dimensions and rules of a model. All come from the file's metadata, none from a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ballast.families.architecture import Architecture, Gating


@dataclass(frozen=True, slots=True)
class YarnSpec:
    """YaRN context extension (arXiv 2309.00071) as DeepSeek uses it."""

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    """Multiplies cos and sin: mscale(factor, mscale) / mscale(factor, mscale_all_dim); 1 for V3 and R1."""
    mscale_all_dim: float
    """Softmax scale is multiplied by (0.1 · mscale_all_dim · ln factor + 1)². 0: no correction."""


class Plane(NamedTuple):
    """What a layer's cache holds of each token under one name."""

    name: str
    width: int
    """Numbers of a token. Their type is the pool's: float32 on a CPU."""


INDEX_KEYS = "index keys"
"""The plane of an indexer's keys."""


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """What chooses the positions that latent attention sees (the lightning indexer of DeepSeek-V3.2-Exp)."""

    num_heads: int
    key_dim: int
    """Width of a head's query and of a token's one key, whose first rope_dim entries are rotated."""
    top_k: int
    """Positions that a token attends to, at most."""
    pairs_apart: bool
    """Whether i and i + rope_dim / 2 are rotated together, else 2i and 2i + 1."""
    layers: tuple[bool, ...]
    """Whether a layer has an indexer. One that has none takes the choice of the nearest below that has one."""


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    mla_layout: Literal["joint", "split"]
    index: IndexSpec | None = None
    """None: every token attends to all before it."""

    @property
    def latent_dim(self) -> int:
        """Numbers of one token's KV in one layer: the normed latent and the rotated key."""
        return self.kv_lora_rank + self.rope_dim

    @property
    def query_dim(self) -> int:
        """Numbers of a head's query."""
        return self.nope_dim + self.rope_dim

    def planes_of(self, layer: int) -> tuple[Plane, ...]:
        """What a layer keeps of a token."""
        latent = Plane("latent", self.latent_dim)
        if self.index is None or not self.index.layers[layer]:
            return (latent,)
        return (latent, Plane(INDEX_KEYS, self.index.key_dim))


@dataclass(frozen=True, slots=True)
class GroupedSpec:
    """Grouped-query attention (arXiv 2305.13245): equal groups of query heads share a head of keys and values."""

    num_kv_heads: int
    head_dim: int
    """Width of a head's query and key."""
    v_dim: int
    rope_dim: int
    """Of a head, its first entries, of which i and i + rope_dim / 2 are rotated together."""
    qk_norm: bool
    """Whether each head's query and key are normed before they are rotated."""
    qkv_bias: bool

    @property
    def query_dim(self) -> int:
        """Numbers of a head's query."""
        return self.head_dim

    @property
    def kv_width(self) -> int:
        """Numbers that a layer keeps of a token, both planes together."""
        return self.num_kv_heads * (self.head_dim + self.v_dim)

    def planes_of(self, layer: int) -> tuple[Plane, ...]:
        """What each layer keeps of a token."""
        return (Plane("keys", self.num_kv_heads * self.head_dim), Plane("values", self.num_kv_heads * self.v_dim))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Dimensions and rules of one model."""

    name: str
    architecture: Architecture
    num_layers: int
    """Ordinary transformer layers; a multi-token-prediction block at the end is not counted."""
    num_dense_layers: int
    vocab_size: int
    """Rows of the embedding; may exceed the tokenizer's tokens."""
    context_length: int
    hidden: int
    ffn_dim: int
    """Width of a dense layer's feed-forward."""

    num_heads: int
    """Of queries."""
    attention: LatentSpec | GroupedSpec

    num_experts: int
    num_experts_used: int
    num_shared_experts: int
    expert_dim: int
    fused_experts: bool
    """Whether each expert's gate and up projection are in one tensor, gate first."""
    gating: Gating
    num_groups: int
    num_groups_used: int
    group_score: Literal["max", "top2_sum"]
    router_bias: bool
    """Whether each expert has a bias that counts in the choice and not in the weight."""
    normalize_weights: bool
    weights_scale: float

    rms_eps: float
    rope_theta: float
    yarn: YarnSpec | None
    tied_output: bool

    @property
    def latent(self) -> LatentSpec:
        """The attention of a model that is known to have the latent kind."""
        assert isinstance(self.attention, LatentSpec), "the model's attention is not latent"
        return self.attention

    @property
    def rope_dim(self) -> int:
        """Entries of a head that positions rotate."""
        return self.attention.rope_dim

    @property
    def planes(self) -> tuple[tuple[Plane, ...], ...]:
        """By layer, what it keeps of a token."""
        return tuple(map(self.attention.planes_of, range(self.num_layers)))

    @property
    def kv_numbers(self) -> int:
        """Numbers that are kept of a token, in all planes of all layers."""
        return sum(plane.width for planes in self.planes for plane in planes)

    @property
    def index(self) -> IndexSpec | None:
        """What chooses the positions that attention sees; None where it sees all."""
        return self.attention.index if isinstance(self.attention, LatentSpec) else None

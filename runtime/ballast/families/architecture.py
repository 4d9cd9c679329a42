"""The arithmetic of an architecture of model files, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ballast.families.family import SIGMOID, SOFTMAX, SQRT_SOFTPLUS, Value

Gating = Literal["softmax", "sigmoid", "sqrtsoftplus"]
"""A router's function of its logits; the last is the square root of a softplus."""
GATING_NUMBERS: Mapping[Gating, int] = MappingProxyType(
    {"softmax": SOFTMAX, "sigmoid": SIGMOID, "sqrtsoftplus": SQRT_SOFTPLUS}
)
"""The value of each in the key `expert_gating_func`."""


PLAIN_YARN: Mapping[str, Value] = MappingProxyType(
    {
        "rope.scaling.yarn_log_multiplier": 0.0,
        "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.yarn_beta_slow": 1.0,
    }
)
"""Defaults by key for files with YaRN that contain only its factor and original context: those of transformers and
llama.cpp. DeepSeek's models have other values, so their architectures have no defaults."""


@dataclass(frozen=True, slots=True)
class RouterRule:
    """How a router chooses, as far as files do not define it."""

    group_score: Literal["max", "top2_sum"]
    """By which of its experts' scores a group is chosen: the best, or the sum of the best two."""
    has_bias: bool
    """Whether each expert has a bias that counts in the choice and not in the weight."""
    may_lack_bias: bool = False
    """Whether a file in which no layer has one means zeros."""
    weighs_chosen: bool = False
    """Whether files may name a softmax over the chosen experts alone. It equals that over all, normalised."""


@dataclass(frozen=True, slots=True)
class WindowRule:
    """Which layers have a window, in files that do not name them."""

    period: int | None = None
    """One of each so many layers has none. None: files must name the layers."""
    full_first: bool = False
    """Whether that is the first of them, else the last."""
    is_optional: bool = False
    """Whether in files without a window all layers see all positions."""

    def has_window(self, layer: int, period: int | None = None) -> bool:
        """`period`: that of the file, if it has one."""
        used = period or self.period
        assert used is not None
        return layer % used != (0 if self.full_first else used - 1)


@dataclass(frozen=True, slots=True)
class ClampedSwiglu:
    """The unit g · sigmoid(alpha g) · (u + 1), where g is at most `limit`, and u within -limit and limit."""

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class ClampedSilu:
    """The unit min(silu(g), limit) · u, where u is within -limit and limit."""

    limit: float
    limits_input: bool = False
    """Whether the limit is that of g: silu(min(g, limit)) · u."""

    @property
    def gate_limit(self) -> float:
        """The limit of silu(g): silu ascends above 0, and is below 0 elsewhere."""
        return self.limit / (1 + math.exp(-self.limit)) if self.limits_input else self.limit


Unit = ClampedSwiglu | ClampedSilu


@dataclass(frozen=True, slots=True)
class Architecture:
    """The arithmetic of the files with one `general.architecture`."""

    name: str
    attention: Literal["latent", "grouped", "compressed"]
    routers: Mapping[Gating, RouterRule]
    """By how logits become scores; a file with another function is refused."""
    modules: Mapping[Gating, str]
    """The prefix of the classes that placement rules name."""
    moe_module: str = "MoE"
    """The class of a layer's experts, without the prefix."""
    defaults: Mapping[str, Value] | None = None
    """Values of missing keys, if they do not depend on the model: by key without prefix."""
    ffn_norm: str = "ffn_norm"
    """The files' name of the norm before the feed-forward."""
    needed_options: frozenset[str] = frozenset()
    """Options of the attention's declaration whose tensors a file must have. A file may have those of others."""
    windowed_options: frozenset[str] = frozenset()
    """The same of layers with a window alone."""
    norms_all_heads: bool = False
    """Whether norms of queries and keys span all heads of a token, else each head."""
    windows: WindowRule | None = None
    """None: files with a window are refused."""
    yarn_in_windows: bool = True
    """Whether layers with a window have the YaRN of the others, else none."""
    gate: Literal["sigmoid", "softplus"] = "sigmoid"
    """The function of gates that multiplies the output of attention, in files with gates."""
    may_gate_entries: bool = False
    """Whether a file may have a gate for each entry of a head's output instead of one for the head."""
    halves_full_rope: bool = False
    """Whether layers without a window rotate half of the entries that files count, and divide the frequencies by
    `rope_freqs.weight` if a file has it."""
    scales_queries: bool = False
    """Whether files may scale queries by their position: attention.temperature_scale."""
    scales_values: bool = False
    """Whether values have a factor, which files may leave out: attention.value_scale."""
    rounds_yarn: bool = True
    """Whether the pairs between which YaRN's ramp runs are rounded outwards."""
    unit: ClampedSwiglu | None = None
    """The activation that experts apply to gate and up. None: silu(g) · u."""
    has_limits: bool = False
    """Whether files may limit the units of single layers: those of experts by `swiglu_clamp_exp`, those of shared
    experts and dense layers by `swiglu_clamp_shexp`."""
    limits_inputs: bool = False
    """Whether these are limits of what the silu is computed of. A file without limits of shared experts then has those
    of experts for them as well."""
    delta_net: Literal["neighbours", "alternating"] | None = None
    """Which heads of values share a head of keys in layers of Gated DeltaNet: neighbours, or those at a distance of the
    number of key heads. None: there are no such layers."""
    kimi_delta: bool = False
    """Whether layers that files give no heads of keys and values are Kimi Delta Attention."""
    bounds_decays: bool = False
    """Whether files may bound its decays: kda.gate_lower_bound."""
    rotates: bool = True
    """Whether positions rotate queries and keys."""
    names_rope_sections: bool = False
    """Whether files divide the rotated pairs among the coordinates of an image. In a text all coordinates are equal."""
    gates_queries: bool = False
    """Whether the matrix of queries gives each head's gate as well, whose sigmoid multiplies what the head gives."""
    gates_shared: bool = False
    """Whether shared experts have a gate, whose sigmoid multiplies what they give."""
    expert_biases: bool = False
    """Whether the router and the three products of each expert have biases."""
    index_pairs: Literal["apart", "neighbours"] | None = None
    """Where attention sees chosen positions alone: what the indexer rotates together, i and i + rope_dim / 2 or 2i and
    2i + 1. None: attention sees all."""
    pools_index_keys: bool = False
    """Whether neighbouring tokens share an index key and are chosen together."""
    hyper_connections: bool = False
    """Whether the residual stream of a token has several rows, which hyper-connections mix."""
    weighs_stream_end: bool = False
    """Whether these rows are added up by weights at the end, else their mean is taken."""
    hashes_experts: bool = False
    """Whether the first layers look up experts by the id of a token: hash_layer_count."""
    gates_stream: bool = False
    """Whether blocks read and add to these rows by gates of a low rank instead."""
    embeds_ngrams: bool = False
    """Whether a layer may embed n-grams: ple.layers."""
    delta_gate: Literal["silu", "sigmoid"] = "silu"
    """The function of gates that multiply the output of Gated DeltaNet."""
    shared_index_context: int | None = None
    """Files with at least this context that do not specify which layers have an indexer have one in layers 0, 1 and
    then every fourth from 2; in all other files, every layer has one."""

    def __hash__(self) -> int:
        return hash(self.name)

"""config.json of a model: the fields that tell what its GGUF may leave out, or contradict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ballast.documents.json_document import read_json
from ballast.documents.small_file import DocumentError
from ballast.errors import ModelError
from ballast.model.metadata.keys import LARGEST

Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Number = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Numbers = Annotated[list[Number], BeforeValidator(lambda value: value if isinstance(value, list) else [value])]
"""A list, or a number without one."""
Scale = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]

_CONFIG = ConfigDict(strict=True, frozen=True, extra="ignore")


class HfRope(BaseModel):
    """`rope_scaling`, or `rope_parameters` as newer files call it."""

    model_config = _CONFIG

    type: str | None = None
    rope_type: str | None = None
    rope_theta: Number | None = None
    factor: Number | None = None
    original_max_position_embeddings: Whole | None = None
    beta_fast: Number | None = None
    beta_slow: Number | None = None
    mscale: Scale | None = None
    mscale_all_dim: Scale | None = None
    attention_factor: Annotated[Scale, Field(gt=0)] | None = None
    llama_4_scaling_beta: Scale | None = None
    full_attention: HfRope | None = None
    sliding_attention: HfRope | None = None
    """The settings of layers without and with a window, in files that have them apart."""

    @property
    def kind(self) -> str | None:
        """How positions are scaled."""
        return self.type or self.rope_type


class HfHeads(BaseModel):
    """Step's `attention_other_setting`: the heads of layers with a window."""

    model_config = _CONFIG

    num_attention_heads: Whole | None = None


class HfLinear(BaseModel):
    """Kimi Linear's `linear_attn_config`: its recurrent layers."""

    model_config = _CONFIG

    num_heads: Whole | None = None
    head_dim: Whole | None = None
    short_conv_kernel_size: Whole | None = None
    full_attn_layers: list[Whole] | None = None
    """The other layers, counted from 1."""


class HfConfig(BaseModel):
    """The fields that matter here; all others are left alone. None: the file does not say."""

    model_config = _CONFIG

    hidden_size: Whole | None = None
    num_hidden_layers: Whole | None = None
    first_k_dense_replace: Whole | None = None
    intermediate_size: Whole | None = None
    num_attention_heads: Whole | None = None
    num_sliding_attention_heads: Whole | None = None
    """Heads of layers with a window, if they have others."""
    attention_other_setting: HfHeads | None = None
    num_attention_heads_per_layer: list[Whole] | None = None
    gating: bool | str | None = None
    """Whether attention has gates, or of what: per-head, which True means as well, or per-element."""
    num_key_value_heads: Whole | None = None
    swa_num_key_value_heads: Whole | None = None
    """The number in layers with a window, if it differs."""
    attention_value_scale: Scale | None = None
    head_dim: Whole | None = None
    sliding_window: Whole | None = None
    q_lora_rank: Whole | None = None
    kv_lora_rank: Whole | None = None
    qk_nope_head_dim: Whole | None = None
    qk_rope_head_dim: Whole | None = None
    v_head_dim: Whole | None = None
    o_groups: Whole | None = None
    o_lora_rank: Whole | None = None
    index_n_heads: Whole | None = None
    index_head_dim: Whole | None = None
    index_topk: Whole | None = None
    indexer_n_heads: Whole | None = None
    indexer_head_dim: Whole | None = None
    indexer_compress_ratio: Whole | None = None
    hc_count: Whole | None = None
    hc_lowrank: Whole | None = None
    index_kpool: Whole | None = None
    indexer_types: list[str] | None = None
    """For each layer "full", or "shared" where it takes the choice of one below."""
    n_routed_experts: Whole | None = None
    num_experts: Whole | None = None
    num_local_experts: Whole | None = None
    num_experts_per_tok: Whole | None = None
    num_experts_per_token: Whole | None = None
    n_shared_experts: Whole | None = None
    num_shared_experts: Whole | None = None
    linear_num_value_heads: Whole | None = None
    linear_num_key_heads: Whole | None = None
    linear_key_head_dim: Whole | None = None
    linear_value_head_dim: Whole | None = None
    linear_conv_kernel_dim: Whole | None = None
    linear_attn_config: HfLinear | None = None
    mla_use_nope: bool | None = None
    """Whether latent attention rotates nothing."""
    moe_intermediate_size: Whole | None = None
    scoring_func: Literal["softmax", "sigmoid", "sqrtsoftplus"] | None = None
    moe_router_activation_func: Literal["softmax", "sigmoid"] | None = None
    topk_method: str | None = None
    n_group: Whole | None = None
    topk_group: Whole | None = None
    num_expert_group: Whole | None = None
    norm_topk_prob: bool | None = None
    moe_renormalize: bool | None = None
    moe_apply_router_weight_on_input: bool | None = None
    moe_router_logit_softcapping: Number | None = None
    routed_scaling_factor: Annotated[Number, Field(le=1e4)] | None = None
    moe_routed_scaling_factor: Annotated[Number, Field(le=1e4)] | None = None
    rms_norm_eps: Number | None = None
    rope_theta: Numbers | None = None
    """One for all layers, or of each layer."""
    swa_rope_theta: Number | None = None
    rope_scaling: HfRope | None = None
    rope_parameters: HfRope | None = None
    text_config: HfConfig | None = None

    @model_validator(mode="after")
    def _check_depth(self) -> HfConfig:
        if self.text_config is not None and self.text_config.text_config is not None:
            raise ValueError("text_config within text_config")
        return self

    @property
    def language_model(self) -> HfConfig:
        """Of a model that sees pictures too, the part for text; otherwise the whole."""
        return self.text_config or self

    @property
    def yarn(self) -> HfRope | None:
        """The settings of YaRN; None when it has none."""
        rope = self._rope
        return rope if rope is not None and rope.kind == "yarn" else None

    @property
    def has_factors(self) -> bool:
        """Whether frequencies are divided by factors, which files have as a tensor."""
        return self._rope is not None and self._rope.kind == "llama3"

    @property
    def _rope(self) -> HfRope | None:
        rope = self.rope_scaling or self.rope_parameters
        return rope and (rope.full_attention or rope)

    @property
    def theta(self) -> float | None:
        """The base of the rotation's frequencies, in the first layer."""
        own = self.rope_parameters and (self.rope_parameters.full_attention or self.rope_parameters)
        return (self.rope_theta[0] if self.rope_theta else None) or (own.rope_theta if own else None)

    @property
    def windowed_theta(self) -> float | None:
        """The same in layers with a window, where it differs."""
        own = self.rope_parameters and self.rope_parameters.sliding_attention
        return self.swa_rope_theta or (own.rope_theta if own else None)

    def num_heads(self, layer: int, *, has_window: bool) -> int | None:
        """Heads of a layer's queries."""
        of_layers = self.num_attention_heads_per_layer
        if of_layers is not None and layer < len(of_layers):
            return of_layers[layer]
        other = self.attention_other_setting and self.attention_other_setting.num_attention_heads
        own = self.num_sliding_attention_heads or other if has_window else None
        return own or self.num_attention_heads

    @property
    def gates(self) -> str | None:
        """What has a gate: per-head or per-element; None: the file does not say."""
        return "per-head" if self.gating is True else self.gating.replace("_", "-") if self.gating else None

    @property
    def is_greedy(self) -> bool:
        """Whether experts are selected from all, ignoring groups, as in V2-Lite."""
        return self.topk_method == "greedy"


def read_config(model_path: Path) -> HfConfig:
    """`model_path`/config.json. Raises ModelError when it is missing, is no JSON object, or has a senseless value."""
    file = model_path / "config.json"
    try:
        return read_json(file, HfConfig).language_model
    except DocumentError as error:
        raise ModelError(file, str(error)) from error

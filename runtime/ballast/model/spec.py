"""The dimensions and rules of a DeepSeek-family model. All come from the file's metadata, none from a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Dimensions and rules of one `deepseek2` model."""

    name: str
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
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    mla_layout: Literal["joint", "split"]

    num_experts: int
    num_experts_used: int
    num_shared_experts: int
    expert_dim: int
    fused_experts: bool
    """Whether each expert's gate and up projection are in one tensor, gate first."""
    gating: Literal["softmax", "sigmoid"]
    num_groups: int
    num_groups_used: int
    group_score: Literal["max", "top2_sum"]
    normalize_weights: bool
    weights_scale: float

    rms_eps: float
    rope_theta: float
    yarn: YarnSpec | None
    tied_output: bool

    @property
    def latent_dim(self) -> int:
        """Floats of one token's KV in one layer: the normed latent and the rotated key."""
        return self.kv_lora_rank + self.rope_dim

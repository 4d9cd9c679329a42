"""A model as the tree of modules that placement rules refer to, with the names of its publisher's
own code."""

from __future__ import annotations

from collections.abc import Iterator

from ballast.model.spec import GroupedSpec, LatentSpec, ModelSpec
from ballast.moe.device_rules import Module

_MODULE_OF = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_MODULE_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.kv_b_proj",
    "attn_v_b": "self_attn.kv_b_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "exp_probs_b": "mlp.gate",
    "ffn_gate_exps": "mlp.experts",
    "ffn_up_exps": "mlp.experts",
    "ffn_gate_up_exps": "mlp.experts",
    "ffn_down_exps": "mlp.experts",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}


_MODULE_IN_INDEXER = {"attn_q_b": "wq_b", "attn_k": "wk", "k_norm": "k_norm", "proj": "weights_proj"}


def module_of(tensor: str) -> str:
    """The module that an expected tensor belongs to."""
    parts = tensor.split(".")
    if parts[2:3] == ["indexer"]:
        return f"model.layers.{parts[1]}.self_attn.indexer.{_MODULE_IN_INDEXER[parts[3]]}"
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_MODULE_IN_LAYER[parts[2]]}"
    return _MODULE_OF[parts[0]]


def module_tree(spec: ModelSpec) -> list[Module]:
    """Every module, parents before children; the root's name is empty. The routed experts of a layer are one module,
    since they are placed as a whole."""
    return list(_Tree(spec).modules())


class _Tree:
    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._family = spec.architecture.modules[spec.gating]

    def modules(self) -> Iterator[Module]:
        yield self._own("", "ForCausalLM")
        yield self._own("model", "Model")
        yield _module("model.embed_tokens", "Embedding")
        yield _module("model.layers", "ModuleList")
        for layer in range(self._spec.num_layers):
            name = f"model.layers.{layer}"
            yield self._own(name, "DecoderLayer")
            yield from self._attention(f"{name}.self_attn")
            if self._spec.index is not None and self._spec.index.layers[layer]:
                yield from self._indexer(f"{name}.self_attn.indexer")
            if layer < self._spec.num_dense_layers:
                yield from self._mlp(f"{name}.mlp")
            else:
                yield from self._experts(f"{name}.mlp")
            yield self._own(f"{name}.input_layernorm", "RMSNorm")
            yield self._own(f"{name}.post_attention_layernorm", "RMSNorm")
        yield self._own("model.norm", "RMSNorm")
        yield _module("lm_head", "Linear")

    def _attention(self, name: str) -> Iterator[Module]:
        yield self._own(name, "Attention")
        if isinstance(self._spec.attention, GroupedSpec):
            yield from self._grouped(name, self._spec.attention)
        else:
            yield from self._latent(name, self._spec.attention)
        yield _module(f"{name}.o_proj", "Linear")
        yarn = ("YarnRotaryEmbedding",) if self._spec.yarn else ()
        yield self._own(f"{name}.rotary_emb", "RotaryEmbedding", *yarn)

    def _latent(self, name: str, latent: LatentSpec) -> Iterator[Module]:
        if latent.q_lora_rank is None:
            yield _module(f"{name}.q_proj", "Linear")
        else:
            yield _module(f"{name}.q_a_proj", "Linear")
            yield self._own(f"{name}.q_a_layernorm", "RMSNorm")
            yield _module(f"{name}.q_b_proj", "Linear")
        yield _module(f"{name}.kv_a_proj_with_mqa", "Linear")
        yield self._own(f"{name}.kv_a_layernorm", "RMSNorm")
        yield _module(f"{name}.kv_b_proj", "Linear")

    def _indexer(self, name: str) -> Iterator[Module]:
        yield self._own(name, "Indexer")
        for part in ("wq_b", "wk", "weights_proj"):
            yield _module(f"{name}.{part}", "Linear")
        yield _module(f"{name}.k_norm", "LayerNorm")

    def _grouped(self, name: str, grouped: GroupedSpec) -> Iterator[Module]:
        for part in ("q_proj", "k_proj", "v_proj"):
            yield _module(f"{name}.{part}", "Linear")
        if grouped.qk_norm:
            for part in ("q_norm", "k_norm"):
                yield self._own(f"{name}.{part}", "RMSNorm")

    def _mlp(self, name: str) -> Iterator[Module]:
        yield self._own(name, "MLP")
        for part in ("gate_proj", "up_proj", "down_proj"):
            yield _module(f"{name}.{part}", "Linear")

    def _experts(self, name: str) -> Iterator[Module]:
        yield self._own(name, self._spec.architecture.moe_module)
        yield _module(f"{name}.experts", "ModuleList", f"{self._family}Experts")
        yield _module(f"{name}.gate", "MoEGate", f"{self._family}TopkRouter")
        if self._spec.num_shared_experts:
            yield from self._mlp(f"{name}.shared_experts")

    def _own(self, name: str, *classes: str) -> Module:
        return _module(name, *(f"{self._family}{kind}" for kind in classes))


def _module(name: str, *classes: str) -> Module:
    return Module(name, frozenset(classes) | {"Module"})

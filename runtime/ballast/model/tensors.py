"""The tensors that a model must have, with shapes and types. All are checked before anything is loaded."""

from __future__ import annotations

import logging
from typing import Literal, get_args

from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from ballast.errors import ModelError
from ballast.model.spec import GroupedSpec, LatentSpec, ModelSpec
from ballast.weights.gguf import GgufModel
from ballast.weights.gguf_file import TensorInfo

log = logging.getLogger(__name__)

Group = Literal[
    "embedding", "attention", "router", "routed experts", "shared experts", "dense feed-forward", "norms", "output"
]
GROUPS: tuple[Group, ...] = get_args(Group)
"""The groups by which reports sum tensors, in order."""

TYPES = frozenset(GgmlType(known.ggml_type) for known in kernels.formats())
"""Types that matrices may have. Norms and biases are F32."""

SCALED_TYPES = frozenset(
    GgmlType(known.ggml_type)
    for known in kernels.formats()
    if known.layout is not None and known.layout.scales == "e4m3"
)
"""Types whose matrices may have a scale beside them in the file, which their products are multiplied by."""

_GROUP_OF: dict[str, Group] = {
    "token_embd": "embedding",
    "output": "output",
    "output_norm": "norms",
    "attn_norm": "norms",
    "attn_q_a_norm": "norms",
    "attn_kv_a_norm": "norms",
    "attn_q_norm": "norms",
    "attn_k_norm": "norms",
    "ffn_norm": "norms",
    "post_attention_norm": "norms",
    "k_norm": "norms",
    "proj": "attention",
    "ffn_gate_inp": "router",
    "exp_probs_b": "router",
}


def expected_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name → row-major shape of every tensor that the model reads."""
    tensors: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (spec.vocab_size, spec.hidden),
        "output_norm.weight": (spec.hidden,),
    }
    if not spec.tied_output:
        tensors["output.weight"] = (spec.vocab_size, spec.hidden)
    for layer in range(spec.num_layers):
        parts = _attention(spec, layer) | (_dense(spec) if layer < spec.num_dense_layers else _experts(spec))
        tensors.update({f"blk.{layer}.{part}": shape for part, shape in parts.items()})
    return tensors


def group_of(name: str) -> Group:
    """The group that an expected tensor is summed up in."""
    part = name.split(".")[-2]
    if part in _GROUP_OF:
        return _GROUP_OF[part]
    if part.startswith("attn_"):
        return "attention"
    if part.endswith("_exps"):
        return "routed experts"
    return "shared experts" if part.endswith("_shexp") else "dense feed-forward"


def check_tensors(gguf: GgufModel, spec: ModelSpec) -> None:
    """Raises ModelError naming file, tensor, expected and found for the first tensor that is missing, has another
    shape, or is of a type that cannot be read. Tensors beyond the expected ones are left alone."""
    expected = expected_tensors(spec)
    for name, shape in expected.items():
        info = gguf.tensors.get(name)
        if info is None:
            raise ModelError(gguf.path, f"is missing; expected shape {shape}", tensor=name)
        if info.shape != shape:
            raise ModelError(info.file, f"expected shape {shape}, found {info.shape}", tensor=name)
        _check_type(info)
    extra = [name for name in gguf.tensors if name not in expected]
    scales = {scale_name(name) for name in expected if name.endswith(".weight")} | {"output.scale"}
    for name in extra:
        if name in scales:
            _check_scale(gguf, name, expected)
        _check_bias(gguf.tensors[name], expected)
    extra = [name for name in extra if name not in scales]
    if extra:
        log.info("%s: %d tensors are not used, %s the first", gguf.path, len(extra), extra[0])


def scale_name(matrix: str) -> str:
    """The tensor that holds what a matrix's products are multiplied by: of experts a number each, else one."""
    return matrix.removesuffix(".weight") + ".scale"


def _check_scale(gguf: GgufModel, name: str, expected: dict[str, tuple[int, ...]]) -> None:
    """Refuse a scale of a matrix that no converter gives one, or of another type than those that have one. An
    `.input_scale` is for activations that are rounded to four bits, as none is here."""
    info = gguf.tensors[name]
    weight = name.removesuffix(".scale") + ".weight"
    if weight not in expected:
        raise ModelError(info.file, f"a scale of {weight}, in whose place the embedding is used", tensor=name)
    matrix = gguf.tensors[weight]
    if group_of(matrix.name) in ("embedding", "router") or matrix.ggml_type not in SCALED_TYPES:
        kinds = ", ".join(kind.name for kind in sorted(SCALED_TYPES))
        raise ModelError(
            info.file,
            f"a scale of all of {matrix.name}, which is {matrix.ggml_type.name}; only {kinds} of attention, "
            "feed-forward, experts and output have one",
            tensor=name,
        )
    shape = (matrix.shape[0] if group_of(matrix.name) == "routed experts" else 1,)
    if info.shape != shape or info.ggml_type != GgmlType.F32:
        raise ModelError(
            info.file,
            f"expected shape {shape} of F32, found {info.shape} of {info.ggml_type.name}",
            tensor=name,
        )


def _check_bias(info: TensorInfo, expected: dict[str, tuple[int, ...]]) -> None:
    """Refuse a bias that would have to be added to what a matrix gives."""
    matrix = info.name.removesuffix(".bias") + ".weight"
    if info.name.endswith(".bias") and matrix in expected:
        raise ModelError(
            info.file, f"a bias of {matrix}, which no model that is served has, cannot be added here", tensor=info.name
        )


def _check_type(info: TensorInfo) -> None:
    allowed = {GgmlType.F32} if len(info.shape) == 1 else TYPES
    if info.ggml_type not in allowed:
        names = ", ".join(kind.name for kind in sorted(allowed))
        raise ModelError(info.file, f"type {info.ggml_type.name} cannot be read; expected {names}", tensor=info.name)


def _attention(spec: ModelSpec, layer: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"attn_norm.weight": (spec.hidden,)}
    if isinstance(spec.attention, GroupedSpec):
        return shapes | _grouped(spec, spec.attention)
    return shapes | _latent(spec, spec.attention) | _indexer(spec, spec.attention, layer)


def _latent(spec: ModelSpec, latent: LatentSpec) -> dict[str, tuple[int, ...]]:
    heads, rank, query_dim = spec.num_heads, latent.kv_lora_rank, spec.num_heads * latent.query_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_kv_a_mqa.weight": (latent.latent_dim, spec.hidden),
        "attn_kv_a_norm.weight": (rank,),
        "attn_output.weight": (spec.hidden, heads * latent.v_dim),
    }
    if latent.q_lora_rank is None:
        shapes["attn_q.weight"] = (query_dim, spec.hidden)
    else:
        shapes["attn_q_a.weight"] = (latent.q_lora_rank, spec.hidden)
        shapes["attn_q_a_norm.weight"] = (latent.q_lora_rank,)
        shapes["attn_q_b.weight"] = (query_dim, latent.q_lora_rank)
    if latent.mla_layout == "joint":
        shapes["attn_kv_b.weight"] = (heads * (latent.nope_dim + latent.v_dim), rank)
    else:
        shapes["attn_k_b.weight"] = (heads, rank, latent.nope_dim)
        shapes["attn_v_b.weight"] = (heads, latent.v_dim, rank)
    return shapes


def _indexer(spec: ModelSpec, latent: LatentSpec, layer: int) -> dict[str, tuple[int, ...]]:
    index = latent.index
    if index is None or latent.q_lora_rank is None or not index.layers[layer]:
        return {}
    return {
        "indexer.attn_q_b.weight": (index.num_heads * index.key_dim, latent.q_lora_rank),
        "indexer.attn_k.weight": (index.key_dim, spec.hidden),
        "indexer.k_norm.weight": (index.key_dim,),
        "indexer.k_norm.bias": (index.key_dim,),
        "indexer.proj.weight": (index.num_heads, spec.hidden),
    }


def _grouped(spec: ModelSpec, grouped: GroupedSpec) -> dict[str, tuple[int, ...]]:
    rows = {
        "attn_q": spec.num_heads * grouped.head_dim,
        "attn_k": grouped.num_kv_heads * grouped.head_dim,
        "attn_v": grouped.num_kv_heads * grouped.v_dim,
    }
    shapes: dict[str, tuple[int, ...]] = {f"{part}.weight": (width, spec.hidden) for part, width in rows.items()}
    shapes["attn_output.weight"] = (spec.hidden, spec.num_heads * grouped.v_dim)
    if grouped.qkv_bias:
        shapes |= {f"{part}.bias": (width,) for part, width in rows.items()}
    if grouped.qk_norm:
        shapes |= dict.fromkeys(("attn_q_norm.weight", "attn_k_norm.weight"), (grouped.head_dim,))
    return shapes


def _dense(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    return {f"{spec.architecture.ffn_norm}.weight": (spec.hidden,)} | _gated("", spec.ffn_dim, spec.hidden)


def _experts(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    count, width, hidden = spec.num_experts, spec.expert_dim, spec.hidden
    shapes: dict[str, tuple[int, ...]] = {
        f"{spec.architecture.ffn_norm}.weight": (hidden,),
        "ffn_gate_inp.weight": (count, hidden),
        "ffn_down_exps.weight": (count, hidden, width),
    }
    if spec.fused_experts:
        shapes["ffn_gate_up_exps.weight"] = (count, 2 * width, hidden)
    else:
        shapes |= dict.fromkeys(("ffn_gate_exps.weight", "ffn_up_exps.weight"), (count, width, hidden))
    if spec.router_bias:
        shapes["exp_probs_b.bias"] = (count,)
    if spec.num_shared_experts:
        shapes |= _gated("_shexp", width * spec.num_shared_experts, hidden)
    return shapes


def _gated(suffix: str, width: int, hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        f"ffn_gate{suffix}.weight": (width, hidden),
        f"ffn_up{suffix}.weight": (width, hidden),
        f"ffn_down{suffix}.weight": (hidden, width),
    }

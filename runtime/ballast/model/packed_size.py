"""Computes how many bytes each tensor takes once it is loaded, without loading it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ballast._core import kernels
from ballast.model.spec import GroupedSpec, ModelSpec
from ballast.model.tensors import expected_tensors
from ballast.weights.gguf import GgufModel


def loaded_bytes(gguf: GgufModel, spec: ModelSpec, isa: str, threads_per_node: Sequence[int]) -> dict[str, int]:
    """Tensor → bytes in memory after `load_weights`, for all of the vocabulary's rows. Tensors that are read in place
    (the embedding, and everything for "reference") take as much page cache as they take of the file."""
    found = {name: gguf.tensors[name].num_bytes for name in expected_tensors(spec)}
    if isa == "reference":
        return found
    for layer in range(spec.num_layers):
        found |= _attention(gguf, spec, f"blk.{layer}")
        if spec.index is not None and spec.index.layers[layer]:
            parts = [f"blk.{layer}.indexer.{part}.weight" for part in ("attn_q_b", "attn_k", "proj")]
            found |= {name: _matrix(gguf, name) for name in parts}
        for suffix, width, num_experts in _experts(spec, layer):
            found |= _expert_tensors(gguf, spec, f"blk.{layer}", suffix, width, num_experts, threads_per_node)
    for name in found:
        if name == "output.weight" or "ffn_gate_inp" in name:
            found[name] = _matrix(gguf, name)
    if spec.tied_output:
        found["token_embd.weight"] += _matrix(gguf, "token_embd.weight")
    return found


def _matrix(gguf: GgufModel, name: str) -> int:
    info = gguf.tensors[name]
    rows, cols = info.shape
    return kernels.packed_nbytes(int(info.ggml_type), num_rows=rows, cols=cols)


def _heads(gguf: GgufModel, name: str, num_heads: int, num_rows: int, *, transposed: bool = False) -> int:
    info = gguf.tensors[name]
    return kernels.packed_nbytes(
        int(info.ggml_type), num_heads=num_heads, num_rows=num_rows, cols=info.shape[-1], transposed=transposed
    )


def _attention(gguf: GgufModel, spec: ModelSpec, block: str) -> dict[str, int]:
    if isinstance(spec.attention, GroupedSpec):
        parts = ["attn_q", "attn_k", "attn_v", "attn_output"]
        return {f"{block}.{part}.weight": _matrix(gguf, f"{block}.{part}.weight") for part in parts}
    latent, heads = spec.attention, spec.num_heads
    queries = ["attn_q"] if latent.q_lora_rank is None else ["attn_q_a", "attn_q_b"]
    parts = ["attn_kv_a_mqa", "attn_output", *queries]
    found = {f"{block}.{part}.weight": _matrix(gguf, f"{block}.{part}.weight") for part in parts}
    if latent.mla_layout == "joint":
        name = f"{block}.attn_kv_b.weight"
        keys = _heads(gguf, name, heads, latent.nope_dim, transposed=True)
        found[name] = keys + _heads(gguf, name, heads, latent.v_dim)
    else:
        for name, num_rows in (
            (f"{block}.attn_k_b.weight", latent.kv_lora_rank),
            (f"{block}.attn_v_b.weight", latent.v_dim),
        ):
            found[name] = _heads(gguf, name, heads, num_rows)
    return found


def _experts(spec: ModelSpec, layer: int) -> Iterator[tuple[str, int, int]]:
    """(suffix, width, number) of each kind of experts in a layer."""
    if layer < spec.num_dense_layers:
        yield "", spec.ffn_dim, 1
        return
    yield "_exps", spec.expert_dim, spec.num_experts
    if spec.num_shared_experts:
        yield "_shexp", spec.expert_dim * spec.num_shared_experts, 1


def _expert_tensors(
    gguf: GgufModel,
    spec: ModelSpec,
    block: str,
    suffix: str,
    width: int,
    num_experts: int,
    threads_per_node: Sequence[int],
) -> dict[str, int]:
    is_fused = spec.fused_experts and suffix == "_exps"
    parts = ("gate_up", "gate_up", "down") if is_fused else ("gate", "up", "down")
    names = [f"{block}.ffn_{part}{suffix}.weight" for part in parts]
    gate_type, up_type, down_type = (int(gguf.tensors[name].ggml_type) for name in names)
    sizes = kernels.experts_packed_nbytes(
        (gate_type, up_type, down_type),
        num_experts=num_experts,
        hidden=spec.hidden,
        width=width,
        threads_per_node=threads_per_node,
    )
    found = dict.fromkeys(names, 0)
    for name, size in zip(names, sizes, strict=True):
        found[name] += size
    return found

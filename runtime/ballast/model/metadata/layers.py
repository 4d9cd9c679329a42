"""Which layers there are, and how wide: from the keys, and from which tensors there are."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ballast.families.architecture import ClampedSilu
from ballast.model.layers.feed_forward import ROUTER_BIAS, DenseSpec, ExpertsSpec, FeedForward, RoutingSpec
from ballast.model.metadata.keys import Keys, is_number
from ballast.weights.gguf import block_of

ROUTER_BIASES = (ROUTER_BIAS, "exp_probs_b")
"""The names that files give the bias of a router: conversions of Hunyuan 3 leave out the suffix."""


class Layers(NamedTuple):
    """The number of layers, and how many of them, at the beginning, are dense."""

    num_layers: int
    num_dense_layers: int


def read_layers(keys: Keys) -> Layers:
    """Raises ModelError for counts that contradict each other or the tensors."""
    num_layers = _num_layers(keys)
    num_dense_layers = keys.whole("leading_dense_block_count", default=_num_routerless(keys, num_layers), minimum=0)
    if num_dense_layers > num_layers:
        raise keys.refuse(
            f"{keys.full('leading_dense_block_count')}={num_dense_layers}; the model has {num_layers} layers"
        )
    if num_dense_layers == num_layers:
        raise keys.refuse(f"all {num_layers} layers are dense; expected a mixture-of-experts model")
    return Layers(num_layers, num_dense_layers)


class Widths(NamedTuple):
    """Sizes that do not depend on the kind of attention."""

    hidden: int
    ffn_dim: int
    """Width of dense layers; 0 for a file without any."""
    num_heads: int
    """Of the first layer."""
    num_experts: int
    num_experts_used: int
    num_shared_experts: int
    expert_dim: int


def read_widths(keys: Keys, layers: Layers) -> Widths:
    """Raises ModelError for a key that is missing or has an impossible value."""
    num_layers, num_dense_layers = layers
    expert_dim = keys.uniform("expert_feed_forward_length", range(num_dense_layers, num_layers))
    return Widths(
        hidden=keys.whole("embedding_length"),
        ffn_dim=keys.uniform("feed_forward_length", range(num_dense_layers)) if num_dense_layers else 0,
        num_heads=_num_heads(keys, num_layers),
        num_experts=keys.whole("expert_count"),
        num_experts_used=keys.whole("expert_used_count"),
        num_shared_experts=_num_shared_experts(keys, num_dense_layers, expert_dim),
        expert_dim=expert_dim,
    )


def _num_heads(keys: Keys, num_layers: int) -> int:
    key = "attention.head_count"
    if keys.architecture.attention != "grouped":
        return keys.uniform(key, range(num_layers))
    return keys.each(key, num_layers)[0]


def read_feed_forwards(keys: Keys, layers: Layers, widths: Widths, routing: RoutingSpec) -> tuple[FeedForward, ...]:
    """The feed-forward of each layer."""
    first = f"blk.{layers.num_dense_layers}"
    experts = ExpertsSpec(
        routing=routing,
        width=widths.expert_dim,
        num_shared=widths.num_shared_experts,
        is_fused=keys.has_tensor(f"{first}.ffn_gate_up_exps.weight"),
        router_bias_name=next((name for name in ROUTER_BIASES if keys.has_tensor(f"{first}.{name}")), ROUTER_BIAS),
        unit=keys.architecture.unit,
        gates_shared=keys.architecture.gates_shared,
        has_biases=keys.architecture.expert_biases,
    )
    num_hashed, vocab_size = _num_hashed(keys, layers), read_vocab_size(keys)
    units = _units(keys, "swiglu_clamp_exp", layers.num_layers)
    shared_key = "swiglu_clamp_shexp"
    if keys.architecture.limits_inputs:
        shared_key = keys.first(shared_key, "swiglu_clamp_exp")
    shared_units = _units(keys, shared_key, layers.num_layers)
    return tuple(
        DenseSpec(widths.ffn_dim, shared)
        if layer < layers.num_dense_layers
        else replace(
            experts,
            unit=unit or experts.unit,
            shared_unit=shared,
            table_rows=vocab_size if layer < num_hashed else 0,
        )
        for layer, (unit, shared) in enumerate(zip(units, shared_units, strict=True))
    )


def _num_hashed(keys: Keys, layers: Layers) -> int:
    """The first layers, whose experts a table gives by the id of a token."""
    if not keys.architecture.hashes_experts:
        return 0
    return keys.whole("hash_layer_count", minimum=0, most=layers.num_layers)


def _units(keys: Keys, key: str, num_layers: int) -> tuple[ClampedSilu | None, ...]:
    """The activation unit of each layer, with the limit that `key` has per layer or for all layers. None for layers
    without a limit, for which files have 0."""
    limits = keys.get(key) if keys.architecture.has_limits else None
    if limits is None and keys.architecture.limits_inputs:
        raise keys.wrong(key, f"a number, at least 0, for each of {num_layers} layers")
    if limits is None:
        return (None,) * num_layers
    by_layer = limits if isinstance(limits, list) else [limits] * num_layers
    if len(by_layer) < num_layers or not all(map(_is_limit, by_layer[:num_layers])):
        raise keys.wrong(key, f"a number, at least 0, for each of {num_layers} layers")
    on_inputs = keys.architecture.limits_inputs
    return tuple(ClampedSilu(float(limit), on_inputs) if limit else None for limit in by_layer[:num_layers])


def _is_limit(value: object) -> bool:
    return is_number(value) and value >= 0


def read_vocab_size(keys: Keys) -> int:
    """Rows of the embedding."""
    info = keys.gguf.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2:
        found = "nothing" if info is None else f"shape {info.shape}"
        raise keys.refuse(f"found {found}; expected a matrix of one row per token", "token_embd.weight")
    return info.shape[0]


def _num_layers(keys: Keys) -> int:
    """Ordinary layers. `block_count` counts the blocks for multi-token prediction in some files and not in others:
    a block that has `nextn` tensors, or that was left out of the file altogether, is none of ours."""
    blocks: dict[int, bool] = {}
    for name in keys.gguf.tensors:
        index = block_of(name)
        if index is not None:
            blocks[index] = blocks.get(index, False) or name.split(".")[2] == "nextn"
    if blocks and 0 not in blocks:
        raise keys.refuse(
            f"the first block is {min(blocks)}; a file of the block that predicts several tokens alone (mtp-…) "
            "is no model"
        )
    num_layers = keys.whole("block_count")
    if num_layers > len(keys.gguf.tensors):
        raise keys.refuse(f"{keys.full('block_count')}={num_layers}; the file has {len(keys.gguf.tensors)} tensors")
    num_extra = keys.whole("nextn_predict_layers", default=0, minimum=0)
    beyond = [index for index, is_nextn in blocks.items() if index >= num_layers + num_extra and not is_nextn]
    if beyond:
        raise keys.refuse(
            f"{keys.full('block_count')}={num_layers}; the file has a block {max(beyond)}; expected {max(beyond) + 1}"
        )
    for index in reversed(range(num_layers)):
        is_nextn = blocks.get(index, num_extra > 0)
        if not is_nextn:
            break
        num_layers, num_extra = num_layers - 1, num_extra - 1
    if num_layers < 1:
        raise keys.refuse(f"{keys.full('block_count')}={keys.get('block_count')} does not leave an ordinary layer")
    return num_layers


def _num_routerless(keys: Keys, num_layers: int) -> int:
    """Layers before the first one with a router; 0 for a file without any, which another check refuses."""
    routed = (layer for layer in range(num_layers) if keys.has_tensor(f"blk.{layer}.ffn_gate_inp.weight"))
    return next(routed, 0)


def _num_shared_experts(keys: Keys, num_dense_layers: int, expert_dim: int) -> int:
    """Files have their number, or the width of all of them. A file without either has none, unless it has their
    weights, which must not be left out in silence."""
    has_weights = keys.has_tensor(f"blk.{num_dense_layers}.ffn_gate_shexp.weight")
    key = "expert_shared_feed_forward_length"
    if keys.get("expert_shared_count") is None and keys.get(key) is not None:
        width = keys.whole(key, minimum=0)
        if width % expert_dim or (has_weights and not width):
            raise keys.wrong(key, f"a multiple of {expert_dim}, the width of an expert")
        return width // expert_dim
    if has_weights:
        return keys.whole("expert_shared_count")
    return keys.whole("expert_shared_count", default=0, minimum=0)

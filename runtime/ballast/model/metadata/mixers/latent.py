"""Reads latent attention, to all positions or to positions that an indexer selects, from a file's keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from ballast.model.layers.latent import IndexSpec, LatentSpec
from ballast.model.layers.positions import RopeSpec
from ballast.model.metadata.keys import Keys
from ballast.model.metadata.layers import Layers, Widths
from ballast.model.metadata.mixers.indexer import check_norm_eps, pooled_top_k, read_index_sizes

_ROPE_KEY, _RANK_KEY = "rope.dimension_count", "attention.kv_lora_rank"
_WIDTH_KEY, _OWN_WIDTH_KEY = "attention.key_length", "attention.key_length_mla"
"""Files of the split layout describe the latent in the first, and the heads in the second."""


class LatentDims(NamedTuple):
    """The sizes of latent attention, which also tell known models apart."""

    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int


def latent_dims(keys: Keys, first: int) -> LatentDims:
    """`first`: the first layer with attention. Raises ModelError for a key that is missing or senseless."""
    rope_dim = keys.whole(_ROPE_KEY, minimum=1 if keys.architecture.rotates else 0)
    if rope_dim and keys.architecture.index_pairs is not None and not keys.architecture.rotates:
        raise keys.wrong(_ROPE_KEY, "0, because positions rotate neither attention nor its indexer")
    head_key = keys.first(_OWN_WIDTH_KEY, _WIDTH_KEY)
    head_dim, kv_lora_rank = keys.whole(head_key), keys.whole(_RANK_KEY)
    if head_dim <= rope_dim or rope_dim % 2:
        raise keys.refuse(
            f"{keys.full(head_key)}={head_dim} and {keys.full(_ROPE_KEY)}={rope_dim}; "
            "expected an even number of rotated dimensions, fewer than a head has"
        )
    if head_key == _WIDTH_KEY and head_dim == kv_lora_rank + rope_dim and _mla_layout(keys, first) == "split":
        raise keys.wrong(_OWN_WIDTH_KEY, f"the width of a head, because {_WIDTH_KEY}={head_dim} is that of the latent")
    v_key = "attention.value_length_mla" if head_key == _OWN_WIDTH_KEY else "attention.value_length"
    return LatentDims(
        q_lora_rank=_q_lora_rank(keys, first),
        kv_lora_rank=kv_lora_rank,
        nope_dim=head_dim - rope_dim,
        rope_dim=rope_dim,
        v_dim=keys.whole(v_key),
    )


def read_latent(
    keys: Keys, layers: Layers, widths: Widths, rope: RopeSpec, is_recurrent: Sequence[bool]
) -> Iterator[LatentSpec]:
    """One per layer; layers with recurrent state do not use theirs. `rope`: without its dimensions. Raises ModelError
    for a key that is missing, senseless or absurd."""
    first = is_recurrent.index(False)
    dims = latent_dims(keys, first)
    mixer = LatentSpec(
        num_heads=widths.num_heads,
        q_lora_rank=dims.q_lora_rank,
        kv_lora_rank=dims.kv_lora_rank,
        nope_dim=dims.nope_dim,
        v_dim=dims.v_dim,
        rope=replace(rope, dim=dims.rope_dim),
        mla_layout=_mla_layout(keys, first),
        rotates=keys.architecture.rotates,
    )
    if keys.architecture.index_pairs is None:
        yield from [mixer] * layers.num_layers
        return
    index = _read_index(keys, dims.rope_dim, dims.q_lora_rank, first)
    if keys.architecture.pools_index_keys:
        yield from [replace(mixer, index=_pooled(keys, index, is_recurrent))] * layers.num_layers
        return
    for has_indexer in _indexed_layers(keys, layers.num_layers):
        yield replace(mixer, index=replace(index, has_indexer=has_indexer))


def _pooled(keys: Keys, index: IndexSpec, is_recurrent: Sequence[bool]) -> IndexSpec:
    """With the tokens that share an index key, in files all of whose layers with attention have an indexer."""
    key, tail, types = (f"attention.indexer.{name}" for name in ("kpool", "kpool_select_tail", "types"))
    pool = keys.whole(key)
    top_k = pooled_top_k(keys, key, pool)
    if keys.get(tail) not in (None, True):
        raise keys.wrong(tail, "true, because a token's own pool is otherwise hidden")
    has_indexer = keys.get(types)
    if has_indexer is not None and not _have_attention_layers(has_indexer, is_recurrent):
        raise keys.wrong(types, "true for each layer with attention; shared selections of pools are not supported")
    return replace(index, pool=pool, top_k=top_k)


def _have_attention_layers(types: object, is_recurrent: Sequence[bool]) -> bool:
    """Whether all layers with attention are true in a list, which may continue with layers that predict tokens."""
    if not isinstance(types, list) or len(types) < len(is_recurrent):
        return False
    return all(kind or each == 1 for kind, each in zip(is_recurrent, types, strict=False))


def _read_index(keys: Keys, rope_dim: int, q_lora_rank: int | None, first: int) -> IndexSpec:
    if q_lora_rank is None:
        raise keys.refuse(f"blk.{first}.attn_q_a.weight is missing; the indexer computes its queries from its results")
    check_norm_eps(keys)
    sizes = read_index_sizes(keys, rope_dim)
    return IndexSpec(
        num_heads=sizes.num_heads,
        key_dim=sizes.key_dim,
        top_k=min(sizes.top_k, keys.whole("context_length")),
        pairs_apart=keys.architecture.index_pairs == "apart",
        has_indexer=True,
    )


def _indexed_layers(keys: Keys, num_layers: int) -> tuple[bool, ...]:
    """Which layers have an indexer of their own."""
    key = "attention.indexer.types"
    types = keys.get(key)
    if types is None:
        shared_from = keys.architecture.shared_index_context
        if shared_from is None or keys.whole("context_length") < shared_from:
            return (True,) * num_layers
        return tuple(layer < 2 or layer % 4 == 2 for layer in range(num_layers))
    if keys.architecture.shared_index_context is None:
        raise keys.refuse(f"{keys.full(key)}: layers of this architecture do not share an indexer's selection")
    if not isinstance(types, list) or len(types) < num_layers or not all(isinstance(each, bool) for each in types):
        raise keys.wrong(key, f"true or false for each of {num_layers} layers")
    if not types[0]:
        raise keys.wrong(key, "true for layer 0, because no layer below has an indexer")
    return tuple(types[:num_layers])


def _q_lora_rank(keys: Keys, first: int) -> int | None:
    plain, low = f"blk.{first}.attn_q.weight", f"blk.{first}.attn_q_a.weight"
    low_rank = keys.has_tensor(low)
    if low_rank == keys.has_tensor(plain):
        raise keys.refuse(f"expected exactly one of {plain} and {low}")
    return keys.whole("attention.q_lora_rank") if low_rank else None


def _mla_layout(keys: Keys, first: int) -> Literal["joint", "split"]:
    """How the projections of latent attention are stored."""
    # A file with both (some carry the joint tensor for older readers) is read in the layout that needs no transposing.
    joint, *split = (f"blk.{first}.attn_{name}.weight" for name in ("kv_b", "k_b", "v_b"))
    if all(map(keys.has_tensor, split)):
        return "split"
    if keys.has_tensor(joint):
        return "joint"
    raise keys.refuse(f"expected {joint}, or {split[0]} and {split[1]}")

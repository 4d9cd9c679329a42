"""Indexers, which select the positions, blocks of positions or entries that a token reads."""

from __future__ import annotations

import math
from typing import NamedTuple

from ballast.model.layers.grouped import BlockIndexSpec, GroupedSpec
from ballast.model.metadata.keys import LARGEST, Keys
from ballast.model.metadata.limits import MAX_HEADS

RATIOS_KEY = "attention.compress_ratios"
"""The tokens that share an index key or an entry, per layer; 0 for layers without."""
TOP_KEY, WIDTH_KEY = "attention.indexer.top_k", "attention.indexer.key_length"
_HEADS_KEY = "attention.indexer.head_count"
_POOLS = (2, 4, 8, 16)
_NORM_EPS_KEY, _NORM_EPS = "attention.layer_norm_epsilon", 1e-6


class IndexSizes(NamedTuple):
    """The sizes of an indexer, as files have them."""

    num_heads: int
    key_dim: int
    top_k: int


def read_index_sizes(keys: Keys, rope_dim: int, most_width: int = LARGEST) -> IndexSizes:
    """`rope_dim`: the entries of a key that are rotated. Raises ModelError for a key that is missing, senseless or
    absurd."""
    key_dim = keys.whole(WIDTH_KEY, most=most_width)
    if key_dim < rope_dim:
        raise keys.wrong(WIDTH_KEY, f"a whole number, at least {rope_dim}, the entries that are rotated")
    return IndexSizes(keys.whole(_HEADS_KEY, most=MAX_HEADS), key_dim, keys.whole(TOP_KEY))


def pooled_top_k(keys: Keys, key: str, pool: int) -> int:
    """Positions that are selected, whole pools of `pool` tokens that share an index key. `key`: of the pool. Raises
    ModelError for a pool that the cache or another size does not fit."""
    if pool not in _POOLS:
        choices = ", ".join(map(str, _POOLS))
        raise keys.wrong(key, f"pools of {choices} tokens, which divide a block of the cache")
    for other in (WIDTH_KEY, TOP_KEY):
        if keys.whole(other) % pool:
            raise keys.wrong(other, f"a multiple of {pool}, the tokens that share a key")
    # A context below top_k may end within a pool.
    return math.ceil(min(keys.whole(TOP_KEY), keys.whole("context_length")) / pool) * pool


def check_norm_eps(keys: Keys) -> None:
    """Refuse another epsilon of the norm of index keys than DeepSeek's code and llama.cpp have."""
    if keys.get(_NORM_EPS_KEY) is not None and not math.isclose(keys.number(_NORM_EPS_KEY), _NORM_EPS, rel_tol=1e-5):
        raise keys.wrong(_NORM_EPS_KEY, f"{_NORM_EPS:g}; another epsilon of the norm of index keys is not supported")


def read_block_index(keys: Keys, mixer: GroupedSpec, layer: int, pool: int) -> BlockIndexSpec | None:
    """The indexer of a layer with attention whose blocks have `pool` positions; None for 0: it attends to all
    positions. Raises ModelError for a key that is missing, senseless or absurd."""
    if pool == 0:
        if keys.has_tensor(f"blk.{layer}.indexer.q_proj.weight"):
            raise keys.refuse(f"{keys.full(RATIOS_KEY)} is 0 in layer {layer}, which has an indexer; expected a ratio")
        return None
    top_k = pooled_top_k(keys, RATIOS_KEY, pool)
    sizes = read_index_sizes(keys, mixer.rope.dim)
    return BlockIndexSpec(sizes.num_heads, sizes.key_dim, top_k, pool)

"""The indexer of grouped attention that selects blocks of positions."""

from __future__ import annotations

from ballast.errors import shown
from ballast.model.layers.grouped import BlockIndexSpec, GroupedSpec
from ballast.model.metadata.keys import Keys, is_whole

_RATIOS_KEY, _TOP_KEY, _KEY_KEY = (
    "attention.compress_ratios",
    "attention.indexer.top_k",
    "attention.indexer.key_length",
)
_HEADS_KEY = "attention.indexer.head_count"
_POOLS = (2, 4, 8, 16)
_MAX_HEADS = 1024
"""Far above any model's. Bounds what a step allocates."""


def read_block_index(keys: Keys, mixer: GroupedSpec, layer: int) -> BlockIndexSpec | None:
    """The indexer of a layer with attention; None if it attends to all positions. Raises ModelError for a key that is
    missing, senseless or absurd."""
    if not keys.architecture.pools_index_keys:
        return None
    pool = _ratio(keys, layer)
    if pool == 0:
        if keys.has_tensor(f"blk.{layer}.indexer.q_proj.weight"):
            raise keys.refuse(f"{keys.full(_RATIOS_KEY)} is 0 in layer {layer}, which has an indexer; expected a ratio")
        return None
    if pool not in _POOLS:
        choices = ", ".join(map(str, _POOLS))
        raise keys.wrong(_RATIOS_KEY, f"0 or one of {choices}, which divide a block of the cache, for each layer")
    key_dim, top_k, num_heads = keys.whole(_KEY_KEY), keys.whole(_TOP_KEY), keys.whole(_HEADS_KEY)
    for key, value in ((_KEY_KEY, key_dim), (_TOP_KEY, top_k)):
        if value % pool:
            raise keys.wrong(key, f"a multiple of {pool}, the tokens that share a key")
    if key_dim < mixer.rope.dim:
        raise keys.wrong(_KEY_KEY, f"a whole number, at least {mixer.rope.dim}, the entries that are rotated")
    if num_heads > _MAX_HEADS:
        raise keys.wrong(_HEADS_KEY, f"a whole number, at least 1 and at most {_MAX_HEADS}")
    # A context below top_k may end within a block.
    return BlockIndexSpec(num_heads, key_dim, -(-min(top_k, keys.whole("context_length")) // pool) * pool, pool)


def _ratio(keys: Keys, layer: int) -> int:
    """The positions of a block in a layer; 0: it has no indexer."""
    ratios = keys.get(_RATIOS_KEY)
    if ratios is None:
        return 0
    if is_whole(ratios, 0):
        return ratios
    if not isinstance(ratios, list) or len(ratios) <= layer or not all(is_whole(each, 0) for each in ratios):
        raise keys.refuse(
            f"{keys.full(_RATIOS_KEY)}={shown(ratios)}; expected a whole number for each layer, 0 for those without"
        )
    return int(ratios[layer])

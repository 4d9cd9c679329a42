"""Reads attention to compressed entries (DeepSeek-V4) from a file's keys."""

from __future__ import annotations

from dataclasses import replace

from ballast.model.layers.compressed import CompressedSpec, EntryIndexSpec
from ballast.model.layers.positions import RopeSpec
from ballast.model.metadata.keys import Keys
from ballast.model.metadata.layers import Widths
from ballast.model.metadata.limits import MAX_HEADS, check_state
from ballast.model.metadata.mixers.indexer import RATIOS_KEY, WIDTH_KEY, read_index_sizes
from ballast.model.metadata.positions import MAX_THETA

_INDEXED_RATIO, _PLAIN_RATIO = 4, 128
"""Tokens per entry where an indexer selects entries, and where all are read."""
_WIDTH_MULTIPLE = 16
_MAX_WIDTH = 4096
_MAX_WINDOW = 1 << 16
# Far above any model's. They bound what a step and a state take.


def read_compressed(keys: Keys, num_layers: int, widths: Widths, rope: RopeSpec) -> tuple[CompressedSpec, ...]:
    """Each layer's. `rope`: the rotation without its dimensions; YaRN applies to layers with entries alone. Raises
    ModelError for a key that is missing, senseless or absurd."""
    ratios = _ratios(keys, num_layers)
    head_dim, rope_dim = _head_dims(keys)
    groups = keys.whole("attention.output_group_count", most=MAX_HEADS)
    if widths.num_heads > MAX_HEADS or widths.num_heads % groups:
        raise keys.wrong("attention.output_group_count", f"a divisor of {widths.num_heads} heads, at most {MAX_HEADS}")
    plain = CompressedSpec(
        num_heads=widths.num_heads,
        head_dim=head_dim,
        q_lora_rank=keys.whole("attention.q_lora_rank"),
        rope=replace(rope, dim=rope_dim, yarn=None),
        window=keys.whole("attention.sliding_window", most=_MAX_WINDOW),
        ratio=0,
        output_groups=groups,
        output_rank=keys.whole("attention.output_lora_rank"),
    )
    # The factor of cosines and sines that YaRN has elsewhere is not applied.
    yarn = None if rope.yarn is None else replace(rope.yarn, attention_factor=1.0)
    theta = keys.number("attention.compress_rope_freq_base", above=1.0, most=MAX_THETA)
    entries = replace(plain, rope=replace(rope, dim=rope_dim, theta=theta, yarn=yarn))
    index = _read_index(keys, rope_dim) if _INDEXED_RATIO in ratios else None
    by_ratio = {
        0: plain,
        _INDEXED_RATIO: replace(entries, ratio=_INDEXED_RATIO, index=index),
        _PLAIN_RATIO: replace(entries, ratio=_PLAIN_RATIO),
    }
    mixers = tuple(by_ratio[ratio] for ratio in ratios)
    check_state(keys, mixers, f"{keys.full('attention.sliding_window')}={plain.window} with keys of {head_dim} numbers")
    return mixers


def _ratios(keys: Keys, num_layers: int) -> tuple[int, ...]:
    """Tokens of an entry in each layer; 0 for those without entries."""
    ratios = keys.each(RATIOS_KEY, num_layers, minimum=0)
    allowed = (0, _INDEXED_RATIO, _PLAIN_RATIO)
    if not set(ratios) <= set(allowed):
        raise keys.wrong(RATIOS_KEY, f"one of {', '.join(map(str, allowed))} for each of {num_layers} layers")
    if not any(ratios):
        raise keys.wrong(RATIOS_KEY, f"{_INDEXED_RATIO} or {_PLAIN_RATIO} for one layer at least")
    for layer, ratio in enumerate(ratios):
        name = f"blk.{layer}.attn_compressor_kv.weight"
        if ratio == 0 and keys.has_tensor(name):
            raise keys.refuse(
                f"{keys.full(RATIOS_KEY)} is 0 in layer {layer}, which has {name}; "
                f"expected {_INDEXED_RATIO} or {_PLAIN_RATIO}, convert the model again"
            )
    return ratios


def _head_dims(keys: Keys) -> tuple[int, int]:
    """Of a head, and of its rotated numbers."""
    if keys.whole("attention.head_count_kv", default=1) != 1:
        raise keys.wrong("attention.head_count_kv", "1, because keys have one head")
    head_dim = keys.whole("attention.key_length", most=_MAX_WIDTH)
    if head_dim % _WIDTH_MULTIPLE:
        raise keys.wrong("attention.key_length", f"a multiple of {_WIDTH_MULTIPLE}")
    if keys.whole("attention.value_length", default=head_dim) != head_dim:
        raise keys.wrong("attention.value_length", f"{head_dim}, because keys are values as well")
    rope_dim = keys.whole("rope.dimension_count")
    if rope_dim > head_dim or rope_dim % 2:
        raise keys.wrong("rope.dimension_count", f"an even number, at most {head_dim}")
    return head_dim, rope_dim


def _read_index(keys: Keys, rope_dim: int) -> EntryIndexSpec:
    sizes = read_index_sizes(keys, rope_dim, most_width=_MAX_WIDTH)
    if sizes.key_dim % _WIDTH_MULTIPLE:
        raise keys.wrong(WIDTH_KEY, f"a multiple of {_WIDTH_MULTIPLE}")
    most_entries = max(1, keys.whole("context_length") // _INDEXED_RATIO)
    return EntryIndexSpec(sizes.num_heads, sizes.key_dim, min(sizes.top_k, most_entries))

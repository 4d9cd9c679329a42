"""Reads attention to compressed entries (DeepSeek-V4) from a file's keys."""

from __future__ import annotations

from dataclasses import replace

from ballast.model.layers.compressed import CompressedSpec, EntryIndexSpec
from ballast.model.layers.positions import RopeSpec
from ballast.model.metadata.keys import Keys, is_whole
from ballast.model.metadata.layers import Widths
from ballast.model.metadata.positions import MAX_THETA

_RATIOS_KEY = "attention.compress_ratios"
_INDEXED_RATIO, _PLAIN_RATIO = 4, 128
"""Tokens per entry where an indexer selects entries, and where all are read."""
_WIDTH_MULTIPLE = 16
_MAX_HEADS = 1024
_MAX_WIDTH = 4096
_MAX_WINDOW = 1 << 16
_MAX_STATE_BYTES = 2 << 30
# Far above any model's. They bound what a step and a state take.


def read_compressed(keys: Keys, num_layers: int, widths: Widths, rope: RopeSpec) -> tuple[CompressedSpec, ...]:
    """Each layer's. `rope`: the rotation without its dimensions; YaRN applies to layers with entries alone. Raises
    ModelError for a key that is missing, senseless or absurd."""
    ratios = _ratios(keys, num_layers)
    head_dim, rope_dim = _head_dims(keys)
    groups = _bounded(keys, "attention.output_group_count", _MAX_HEADS)
    if widths.num_heads > _MAX_HEADS or widths.num_heads % groups:
        raise keys.wrong("attention.output_group_count", f"a divisor of {widths.num_heads} heads, at most {_MAX_HEADS}")
    plain = CompressedSpec(
        num_heads=widths.num_heads,
        head_dim=head_dim,
        q_lora_rank=keys.whole("attention.q_lora_rank"),
        rope=replace(rope, dim=rope_dim, yarn=None),
        window=_bounded(keys, "attention.sliding_window", _MAX_WINDOW),
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
    _check_state(keys, mixers)
    return mixers


def _ratios(keys: Keys, num_layers: int) -> list[int]:
    """The list may continue with layers that predict tokens."""
    ratios = keys.get(_RATIOS_KEY)
    allowed = (0, _INDEXED_RATIO, _PLAIN_RATIO)
    is_list = isinstance(ratios, list) and len(ratios) >= num_layers
    if not is_list or not all(is_whole(ratio, 0) and ratio in allowed for ratio in ratios[:num_layers]):
        raise keys.wrong(_RATIOS_KEY, f"one of {', '.join(map(str, allowed))} for each of {num_layers} layers")
    if not any(ratios[:num_layers]):
        raise keys.wrong(_RATIOS_KEY, f"{_INDEXED_RATIO} or {_PLAIN_RATIO} for one layer at least")
    return list(ratios[:num_layers])


def _head_dims(keys: Keys) -> tuple[int, int]:
    """Of a head, and of its rotated numbers."""
    if keys.whole("attention.head_count_kv", default=1) != 1:
        raise keys.wrong("attention.head_count_kv", "1, because keys have one head")
    head_dim = _bounded(keys, "attention.key_length", _MAX_WIDTH)
    if head_dim % _WIDTH_MULTIPLE:
        raise keys.wrong("attention.key_length", f"a multiple of {_WIDTH_MULTIPLE}")
    if keys.whole("attention.value_length", default=head_dim) != head_dim:
        raise keys.wrong("attention.value_length", f"{head_dim}, because keys are values as well")
    rope_dim = keys.whole("rope.dimension_count")
    if rope_dim > head_dim or rope_dim % 2:
        raise keys.wrong("rope.dimension_count", f"an even number, at most {head_dim}")
    return head_dim, rope_dim


def _read_index(keys: Keys, rope_dim: int) -> EntryIndexSpec:
    key_dim = _bounded(keys, "attention.indexer.key_length", _MAX_WIDTH)
    if key_dim % _WIDTH_MULTIPLE or key_dim < rope_dim:
        expected = f"a multiple of {_WIDTH_MULTIPLE}, at least {rope_dim}, the rotated dimensions"
        raise keys.wrong("attention.indexer.key_length", expected)
    return EntryIndexSpec(
        num_heads=_bounded(keys, "attention.indexer.head_count", _MAX_HEADS),
        key_dim=key_dim,
        top_k=min(keys.whole("attention.indexer.top_k"), max(1, keys.whole("context_length") // _INDEXED_RATIO)),
    )


def _check_state(keys: Keys, mixers: tuple[CompressedSpec, ...]) -> None:
    state_bytes = sum(state.num_bytes for mixer in mixers for state in mixer.states)
    if state_bytes > _MAX_STATE_BYTES:
        raise keys.wrong(
            "attention.sliding_window",
            f"windows whose keys take at most {_MAX_STATE_BYTES} bytes per sequence, not {state_bytes}",
        )


def _bounded(keys: Keys, key: str, most: int) -> int:
    value = keys.whole(key)
    if value > most:
        raise keys.wrong(key, f"a whole number, at least 1 and at most {most}")
    return value

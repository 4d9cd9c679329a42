"""Reads grouped-query attention, which may differ in each layer, from a file's keys and tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ballast.model.layers.grouped import QKV_BIAS, GroupedSpec
from ballast.model.layers.positions import RopeSpec
from ballast.model.metadata.keys import Keys, is_whole
from ballast.model.metadata.layers import Widths
from ballast.model.metadata.mixers.indexer import RATIOS_KEY, read_block_index
from ballast.model.metadata.positions import MAX_THETA
from ballast.model.tensors import ROPE_FACTORS


def read_grouped(
    keys: Keys, widths: Widths, rope: RopeSpec, value_scale: float, is_recurrent: Sequence[bool]
) -> Iterator[tuple[int, GroupedSpec]]:
    """That of each layer with attention, with the layer's index. `rope`: that of layers without a window, without its
    dimensions. Raises ModelError for a key that is missing, senseless or absurd, or that contradicts a tensor."""
    num_layers = len(is_recurrent)
    windows = {layer: window for layer, window in enumerate(_windows(keys, num_layers)) if not is_recurrent[layer]}
    num_layers = max(windows) + 1
    heads, kv_heads = (keys.each(f"attention.{key}", num_layers) for key in ("head_count", "head_count_kv"))
    pools, by_heads = _pools(keys, num_layers), max(1, widths.hidden // widths.num_heads)
    for layer, window in windows.items():
        if heads[layer] % kv_heads[layer]:
            problem = f"{heads[layer]} heads share {kv_heads[layer]} of the cache; expected equal groups"
            raise keys.refuse(f"{keys.full('attention.head_count')}, layer {layer}: {problem}")
        head_dim, v_dim = (
            _width(keys, _own(keys, window, key), f"blk.{layer}.{tensor}.weight", kv_heads[layer], by_heads)
            for key, tensor in (("attention.key_length", "attn_k"), ("attention.value_length", "attn_v"))
        )
        mixer = GroupedSpec(
            num_heads=heads[layer],
            num_kv_heads=kv_heads[layer],
            head_dim=head_dim,
            v_dim=v_dim,
            rope=_rope(keys, window, head_dim, rope),
            window=window,
            norms_all_heads=keys.architecture.norms_all_heads,
            gates_queries=keys.architecture.gates_queries,
            fuses_qkv=_fuses_qkv(keys, layer),
            value_scale=value_scale,
            gate=keys.architecture.gate,
        )
        index = read_block_index(keys, mixer, layer, pools[layer])
        mixer = replace(mixer, gates_entries=_gates_entries(keys, mixer, layer), index=index)
        first = next(each for each in windows if windows[each] == window)
        yield layer, replace(mixer, options=_options(keys, mixer, first, widths.hidden))


def _pools(keys: Keys, num_layers: int) -> tuple[int, ...]:
    """The positions that share an index key in each layer; 0: the layer has no indexer."""
    if not keys.architecture.pools_index_keys or keys.get(RATIOS_KEY) is None:
        return (0,) * num_layers
    return keys.each(RATIOS_KEY, num_layers, minimum=0)


def _width(keys: Keys, key: str, tensor: str, num_heads: int, default: int) -> int:
    """The width of a head. `tensor` has the rows of `num_heads` heads; `default` is meant without the key."""
    width = keys.whole(key, default=default)
    info = keys.gguf.tensors.get(tensor)
    if keys.get(key) is None and info is not None and info.shape[0] != num_heads * width:
        raise keys.refuse(
            f"{keys.full(key)} is missing, which means {width}, and {tensor} has {info.shape[0]} rows for "
            f"{num_heads} heads; expected {info.shape[0] / num_heads:g}, convert the model again"
        )
    return width


def _own(keys: Keys, window: int | None, key: str) -> str:
    """The key that a layer's value is read from. Layers with a window may have one of their own."""
    return key if window is None else keys.first(f"{key}_swa", key)


def _rope(keys: Keys, window: int | None, head_dim: int, rope: RopeSpec) -> RopeSpec:
    """That of a layer with this window. `rope`: that of layers without a window, without its dimensions."""
    key = _own(keys, window, "rope.dimension_count")
    dim = keys.whole(key, default=head_dim)
    if dim > head_dim or dim % 2:
        raise keys.refuse(
            f"{keys.full(key)}: heads of {head_dim} with {dim} rotated dimensions; "
            "expected an even number of rotated dimensions, at most the head's"
        )
    if keys.architecture.names_rope_sections:
        _check_sections(keys, dim)
    if window is not None:
        yarn = rope.yarn if keys.architecture.yarn_in_windows else None
        return replace(rope, dim=dim, theta=_theta(keys, window, rope.theta), yarn=yarn)
    if not keys.architecture.halves_full_rope:
        return replace(rope, dim=dim)
    if dim % 4:
        raise keys.wrong(key, "a multiple of 4, half of which layers without a window rotate")
    return replace(rope, dim=dim // 2, has_factors=keys.has_tensor(ROPE_FACTORS))


def _check_sections(keys: Keys, dim: int) -> None:
    """Refuse sections that do not divide the rotated pairs. Which pair belongs to which does not matter in a text."""
    key = "rope.dimension_sections"
    sections = keys.get(key)
    if not isinstance(sections, list) or not all(is_whole(each, 0) for each in sections) or 2 * sum(sections) != dim:
        raise keys.wrong(key, f"whole numbers that add up to {dim // 2}, the pairs that are rotated")


def _theta(keys: Keys, window: int | None, theta: float) -> float:
    """The base of a layer's rotation. `theta`: that of layers without a window."""
    key = _own(keys, window, "rope.freq_base")
    return keys.number(key, above=1.0, most=MAX_THETA) if key.endswith("_swa") else theta


def _fuses_qkv(keys: Keys, layer: int) -> bool:
    """Whether the matrices of a layer's queries, keys and values are one tensor, which has no biases."""
    if QKV_BIAS in keys.architecture.needed_options or not keys.has_tensor(f"blk.{layer}.attn_qkv.weight"):
        return False
    separate = ("attn_q.weight", "attn_q.bias", "attn_k.bias", "attn_v.bias")
    return not any(keys.has_tensor(f"blk.{layer}.{name}") for name in separate)


def _gates_entries(keys: Keys, mixer: GroupedSpec, layer: int) -> bool:
    """Whether a layer has a gate for each entry of its heads' outputs, which the number of gates says."""
    name = f"blk.{layer}.attn_gate.weight"
    if not keys.architecture.may_gate_entries or not keys.has_tensor(name):
        return False
    shape, entries = keys.gguf.tensors[name].shape, mixer.num_heads * mixer.v_dim
    if shape[:1] not in ((mixer.num_heads,), (entries,)):
        expected = f"{mixer.num_heads} rows, one per head, or {entries}, one per entry of heads"
        raise keys.refuse(f"found shape {shape}; expected {expected}", name)
    return shape[0] == entries


def _windows(keys: Keys, num_layers: int) -> Iterator[int | None]:
    """Of each layer, the positions that a token sees; None for all."""
    rule, window_key, key = keys.architecture.windows, "attention.sliding_window", "attention.sliding_window_pattern"
    if rule is None or (rule.is_optional and keys.get(window_key) in (None, 0)):
        windowed = _windowed_key(keys)
        if rule is not None and windowed is not None and keys.get(window_key) is None:
            raise keys.wrong(window_key, f"the window's size, because {windowed} is set, or 0")
        yield from [None] * num_layers
        return
    window = keys.whole(window_key)
    pattern = keys.get(key)
    expected = f"true or false for each of {num_layers} layers"
    if isinstance(pattern, list):
        if len(pattern) < num_layers or any(each not in (0, 1) for each in pattern):
            raise keys.wrong(key, f"{expected}, or a period" if rule.period else expected)
        yield from (window if has_window else None for has_window in pattern[:num_layers])
        return
    if rule.period is None:
        raise keys.wrong(key, expected)
    period = keys.whole(key, default=rule.period)
    yield from (window if rule.has_window(layer, period) else None for layer in range(num_layers))


def _windowed_key(keys: Keys) -> str | None:
    """The first key of the file that concerns only layers with a window."""
    prefix = keys.full("")
    return next((key for key in keys.gguf.metadata if key.startswith(prefix) and key.endswith("_swa")), None)


def _options(keys: Keys, mixer: GroupedSpec, first: int, hidden: int) -> frozenset[str]:
    """Options that the architecture needs, and options whose first tensor is in layer `first`, the first one with the
    same window."""
    firsts: dict[str, str] = {}
    for tensor in mixer.declared(hidden):
        if tensor.option is not None:
            firsts.setdefault(tensor.option, tensor.name)
    found = {option for option, name in firsts.items() if keys.has_tensor(f"blk.{first}.{name}")}
    of_windows = frozenset() if mixer.window is None else keys.architecture.windowed_options
    return keys.architecture.needed_options | of_windows | found

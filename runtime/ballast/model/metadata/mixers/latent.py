"""Determines a file's attention from its keys and tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from ballast.families.family import Dimensions
from ballast.model.layers.grouped import QKV_BIAS, GroupedSpec
from ballast.model.layers.latent import IndexSpec, LatentSpec
from ballast.model.layers.layer import Mixer
from ballast.model.layers.positions import RopeSpec
from ballast.model.metadata.block_index import read_block_index
from ballast.model.metadata.compressed import read_compressed
from ballast.model.metadata.delta_net import read_delta_net, read_kimi_delta, recurrent_layers
from ballast.model.metadata.keys import Keys, is_whole
from ballast.model.metadata.layers import Layers, Widths
from ballast.model.metadata.positions import MAX_THETA
from ballast.model.metadata.settings import Settings
from ballast.model.metadata.value_scale import read_value_scale
from ballast.model.tensors import ROPE_FACTORS

_POOLS = (2, 4, 8, 16)
_MAX_INDEX_HEADS = 1024
"""Far above any model's. Bounds what a step allocates."""


class LatentDims(NamedTuple):
    """The sizes of latent attention, which also tell known models apart."""

    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int


def dimensions_of(keys: Keys, layers: Layers, widths: Widths) -> Dimensions | None:
    """The dimensions that identify known models; None if none are known by them."""
    if keys.architecture.attention != "latent":
        return None
    first = recurrent_layers(keys, layers.num_layers).index(False)
    return Dimensions(**_latent_dims(keys, first)._asdict(), **widths._asdict())


def read_mixers(settings: Settings, layers: Layers, widths: Widths, rope: RopeSpec) -> tuple[Mixer, ...]:
    """Each layer's, of the architecture's kind. `rope`: without its dimensions. Raises ModelError for a key that is
    missing or senseless."""
    keys = settings.keys
    if keys.architecture.attention == "compressed":
        return read_compressed(keys, layers.num_layers, widths, rope)
    is_recurrent = recurrent_layers(keys, layers.num_layers)
    if keys.architecture.attention == "latent":
        latent = _read_latent(keys, layers, widths, rope, is_recurrent.index(False))
        if not any(is_recurrent):
            return tuple(latent)
        kimi_delta = read_kimi_delta(keys, is_recurrent, widths.num_heads)
        return tuple(kimi_delta if kind else mixer for kind, mixer in zip(is_recurrent, latent, strict=True))
    value_scale = read_value_scale(settings, widths) if keys.architecture.scales_values else 1.0
    windows = {
        layer: window for layer, window in enumerate(_windows(keys, layers.num_layers)) if not is_recurrent[layer]
    }
    grouped = _read_grouped(keys, windows, widths, rope)
    mixers: dict[int, Mixer] = {layer: replace(mixer, value_scale=value_scale) for layer, mixer in grouped}
    if any(is_recurrent):
        mixers = dict.fromkeys(range(layers.num_layers), read_delta_net(keys, is_recurrent)) | mixers
    return tuple(mixers[layer] for layer in range(layers.num_layers))


def _latent_dims(keys: Keys, first: int) -> LatentDims:
    """`first`: the first layer with attention."""
    rope_dim = keys.whole("rope.dimension_count", minimum=1 if keys.architecture.rotates else 0)
    # Files of the split layout describe the latent in key_length and the heads in key_length_mla.
    head_dim = keys.whole(keys.first("attention.key_length_mla", "attention.key_length"))
    if head_dim <= rope_dim or rope_dim % 2:
        raise keys.refuse(
            f"heads of {head_dim} with {rope_dim} rotated dimensions; "
            "expected an even number of rotated dimensions, fewer than the head has"
        )
    if rope_dim and keys.architecture.index_pairs is not None and not keys.architecture.rotates:
        raise keys.wrong("rope.dimension_count", "0, because positions rotate neither attention nor its indexer")
    return LatentDims(
        q_lora_rank=_q_lora_rank(keys, first),
        kv_lora_rank=keys.whole("attention.kv_lora_rank"),
        nope_dim=head_dim - rope_dim,
        rope_dim=rope_dim,
        v_dim=keys.whole(keys.first("attention.value_length_mla", "attention.value_length")),
    )


def _read_latent(keys: Keys, layers: Layers, widths: Widths, rope: RopeSpec, first: int) -> Iterator[LatentSpec]:
    """Each layer's. `first`: the first layer with attention."""
    dims = _latent_dims(keys, first)
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
        yield from [replace(mixer, index=_pooled(keys, index, layers.num_layers))] * layers.num_layers
        return
    for has_indexer in _indexed_layers(keys, layers.num_layers):
        yield replace(mixer, index=replace(index, has_indexer=has_indexer))


def _pooled(keys: Keys, index: IndexSpec, num_layers: int) -> IndexSpec:
    """With the tokens that share an index key, in files all of whose layers with attention have an indexer."""
    key, tail, types = (f"attention.indexer.{name}" for name in ("kpool", "kpool_select_tail", "types"))
    pool = keys.whole(key)
    if pool not in _POOLS:
        raise keys.wrong(key, f"one of {', '.join(map(str, _POOLS))}, which divide a block of the cache")
    for other in ("attention.indexer.key_length", "attention.indexer.top_k"):
        if keys.whole(other) % pool:
            raise keys.wrong(other, f"a multiple of {pool}, the tokens that share a key")
    if keys.get(tail) not in (None, True):
        raise keys.wrong(tail, "true, because a token's own pool is otherwise hidden")
    has_indexer = keys.get(types)
    if has_indexer is not None and not _have_attention_layers(has_indexer, recurrent_layers(keys, num_layers)):
        raise keys.wrong(types, "true for each layer with attention; shared selections of pools are not supported")
    # A context below top_k may end within a pool.
    return replace(index, pool=pool, top_k=-(-index.top_k // pool) * pool)


def _have_attention_layers(types: object, is_recurrent: Sequence[bool]) -> bool:
    """Whether all layers with attention are true in a list, which may continue with layers that predict tokens."""
    if not isinstance(types, list) or len(types) < len(is_recurrent):
        return False
    return all(kind or each == 1 for kind, each in zip(is_recurrent, types, strict=False))


def _read_index(keys: Keys, rope_dim: int, q_lora_rank: int | None, first: int) -> IndexSpec:
    if q_lora_rank is None:
        raise keys.refuse(f"blk.{first}.attn_q_a.weight is missing; the indexer computes its queries from its results")
    key_dim = keys.whole("attention.indexer.key_length")
    if key_dim < rope_dim:
        raise keys.refuse(
            f"index keys of {key_dim} with {rope_dim} rotated dimensions; expected at most as many as a key has"
        )
    num_heads = keys.whole("attention.indexer.head_count")
    if num_heads > _MAX_INDEX_HEADS:
        raise keys.wrong("attention.indexer.head_count", f"a whole number, at least 1 and at most {_MAX_INDEX_HEADS}")
    return IndexSpec(
        num_heads=num_heads,
        key_dim=key_dim,
        top_k=min(keys.whole("attention.indexer.top_k"), keys.whole("context_length")),
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


def _read_grouped(
    keys: Keys, windows: Mapping[int, int | None], widths: Widths, rope: RopeSpec
) -> Iterator[tuple[int, GroupedSpec]]:
    """Each layer's, with its index; `windows`: of each layer with attention. `rope`: that of layers without a window,
    without its dimensions."""
    num_layers = max(windows) + 1
    heads, kv_heads = (keys.each(f"attention.{key}", num_layers) for key in ("head_count", "head_count_kv"))
    by_heads = max(1, widths.hidden // widths.num_heads)
    for layer, window in windows.items():
        if heads[layer] % kv_heads[layer]:
            problem = f"{heads[layer]} heads share {kv_heads[layer]} of the cache; expected equal groups"
            raise keys.refuse(f"{keys.full('attention.head_count')}, layer {layer}: {problem}")
        head_dim = keys.whole(_own(keys, window, "attention.key_length"), default=by_heads)
        mixer = GroupedSpec(
            num_heads=heads[layer],
            num_kv_heads=kv_heads[layer],
            head_dim=head_dim,
            v_dim=keys.whole(_own(keys, window, "attention.value_length"), default=by_heads),
            rope=_rope(keys, window, head_dim, rope),
            window=window,
            norms_all_heads=keys.architecture.norms_all_heads,
            gates_queries=keys.architecture.gates_queries,
            fuses_qkv=_fuses_qkv(keys, layer),
            gate=keys.architecture.gate,
        )
        mixer = replace(
            mixer, gates_entries=_gates_entries(keys, mixer, layer), index=read_block_index(keys, mixer, layer)
        )
        first = next(each for each in windows if windows[each] == window)
        yield layer, replace(mixer, options=_options(keys, mixer, first, widths.hidden))


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

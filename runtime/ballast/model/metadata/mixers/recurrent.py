"""Determines which layers of a file are linear attention with recurrent state, and their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from ballast.errors import shown
from ballast.model.layers.delta_net import DeltaNetSpec, MatrixLayout
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.layer import RecurrentMixer
from ballast.model.metadata.keys import Keys, is_number
from ballast.model.metadata.limits import MAX_HEADS, MAX_TAPS, check_state

_LAYERS_KEY, _INTERVAL_KEY = "attention.recurrent_layers", "full_attention_interval"
_HEADS_KEY = "attention.head_count_kv"
"""In files of Kimi Linear, 0 for layers with recurrent state."""
_BOUND_KEY = "kda.gate_lower_bound"
_USUAL_INTERVAL = 4
"""In files that name neither layers nor interval, every fourth layer is attention."""
_MAX_WIDTH = 512
_MAX_BOUND = 80.0
# Far above any model's. They bound what a state takes.
_WIDTH_MULTIPLE = 32
"""Widths of heads are multiples of it; the kernels compute as many columns of a state together."""


def recurrent_layers(keys: Keys, num_layers: int) -> tuple[bool, ...]:
    """For each layer, whether it has recurrent state instead of attention. Raises ModelError for senseless keys, and
    for keys that contradict the tensors of a layer."""
    if keys.architecture.kimi_delta:
        heads = keys.each(_HEADS_KEY, num_layers, minimum=0)
        layers, key, value = tuple(each == 0 for each in heads), _HEADS_KEY, shown(keys.get(_HEADS_KEY))
    elif keys.architecture.delta_net is None:
        return (False,) * num_layers
    elif keys.get(_LAYERS_KEY) is None:
        interval = keys.whole(_INTERVAL_KEY, default=_USUAL_INTERVAL)
        layers = tuple((layer + 1) % interval != 0 for layer in range(num_layers))
        key, value = _INTERVAL_KEY, str(interval)
    else:
        found = keys.get(_LAYERS_KEY)
        if not isinstance(found, list) or len(found) < num_layers or any(each not in (0, 1) for each in found):
            raise keys.wrong(_LAYERS_KEY, f"true or false for each of {num_layers} layers")
        layers, key, value = tuple(bool(each) for each in found[:num_layers]), _LAYERS_KEY, shown(found)
    named = f"{keys.full(key)}={value}"
    if all(layers):
        raise keys.refuse(f"{named}: no layer has attention; expected at least one that has")
    _check_tensors(keys, layers, named)
    return layers


def _check_tensors(keys: Keys, is_recurrent: Sequence[bool], named: str) -> None:
    """Refuse a layer with a tensor of the other kind."""
    of_attention = "attn_kv_a_mqa.weight" if keys.architecture.attention == "latent" else "attn_k.weight"
    for layer, kind in enumerate(is_recurrent):
        name = f"blk.{layer}.{of_attention if kind else 'ssm_a'}"
        if keys.has_tensor(name):
            found, expected = ("recurrent state", "attention") if kind else ("attention", "recurrent state")
            raise keys.refuse(
                f"{named} gives layer {layer} {found}, and the file has {name}; expected {expected}, "
                "convert the model again"
            )


def read_delta_net(keys: Keys, is_recurrent: Sequence[bool]) -> DeltaNetSpec:
    """The recurrent layers'; `is_recurrent`: of each layer. Raises ModelError for a key that is missing, senseless or
    absurd."""
    num_heads = keys.whole("ssm.time_step_rank", most=MAX_HEADS)
    num_key_heads = keys.whole("ssm.group_count", most=MAX_HEADS)
    if num_heads % num_key_heads:
        raise keys.wrong("ssm.group_count", f"a divisor of ssm.time_step_rank, which is {num_heads}")
    width = keys.whole("ssm.state_size", most=_MAX_WIDTH)
    if width % _WIDTH_MULTIPLE:
        raise keys.wrong("ssm.state_size", f"a multiple of {_WIDTH_MULTIPLE}")
    if keys.whole("ssm.inner_size") != num_heads * width:
        raise keys.wrong("ssm.inner_size", f"{num_heads * width}, ssm.time_step_rank times ssm.state_size")
    taps = keys.whole("ssm.conv_kernel", minimum=2, most=MAX_TAPS)
    first = f"blk.{is_recurrent.index(True)}"
    mixer = DeltaNetSpec(
        num_heads=num_heads,
        num_key_heads=num_key_heads,
        key_dim=width,
        v_dim=width,
        conv_taps=taps,
        heads_alternate=keys.architecture.delta_net == "alternating",
        gate=keys.architecture.delta_gate,
        product_layout=_layout(keys, first, merged="attn_qkv_gate", grouped="ssm_in", default="split"),
        beta_layout=_layout(keys, first, merged="ssm_beta_alpha", split="ssm_beta", default="grouped"),
    )
    _check_size(keys, mixer, is_recurrent, f"{keys.full('ssm.state_size')}={width}")
    return mixer


def _layout(keys: Keys, layer: str, default: MatrixLayout, **stems: str) -> MatrixLayout:
    """The layout whose tensor a layer has. `stems`: layout → the name of a tensor that only this layout has."""
    layouts: tuple[MatrixLayout, ...] = get_args(MatrixLayout)
    found = (each for each in layouts if each in stems and keys.has_tensor(f"{layer}.{stems[each]}.weight"))
    return next(found, default)


def read_kimi_delta(keys: Keys, is_recurrent: Sequence[bool], num_heads: int) -> KimiDeltaSpec:
    """The recurrent layers' of Kimi Linear; `is_recurrent`: of each layer. Raises ModelError as `read_delta_net`."""
    if keys.get(_BOUND_KEY) is not None and not keys.architecture.bounds_decays:
        raise keys.refuse(f"{keys.full(_BOUND_KEY)}={shown(keys.get(_BOUND_KEY))}: bounded decays are not supported")
    if num_heads > MAX_HEADS:
        raise keys.wrong("attention.head_count", f"a whole number, at least 1 and at most {MAX_HEADS}")
    width = keys.whole("kda.head_dim", most=_MAX_WIDTH)
    if width % _WIDTH_MULTIPLE:
        raise keys.wrong("kda.head_dim", f"a multiple of {_WIDTH_MULTIPLE}")
    taps = keys.whole("ssm.conv_kernel", minimum=2, most=MAX_TAPS)
    mixer = KimiDeltaSpec(num_heads, width, taps, _lower_bound(keys))
    _check_size(keys, mixer, is_recurrent, f"{keys.full('kda.head_dim')}={width}")
    return mixer


def _lower_bound(keys: Keys) -> float:
    """Of the logarithms of decays; 0 for none."""
    bound = keys.get(_BOUND_KEY)
    if bound is None:
        return 0.0
    if not is_number(bound) or not -_MAX_BOUND <= bound < 0:
        raise keys.wrong(_BOUND_KEY, f"a number below 0, at least {-_MAX_BOUND:g}")
    return float(bound)


def _check_size(keys: Keys, mixer: RecurrentMixer, is_recurrent: Sequence[bool], named: str) -> None:
    """Refuse a state that no model has. `named`: the key of its width, with the value."""
    num_layers = sum(is_recurrent)
    check_state(keys, [mixer] * num_layers, f"{named} with {mixer.num_heads} heads in {num_layers} layers")
